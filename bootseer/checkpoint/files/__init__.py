"""Striped files in a store: their tree, parts and manifests."""
