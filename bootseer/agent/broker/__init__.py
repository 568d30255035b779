"""What takes root's rights on a node, for one job."""
