"""Shipped test material: store suite, fault stores, strategies, the local cluster."""
