"""bootseer report: the command and its terminal output."""
