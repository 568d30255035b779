"""BootSeer as an installed package of the system's: what it has put where, and its scripts."""
