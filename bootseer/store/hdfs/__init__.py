"""HDFS, by hdfs-native: no Java on the nodes."""
