"""File systems under test: views, mounts, suites of operations."""
