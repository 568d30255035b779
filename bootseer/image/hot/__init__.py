"""Hot sets: record the reads of starts, merge, publish and prefetch them."""
