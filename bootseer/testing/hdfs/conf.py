"""The settings of the local HDFS."""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape

from bootseer.testing.cluster.spec import HEAD, address

RPC_PORT = 8020
HTTP_PORT = 9870
DATANODE_HTTP_PORT = 9864
DATA_DIR = "/var/lib/hdfs"
SUPERUSER = "root"
"""Who started the daemons: in an ordinary user's cluster that user, who is root there."""
ADDRESS = "bootseer.address"
"""Java property in which each daemon is told its own address."""


def url() -> str:
    """Return the file system's URL; by address, for clients that do not see the cluster's hosts."""
    return f"hdfs://{address(HEAD)}:{RPC_PORT}"


def core_site() -> dict[str, str]:
    """Return the settings of core-site.xml."""
    return {
        "fs.defaultFS": url(),
        "hadoop.tmp.dir": DATA_DIR,
        # A dead NameNode is an answer, too: Hadoop's own clients would ask for minutes.
        "ipc.client.connect.max.retries": "3",
        "ipc.client.connect.retry.interval": "300",
        "ipc.client.connect.timeout": "3000",
    }


def hdfs_site(datanodes: int) -> dict[str, str]:
    """Return the settings of hdfs-site.xml for so many DataNodes."""
    return {
        "dfs.replication": str(min(2, datanodes)),
        "dfs.namenode.name.dir": f"{DATA_DIR}/name",
        "dfs.datanode.data.dir": f"{DATA_DIR}/data",
        "dfs.namenode.rpc-address": f"{address(HEAD)}:{RPC_PORT}",
        "dfs.namenode.http-address": f"{address(HEAD)}:{HTTP_PORT}",
        "dfs.datanode.hostname": f"${{{ADDRESS}}}",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.webhdfs.enabled": "true",
        "dfs.namenode.fs-limits.min-block-size": "65536",
        # Ready as soon as all have come, and quick to notice who has gone.
        "dfs.namenode.safemode.extension": "0",
        "dfs.namenode.safemode.min.datanodes": str(datanodes),
        "dfs.heartbeat.interval": "1",
        "dfs.namenode.heartbeat.recheck-interval": "1000",
        "dfs.namenode.avoid.read.stale.datanode": "true",
        "dfs.namenode.stale.datanode.interval": "3000",
        # One machine is all of them: its load says nothing about where to put a block.
        "dfs.namenode.redundancy.considerLoad": "false",
        "dfs.namenode.file.close.num-committed-allowed": "1",
        # Quotas and space are what tests set, not what this machine's disk has left.
        "dfs.datanode.du.reserved": "0",
    }


def xml(settings: Mapping[str, str]) -> str:
    """Write settings as Hadoop reads them."""
    properties = "".join(
        f"  <property><name>{escape(key)}</name><value>{escape(value)}</value></property>\n"
        for key, value in settings.items()
    )
    return f'<?xml version="1.0"?>\n<configuration>\n{properties}</configuration>\n'
