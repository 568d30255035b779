"""bootseer-squashfuse: a squashfuse for container runtimes."""
