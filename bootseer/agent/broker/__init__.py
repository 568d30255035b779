"""The broker: the part of a job's agent that runs as root."""
