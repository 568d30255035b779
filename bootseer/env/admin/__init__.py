"""Care for snapshots: verify, compare, detect drift, collect garbage."""
