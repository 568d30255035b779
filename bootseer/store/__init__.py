"""Where shared bytes live: one small protocol, its backends and their wrappers."""
