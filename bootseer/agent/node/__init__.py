"""What every side knows of a job on this node; imported by the hook path too."""
