"""Real HDFS for development: a NameNode and DataNodes from Hadoop's own jars, on a local cluster.

with Cluster.up(ClusterSpec(nodes=0, datanodes=4, datanode_rate="800mbit")) as cluster:
    hdfs = Hdfs.start(cluster, hadoop_jars(Path("build")))
    print(hdfs.url, hdfs.fs("-ls", "/"))
"""

from bootseer_dev.hdfs.conf import HdfsSettings
from bootseer_dev.hdfs.hdfs import Hdfs
from bootseer_dev.hdfs.jars import hadoop_jars

__all__ = ["Hdfs", "HdfsSettings", "hadoop_jars"]
