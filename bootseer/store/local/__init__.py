"""A directory as a store, and what works on directories through descriptors."""
