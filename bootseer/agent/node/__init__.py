"""A job on this node: its folder, processes and control socket; used by all sides."""
