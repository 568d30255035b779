"""The FUSE mount of a checkpoint tree."""
