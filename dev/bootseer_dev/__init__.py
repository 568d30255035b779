"""What developers of BootSeer need: clusters, HDFS, benchmarks, demos, material for tests."""
