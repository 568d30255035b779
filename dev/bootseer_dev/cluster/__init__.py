"""A real Slurm cluster on one machine: munged, slurmctld and N slurmds in namespaces.

Every node has its own network, host name and mounts; nothing of it is seen on the host but one
folder, the state directory. Ending the cluster's keeper process ends all of it.

    with Cluster.up(ClusterSpec(nodes=4)) as cluster:
        print(cluster.run(["srun", "-N4", "hostname"], user="alice").stdout)
"""

from bootseer_dev.cluster.cluster import Cluster
from bootseer_dev.cluster.namespaces.enter import CommandFailed
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.cluster.spec import ClusterSpec

__all__ = ["Cluster", "ClusterSpec", "CommandFailed", "wait_until"]
