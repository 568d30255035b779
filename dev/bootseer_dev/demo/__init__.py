"""The demo: cold against warm on a local Slurm cluster."""
