"""What tests and benchmarks work on: images, snapshots, wheels."""
