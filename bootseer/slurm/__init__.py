"""What Slurm calls: options, job environment, prolog, epilog, the plugin's build."""
