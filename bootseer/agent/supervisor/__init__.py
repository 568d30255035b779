"""One job on one node, from its prolog to its epilog."""
