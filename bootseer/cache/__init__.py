"""The block cache: blocks of images on a node's local disk, shared by all jobs."""
