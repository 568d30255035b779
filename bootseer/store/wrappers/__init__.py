"""Stores around a store: retries, reopened reads, replayed writes, limits."""
