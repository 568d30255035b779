"""Debian roots, from which machines of the cluster have another release of Slurm than the host."""
