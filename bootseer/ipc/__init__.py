"""Messages between processes of one node: framing, checks and descriptors."""
