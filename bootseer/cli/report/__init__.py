"""bootseer report: the command, and how a terminal shows what it found."""
