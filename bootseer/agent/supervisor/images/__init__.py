"""The images of a job: mounts, cached blocks and recordings."""
