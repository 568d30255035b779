"""Rewrite an image so that a start reads it from front to back."""
