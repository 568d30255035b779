"""The agent: one job on one node, from the prolog to the epilog."""
