"""Capture what a command installed, check it and upload it."""
