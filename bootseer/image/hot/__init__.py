"""Hot sets: record what a start reads, merge, publish, prefetch."""
