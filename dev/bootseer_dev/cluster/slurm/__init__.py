"""Slurm and munge on the machines of a cluster: configuration files, daemons."""
