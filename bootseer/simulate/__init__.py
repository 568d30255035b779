"""Predict how long starts of many nodes take, and what they ask of a store."""
