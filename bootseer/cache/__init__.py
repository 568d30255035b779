"""Block cache: what a node has of images, on its own disk, for all jobs."""
