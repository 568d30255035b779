"""Container images: record what a start reads, merge, prefetch."""
