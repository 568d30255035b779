"""BootSeer: record what a job's start-up reads, and have it on every node the next time."""

__version__ = "0.1.0"
