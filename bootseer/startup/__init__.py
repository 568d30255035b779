"""The stages of a start-up: emit, collect, report."""
