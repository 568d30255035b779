"""The supervisor of one job on one node, from its prolog to its epilog."""
