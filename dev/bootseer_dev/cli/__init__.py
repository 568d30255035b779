"""bootseer dev: for developers of BootSeer."""
