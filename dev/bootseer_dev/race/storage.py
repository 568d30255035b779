"""The race's storage: DataNodes and a file server behind one link, whose bytes are counted.

Every byte that any contestant reads crosses that link and the link of its node. The DataNodes and
the file server hang on a switch of their own, and the switch's uplink to the compute nodes is
rated. Two classes of traffic, HDFS and the file server, share the uplink fairly and borrow from
each other: with a single queue, small reads of the share would wait behind large reads of HDFS,
which would be held against the tools that mount the share.

The file server is what a cluster has as NFS. Kernels for tests seldom have NFS or 9p, so the nodes
mount it with sshfs. That is SFTP without SSH (`directport`): no encryption, servers and clients in
C, many reads under way, and the kernel's own cache and read-ahead, set to 1 MiB as with NFS. The
share of `bootseer_dev.files.slow_share` would do neither: its bytes cross no link, and its daemons
are in Python, which would take processor time from those who read it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bootseer_dev.cluster import Cluster
from bootseer_dev.cluster.poll import wait_until

SHARE = "/mnt/share"
ADDRESS = "10.77.3.1"
"""Of the file server."""
INDEX_PORT = 8080
_SFTP_PORT = 2222
_SFTP_SERVER = "/usr/lib/openssh/sftp-server"
_READ_AHEAD_KIB = 1024
_COMPUTE, _STORAGE = "br0", "br1"
_TO_STORAGE, _TO_COMPUTE = "store-up", "store-down"
"""Ends of the uplink; each is a port of the bridge whose frames it takes."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The switch of a cluster's storage, and a file server on it.

    Attributes:
        cluster: whose DataNodes these are.
        holder_pid: a process in the file server's network, as the cluster counts.
    """

    cluster: Cluster
    holder_pid: int

    def sent_bytes(self) -> int:
        """Return what all of the storage has sent to the compute nodes so far."""
        said = self.cluster.run(["ip", "-s", "-j", "link", "show", "dev", _TO_COMPUTE]).stdout
        [link] = json.loads(said)
        return int(link["stats64"]["tx"]["bytes"])

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` in the file server's network, on the head."""
        return ["nsenter", f"--net=/proc/{self.holder_pid}/ns/net", *argv]


@contextmanager
def storage(cluster: Cluster, folder: Path, rate_mbit: int) -> Iterator[Storage]:
    """Build the switch, serve a folder from it, and mount it on all compute nodes.

    Args:
        cluster: that is up, with DataNodes.
        folder: of the host; its folder "wheels" is a package index at `INDEX_PORT`, too.
        rate_mbit: of the uplink, each way, in Mbit/s.
    """
    cluster.run(["sh", "-ec", "\n".join(switch_commands(cluster.spec.datanode_names, rate_mbit))])
    say_pid = ["unshare", "--net", "sh", "-c", "echo $$; exec sleep infinity"]
    holder = cluster.popen(say_pid)
    running = [holder]
    try:
        assert holder.stdout is not None
        built = Storage(cluster, int(holder.stdout.readline()))
        cluster.run(["sh", "-ec", "\n".join(server_commands(built.holder_pid))])
        listen = ["systemd-socket-activate", "-l", f"{ADDRESS}:{_SFTP_PORT}", "--accept"]
        index = ["busybox", "httpd", "-f", "-p", f"{ADDRESS}:{INDEX_PORT}"]
        for server in (
            [*listen, "--inetd", _SFTP_SERVER, "-R"],
            [*index, "-h", str(folder / "wheels")],
        ):
            running.append(
                cluster.popen(
                    built.command(server), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
        for node in cluster.node_names:
            _mount(cluster, node, folder)
        yield built
    finally:
        for process in reversed(running):
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10)


def switch_commands(datanodes: Sequence[str], rate_mbit: int) -> list[str]:
    """List the commands by which the head gives the storage a switch and a rated uplink."""
    half = rate_mbit // 2
    down = f"dev {_TO_COMPUTE}"
    lines = [
        f"ip link add {_STORAGE} type bridge",
        f"ip link set {_STORAGE} up",
        f"ip link add {_TO_STORAGE} type veth peer name {_TO_COMPUTE}",
        f"ip link set {_TO_STORAGE} master {_COMPUTE} up",
        f"ip link set {_TO_COMPUTE} master {_STORAGE} up",
        *(f"ip link set to-{name} master {_STORAGE}" for name in datanodes),
        f"tc qdisc add dev {_TO_STORAGE} root tbf rate {rate_mbit}mbit burst 256kb latency 50ms",
        f"tc qdisc add {down} root handle 1: htb default 10",
        f"tc class add {down} parent 1: classid 1:1 htb rate {rate_mbit}mbit burst 256kb",
    ]
    for number in (10, 20):
        share = f"htb rate {half}mbit ceil {rate_mbit}mbit burst 256kb cburst 256kb"
        lines.append(f"tc class add {down} parent 1:1 classid 1:{number} {share}")
        lines.append(f"tc qdisc add {down} parent 1:{number} bfifo limit 1mb")
    is_file_server = f"u32 match ip src {ADDRESS}/32 flowid 1:20"
    lines.append(f"tc filter add {down} parent 1: protocol ip {is_file_server}")
    return lines


def server_commands(holder_pid: int) -> list[str]:
    """List the commands by which the head connects the file server's network to the switch."""
    inside = f"nsenter --net=/proc/{holder_pid}/ns/net ip"
    return [
        f"ip link add to-files type veth peer name eth0 netns {holder_pid}",
        f"ip link set to-files master {_STORAGE} up",
        f"{inside} link set lo up",
        f"{inside} addr add {ADDRESS}/16 dev eth0",
        f"{inside} link set eth0 up",
    ]


def _mount(cluster: Cluster, node: str, folder: Path) -> None:
    cluster.run(["mkdir", "-p", SHARE], node=node)
    options = f"directport={_SFTP_PORT},ro,allow_other,kernel_cache"
    mount = ["sshfs", "-o", options, f"{ADDRESS}:{folder}", SHARE]
    wait_until(
        lambda: cluster.run(mount, node=node, check=False).returncode == 0,
        f"the share is mounted on {node}",
    )
    device = cluster.run(["mountpoint", "-d", SHARE], node=node).stdout.strip()
    Path(f"/sys/class/bdi/{device}/read_ahead_kb").write_text(f"{_READ_AHEAD_KIB}\n")
