"""Environments: what a command made of a folder, captured once and restored everywhere."""
