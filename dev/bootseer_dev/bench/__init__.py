"""Benchmarks: each prints a table and writes build/bench-X.json."""
