"""Shipped test material: store suite, fault stores, strategies."""
