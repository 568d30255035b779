"""Messages between processes of one node: how they are framed, checked, and carry descriptors."""
