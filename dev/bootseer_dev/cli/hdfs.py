"""``bootseer dev hdfs``: a real HDFS on this machine, to develop against."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bootseer_dev.cli import common

if TYPE_CHECKING:
    from bootseer_dev.hdfs import Hdfs

_name = click.option(
    "--name", default="hdfs", show_default=True, help="Which cluster, if there are several."
)


@click.group()
def hdfs() -> None:
    """Run a real HDFS on this machine.

    It is in namespaces. It needs no root where users may make user namespaces; with root it may
    have Slurm's nodes, too.

    \b
    Examples:
      bootseer dev hdfs up --datanodes 4 --rate 800mbit
      bootseer dev hdfs fs -- -ls /user
      bootseer dev hdfs down
    """


@hdfs.command()
@_name
@click.option("--datanodes", default=4, show_default=True, help="DataNodes, named d1 to dM.")
@click.option("--rate", metavar="RATE", help="Limit each DataNode's link: 800mbit, 10gbit.")
@click.option(
    "--namenodes",
    type=click.IntRange(1, 2),
    default=1,
    show_default=True,
    help="NameNodes; the second one follows the first, on head2.",
)
@click.option("--replication", type=int, help="Copies of each block by default.  [up to 2]")
@click.option("--block-size", default="128MiB", show_default=True, help="Of files by default.")
@click.option(
    "--nodes", default=0, show_default=True, help="Compute nodes with Slurm, n1 to nN; needs root."
)
@common.build_dir("For Hadoop's jars, which are fetched once.")
def up(
    name: str,
    datanodes: int,
    rate: str | None,
    namenodes: int,
    replication: int | None,
    block_size: str,
    nodes: int,
    build_dir: Path,
) -> None:
    """Start a NameNode and DataNodes, and wait until they are ready.

    Their network is the cluster's own: use `bootseer dev hdfs run` to get there. HADOOP_CONF_DIR is
    /etc/hadoop on all its machines.

    \b
    Examples:
      bootseer dev hdfs up
      bootseer dev hdfs up --datanodes 3 --nodes 2
      bootseer dev hdfs up --datanodes 8 --rate 800mbit --replication 3
    """
    from bootseer.units import format_duration, parse_size
    from bootseer_dev.cluster import Cluster, ClusterSpec
    from bootseer_dev.hdfs import Hdfs, HdfsSettings, hadoop_jars

    try:
        settings = HdfsSettings(replication, parse_size(block_size))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--block-size") from error
    spec = ClusterSpec(
        name=name, nodes=nodes, datanodes=datanodes, datanode_rate=rate, namenodes=namenodes
    )
    settings.copies(spec)
    jars = hadoop_jars(build_dir.absolute(), click.echo)
    began = time.monotonic()
    cluster = Cluster.up(spec)
    try:
        started = Hdfs.start(cluster, jars, settings)
    except BaseException:
        cluster.down()
        raise
    took = format_duration(time.monotonic() - began)
    click.echo(
        f"{started.url} with {datanodes} DataNodes after {took}; state and logs in "
        f"{cluster.state_dir}"
    )


@hdfs.command()
@_name
def down(name: str) -> None:
    """End the HDFS and delete what is left of it.

    All that runs on its machines is ended, too.

    \b
    Example:
      bootseer dev hdfs down
    """
    from bootseer_dev.cluster import Cluster

    Cluster.remove(name)


@hdfs.command()
@_name
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(name: str, as_json: bool) -> None:
    """Show the daemons.

    It shows their states, their addresses in the cluster's network, and their rates.

    \b
    Example:
      bootseer dev hdfs status --json
    """
    from bootseer_dev.cluster.spec import address

    found = _attach(name)
    spec = found.cluster.spec
    live = found.live_datanodes()
    states = {node: found.state(node) or "dead" for node in spec.namenode_names}
    states |= {node: "live" if node in live else "dead" for node in spec.datanode_names}
    daemons = {
        node: {"state": state, "address": address(node), "rate": spec.rate(node)}
        for node, state in states.items()
    }
    ready = found.is_writable()
    if as_json:
        document = {
            "url": found.url,
            "writable": ready,
            "namenodes": {node: daemons[node] for node in spec.namenode_names},
            "datanodes": {node: daemons[node] for node in spec.datanode_names},
            "state_dir": str(found.cluster.state_dir),
        }
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(f"{found.url}  {'writable' if ready else 'not writable'}")
    for node, shown in daemons.items():
        click.echo(f"{node:<5}  {shown['state']:<7}  {shown['address']:<11}  {shown['rate'] or ''}")


@hdfs.command(context_settings={"ignore_unknown_options": True})
@_name
@click.option("--user", default="root", show_default=True, help="As whom.")
@click.argument("argv", metavar="ARGUMENTS...", nargs=-1, required=True, type=click.UNPROCESSED)
def fs(name: str, user: str, argv: tuple[str, ...]) -> None:
    """Run ``hadoop fs ARGUMENTS`` on the head.

    \b
    Example:
      bootseer dev hdfs fs --user alice -- -put /etc/hosts /user/alice/hosts
    """
    found = _attach(name)
    user, env = found.login(user)
    common.call(found.cluster, found.fs_command(*argv), user, env=env)


@hdfs.command(context_settings={"ignore_unknown_options": True})
@_name
@click.option("--user", default="root", show_default=True, help="As whom.")
@click.option("--node", help="Where: n1, d1 and so on; by default the head.")
@click.argument("argv", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def run(name: str, user: str, node: str | None, argv: tuple[str, ...]) -> None:
    """Run a command on a machine that reaches the HDFS.

    \b
    Example:
      bootseer dev hdfs run --user alice -- python3 -c 'import hdfs_native'
    """
    found = _attach(name)
    user, env = found.login(user)
    common.call(found.cluster, list(argv), user, node, env)


def _attach(name: str) -> Hdfs:
    from bootseer_dev.cluster import Cluster
    from bootseer_dev.hdfs import Hdfs

    return Hdfs.attach(Cluster.attach(name))
