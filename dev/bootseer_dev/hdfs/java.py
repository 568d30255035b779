"""The command lines of Hadoop's programs: daemons, shell and administration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bootseer_dev.hdfs import conf

CONF_DIR = "/etc/hadoop"
TICKETS = f"{CONF_DIR}/tickets"
"""The credential cache of the superuser's commands, for an HDFS that asks for Kerberos' tickets."""
NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
SHELL = "org.apache.hadoop.fs.FsShell"
ADMIN = "org.apache.hadoop.hdfs.tools.DFSAdmin"
HA_ADMIN = "org.apache.hadoop.hdfs.tools.DFSHAAdmin"

# Little memory and a quick start: these daemons are many, and live for a test.
_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
_DAEMON_JVM = ("-Xmx160m", f"-Djava.io.tmpdir={conf.DATA_DIR}/tmp")
_TOOL_JVM = ("-Xmx512m",)
_DAEMONS = (NAMENODE, DATANODE)


def command(jars: Path, main: str, arguments: Sequence[str] = (), own: str = "") -> list[str]:
    """Return the command line that runs a program of Hadoop's, on a machine of the cluster.

    Args:
        jars: folder of Hadoop's jars.
        main: its main class.
        arguments: its own.
        own: for daemons, the address of the machine it is to run on.
    """
    options: tuple[str, ...] = _DAEMON_JVM if main in _DAEMONS else _TOOL_JVM
    if own:
        options += (f"-D{conf.ADDRESS}={own}",)
    return ["java", *_JVM, *options, "-cp", f"{CONF_DIR}:{jars}/*", main, *arguments]


def is_daemon(command_line: str) -> bool:
    """Tell whether a process is a NameNode or a DataNode."""
    return command_line.startswith("java ") and any(main in command_line for main in _DAEMONS)
