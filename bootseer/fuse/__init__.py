"""FUSE: the only user of pyfuse3."""
