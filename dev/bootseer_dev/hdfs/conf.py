"""The settings of the local HDFS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from bootseer.errors import ConfigError
from bootseer.units import KIB, MIB
from bootseer_dev.cluster.spec import HEAD, ClusterSpec, address

RPC_PORT = 8020
HTTP_PORT = 9870
DATANODE_HTTP_PORT = 9864
DATA_DIR = "/var/lib/hdfs"
SUPERUSER = "root"
"""Who started the daemons: in an ordinary user's cluster that user, who is root there."""
ADDRESS = "bootseer.address"
"""Java property in which each daemon is told its own address."""
NAMESERVICE = "bootseer"
"""What two NameNodes are called together."""
METRICS_PERIOD_MS = 20
"""How old figures can be that a daemon gives; by default ten seconds."""

_SHARED_EDITS = "file:///shared/hdfs-edits"
_MIN_BLOCK_BYTES = 64 * KIB
_CHECKSUM_BYTES = 512
_LOG4J = """log4j.rootLogger=INFO,out
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""


@dataclass(frozen=True, slots=True)
class HdfsSettings:
    """What files are like for which their writer does not say otherwise, and Hadoop's own settings.

    Attributes:
        replication: copies of each block; by default two, if there are two DataNodes.
        block_bytes: length of a block.
        site: settings of core-site.xml and hdfs-site.xml, besides these or instead of them.
    """

    replication: int | None = None
    block_bytes: int = 128 * MIB
    site: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what HDFS would refuse at the first write.

        Raises:
            ConfigError: the block's length is too small, or no multiple of a checksum's.
        """
        if self.block_bytes < _MIN_BLOCK_BYTES or self.block_bytes % _CHECKSUM_BYTES:
            raise ConfigError(
                f"a block's length is a multiple of {_CHECKSUM_BYTES} bytes and at least "
                f"{_MIN_BLOCK_BYTES}, not {self.block_bytes}"
            )

    def copies(self, spec: ClusterSpec) -> int:
        """Return the number of copies in such a cluster.

        Raises:
            ConfigError: it has too few DataNodes.
        """
        copies = min(2, spec.datanodes) if self.replication is None else self.replication
        if not 0 < copies <= spec.datanodes:
            raise ConfigError(f"{spec.datanodes} DataNodes cannot keep {copies} copies")
        return copies


def url(spec: ClusterSpec) -> str:
    """Return the file system's URL; by address, for clients that do not see the cluster's hosts.

    Two NameNodes are found by the configuration in /etc/hadoop alone.
    """
    if spec.namenodes > 1:
        return f"hdfs://{NAMESERVICE}"
    return f"hdfs://{address(HEAD)}:{RPC_PORT}"


def files(spec: ClusterSpec, settings: HdfsSettings) -> dict[str, str]:
    """Return the names and texts of all files of the configuration.

    Raises:
        ConfigError: there are fewer DataNodes than copies.
    """
    core, hdfs = _core_site(spec), _hdfs_site(spec, settings)
    for key, value in settings.site.items():
        (hdfs if key.startswith("dfs.") else core)[key] = value
    return {
        "core-site.xml": xml(core),
        "hdfs-site.xml": xml(hdfs),
        "log4j.properties": _LOG4J,
        "hadoop-metrics2.properties": f"*.periodMillis={METRICS_PERIOD_MS}\n",
    }


def _core_site(spec: ClusterSpec) -> dict[str, str]:
    return {
        "fs.defaultFS": url(spec),
        "hadoop.tmp.dir": DATA_DIR,
        # A dead NameNode is an answer, too: Hadoop's own clients would ask for minutes.
        "ipc.client.connect.max.retries": "3",
        "ipc.client.connect.retry.interval": "300",
        "ipc.client.connect.timeout": "3000",
    }


def _hdfs_site(spec: ClusterSpec, settings: HdfsSettings) -> dict[str, str]:
    return {
        "dfs.replication": str(settings.copies(spec)),
        "dfs.blocksize": str(settings.block_bytes),
        "dfs.namenode.name.dir": f"{DATA_DIR}/name",
        "dfs.datanode.data.dir": f"{DATA_DIR}/data",
        **(_pair(spec) if spec.namenodes > 1 else _addresses(HEAD, "")),
        "dfs.datanode.hostname": f"${{{ADDRESS}}}",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.webhdfs.enabled": "true",
        "dfs.namenode.fs-limits.min-block-size": str(_MIN_BLOCK_BYTES),
        # Ready as soon as all have come, and quick to notice who has gone.
        "dfs.namenode.safemode.extension": "0",
        "dfs.namenode.safemode.min.datanodes": str(spec.datanodes),
        # Of few blocks, the usual 0.999 is all but one.
        "dfs.namenode.safemode.threshold-pct": "1",
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
    """Return the text of a file of Hadoop's configuration."""
    properties = "".join(
        f"  <property><name>{escape(key)}</name><value>{escape(value)}</value></property>\n"
        for key, value in settings.items()
    )
    return f'<?xml version="1.0"?>\n<configuration>\n{properties}</configuration>\n'


def _addresses(machine: str, suffix: str) -> dict[str, str]:
    return {
        f"dfs.namenode.rpc-address{suffix}": f"{address(machine)}:{RPC_PORT}",
        f"dfs.namenode.http-address{suffix}": f"{address(machine)}:{HTTP_PORT}",
    }


def _pair(spec: ClusterSpec) -> dict[str, str]:
    """Two NameNodes, each named as its machine, with a folder of edits that both see."""
    settings = {
        "dfs.nameservices": NAMESERVICE,
        f"dfs.ha.namenodes.{NAMESERVICE}": ",".join(spec.namenode_names),
        f"dfs.client.failover.proxy.provider.{NAMESERVICE}": (
            "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        ),
        "dfs.namenode.shared.edits.dir": _SHARED_EDITS,
        "dfs.ha.tail-edits.period": "1",
        # Whoever fails over ends the other one first if it does not answer.
        "dfs.ha.fencing.methods": "shell(/bin/true)",
        "ha.failover-controller.graceful-fence.rpc-timeout.ms": "3000",
        "ha.failover-controller.cli-check.rpc-timeout.ms": "3000",
    }
    for machine in spec.namenode_names:
        settings |= _addresses(machine, f".{NAMESERVICE}.{machine}")
    return settings
