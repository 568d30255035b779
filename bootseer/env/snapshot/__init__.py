"""Snapshots in a store: manifest, index, content, names, leases."""
