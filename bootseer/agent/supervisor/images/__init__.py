"""The images of a job: their mounts, their blocks on the node, and what a start reads of them."""
