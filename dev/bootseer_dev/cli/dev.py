"""``bootseer dev``: what developers of BootSeer need, first of all a cluster of their own."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bootseer_dev.cli import common
from bootseer_dev.cli.hdfs import hdfs
from bootseer_dev.cli.packages import packages

if TYPE_CHECKING:
    from bootseer_dev.cluster import Cluster

_name = click.option(
    "--name", default="default", show_default=True, help="Which cluster, if there are several."
)


@click.group()
def dev() -> None:
    """Develop, try and measure BootSeer.

    \b
    Examples:
      bootseer dev demo
      bootseer dev cluster up
    """


dev.add_command(hdfs)
dev.add_command(packages)


@dev.command()
@click.option("--nodes", type=click.IntRange(1, 64), help="Compute nodes.  [one per processor]")
@click.option("--torch", is_flag=True, help="The CUDA build of PyTorch as the image, 3 GB.")
@click.option("--rounds", default=3, show_default=True, help="Measure so often; medians count.")
@click.option(
    "--latency-ms", default=2.0, show_default=True, help="Of each request to the slow share."
)
@click.option(
    "--bandwidth", default="200MB", show_default=True, help="Of the share, a second, all nodes."
)
@click.option("--hdfs", "with_hdfs", is_flag=True, help="With a checkpoint in HDFS.")
@common.build_dir("For the image, which is built once, and the figures.")
def demo(
    nodes: int | None,
    torch: bool,
    rounds: int,
    latency_ms: float,
    bandwidth: str,
    with_hdfs: bool,
    build_dir: Path,
) -> None:
    """Run a job cold and then warm on a local cluster.

    It needs root.

    \b
    Examples:
      bootseer dev demo
      bootseer dev demo --nodes 4
      bootseer dev demo --torch --rounds 1
      bootseer dev demo --hdfs
    """
    from bootseer.cli.terminal.console import console
    from bootseer.units import parse_size
    from bootseer_dev.demo.demo import DemoSpec, run_demo
    from bootseer_dev.demo.hdfs import run_demo_hdfs

    spec = DemoSpec(
        nodes=nodes or os.cpu_count() or 1,
        torch=torch,
        latency_s=latency_ms / 1000,
        bandwidth_bytes_per_s=parse_size(bandwidth),
        rounds=rounds,
        build_dir=build_dir.absolute(),
    )
    (run_demo_hdfs if with_hdfs else run_demo)(spec, console())


@dev.command()
@click.option("--pairs", default=40, show_default=True, help="Pairs of jobs, with and without.")
@click.option("--starts", default=10, show_default=True, help="Warm starts.")
@common.build_dir("For the figures.")
def bench(pairs: int, starts: int, build_dir: Path) -> None:
    """Measure what BootSeer costs jobs.

    It measures jobs that do not use it, and jobs that do. It needs root.

    \b
    Example:
      bootseer dev bench --pairs 100
    """
    from bootseer.cli.terminal.console import console
    from bootseer_dev.bench.overhead import run_bench

    run_bench(build_dir.absolute(), console(), pairs, starts)


@dev.command("bench-env")
@click.option("--rounds", default=3, show_default=True, help="How often each way is measured.")
@click.option(
    "--nodes", multiple=True, type=click.IntRange(1, 8), default=(2, 4), show_default=True
)
@common.build_dir("For the wheels, which are fetched once, and the figures.")
def bench_env(rounds: int, nodes: tuple[int, ...], build_dir: Path) -> None:
    """Measure each way to have an environment on all nodes.

    The environment is PyTorch and transformers. It needs root.

    \b
    Example:
      bootseer dev bench-env --rounds 1 --nodes 2
    """
    from bootseer.cli.terminal.console import console
    from bootseer_dev.bench.environment import EnvBenchSpec, run_env_bench

    run_env_bench(EnvBenchSpec(rounds, nodes, build_dir), console())


@dev.command("bench-image")
@click.option("--rounds", default=3, show_default=True, help="How often each way is measured.")
@click.option("--small", is_flag=True, help="The demo's image of 1 GB instead of PyTorch's of 3.")
@common.build_dir("For the images, which are built once, and the figures.")
def bench_image(rounds: int, small: bool, build_dir: Path) -> None:
    """Measure each way to start from an image in a slow store.

    It needs root.

    \b
    Example:
      bootseer dev bench-image --rounds 5
    """
    from bootseer.cli.terminal.console import console
    from bootseer_dev.bench.image import ImageBenchSpec, run_image_bench

    spec = ImageBenchSpec(rounds=rounds, torch=not small, build_dir=build_dir.absolute())
    run_image_bench(spec, console())


@dev.command("bench-harm")
@click.option("--rounds", default=3, show_default=True, help="How often each case is measured.")
@click.option("--only", multiple=True, metavar="CASE", help="Only this case.  [repeatable]")
@common.build_dir("For the image, which is built once, and the figures.")
def bench_harm(rounds: int, only: tuple[str, ...], build_dir: Path) -> None:
    """Measure starts to which BootSeer could do harm.

    Each is measured with and without it. It needs root.

    \b
    Examples:
      bootseer dev bench-harm --rounds 5
      bootseer dev bench-harm --only busy_processors --only dead_store
    """
    from bootseer.cli.terminal.console import console
    from bootseer_dev.bench.harm import HarmSpec, run_harm_bench

    run_harm_bench(HarmSpec(rounds, only, build_dir), console())


@dev.command("bench-scale")
@click.option(
    "--nodes",
    multiple=True,
    default=(1, 4, 16, 48),
    show_default=True,
    help="Of a job.  [repeatable]",
)
@click.option("--starts", default=3, show_default=True, help="Of each job.")
@click.option(
    "--exchanging",
    multiple=True,
    default=(2, 4, 8),
    show_default=True,
    help="Nodes of a job that read the same data; 0 to leave this out.  [repeatable]",
)
@click.option("--rounds", default=2, show_default=True, help="Of these jobs.")
@common.build_dir("For Hadoop's jars and the figures.")
def bench_scale(
    nodes: tuple[int, ...], starts: int, exchanging: tuple[int, ...], rounds: int, build_dir: Path
) -> None:
    """Measure what jobs of many nodes ask of their store.

    It needs root.

    \b
    Example:
      bootseer dev bench-scale --nodes 16 --starts 2 --exchanging 0
    """
    from bootseer.cli.terminal.console import console
    from bootseer_dev.bench.scale import ScaleSpec, run_scale_bench

    jobs = tuple(filter(None, exchanging))
    spec = ScaleSpec(nodes, starts, jobs, rounds, build_dir.absolute())
    run_scale_bench(spec, console())


@dev.command("bench-ckpt")
@click.option("--size", default="1GiB", show_default=True, help="Of the file.")
@click.option("--rounds", default=5, show_default=True, help="How often each way is measured.")
@common.build_dir("For Hadoop's jars and the figures.")
def bench_ckpt(size: str, rounds: int, build_dir: Path) -> None:
    """Measure how fast checkpoints in HDFS are read and written.

    It needs root.

    \b
    Example:
      bootseer dev bench-ckpt --rounds 3
    """
    from bootseer.cli.terminal.console import console
    from bootseer.units import parse_size
    from bootseer_dev.bench.checkpoint import BenchSpec, run_ckpt_bench

    spec = BenchSpec(parse_size(size), rounds, build_dir.absolute())
    run_ckpt_bench(spec, console())


@dev.command()
@click.option("--rounds", default=5, show_default=True, help="How often each contestant starts.")
@click.option("--small", is_flag=True, help="Small data, two nodes: minutes instead of hours.")
@click.option(
    "--alone/--no-alone",
    default=True,
    show_default=True,
    help="With each technique of BootSeer's by itself, too.",
)
@common.build_dir("For images, wheels, Hadoop's jars and the figures.")
def race(rounds: int, small: bool, alone: bool, build_dir: Path) -> None:
    """Race a job's start: today's, the best by hand, and BootSeer's.

    It needs root, and 40 GB of disk unless it is small.

    \b
    Examples:
      bootseer dev race --rounds 1 --small
      bootseer dev race --no-alone
    """
    from bootseer.cli.terminal.console import console
    from bootseer_dev.race.race import run_race
    from bootseer_dev.race.spec import RaceSpec

    run_race(RaceSpec(rounds, small, alone, build_dir.absolute()), console())


@dev.command()
@click.option("--seed", type=int, help="Of the first round.  [by chance]")
@click.option("--minutes", default=10.0, show_default=True, help="For how long.")
@click.option("--rounds", type=click.IntRange(1), help="So many at most.  [as there is time for]")
@common.build_dir("For Hadoop's jars.")
def fsx(seed: int | None, minutes: float, rounds: int | None, build_dir: Path) -> None:
    """Compare random operations on a mount and on local files.

    The mount is that of a checkpoint. It needs root. It ends with an error at the first difference,
    and says the seed, which finds it again.

    \b
    Examples:
      bootseer dev fsx --minutes 60
      bootseer dev fsx --seed 4711 --rounds 1
    """
    import random

    from bootseer.cli.terminal.console import console
    from bootseer_dev.files.fsx_rounds import RoundsSpec, run_rounds, small_hdfs

    chosen = random.randrange(1 << 30) if seed is None else seed
    spec = RoundsSpec(chosen, rounds, minutes * 60, build_dir.absolute())
    with small_hdfs("fsx", spec.build_dir) as hdfs:
        done = run_rounds(spec, hdfs, console())
    for kind, count in done.most_common():
        click.echo(f"{kind:<12}{count:>8}")
    click.echo(f"{done.total()} operations, and no difference")


@dev.group()
def cluster() -> None:
    """Run a real Slurm cluster on this machine.

    It is in namespaces, and needs root.

    \b
    Examples:
      bootseer dev cluster up --nodes 4
      bootseer dev cluster run --user alice -- srun -N4 hostname
      bootseer dev cluster down
    """


@cluster.command()
@_name
@click.option("--nodes", default=2, show_default=True, help="Compute nodes, named n1 to nN.")
@click.option("--cpus", default=8, show_default=True, help="CPUs that Slurm sees on each node.")
@click.option("--link-rate", metavar="RATE", help="Limit each node's link: 800mbit, 10gbit.")
@click.option(
    "--user", "users", multiple=True, default=("alice", "mallory"), help="Users; repeatable."
)
@click.option("--systemd", is_flag=True, help="Let systemd run the nodes, and slurmd.")
@click.option("--cgroups", is_flag=True, help="Let Slurm use control groups; with --systemd.")
@click.option(
    "--slurm",
    metavar="RELEASE",
    help="A Slurm release other than this machine's: 22.05, 24.11 or sid (Debian's newest).",
)
@click.option(
    "--slurm-conf",
    "slurm_conf",
    metavar="KEY=VALUE",
    multiple=True,
    help="A line more for slurm.conf; repeatable.",
)
def up(
    name: str,
    nodes: int,
    cpus: int,
    link_rate: str | None,
    users: tuple[str, ...],
    systemd: bool,
    cgroups: bool,
    slurm: str | None,
    slurm_conf: tuple[str, ...],
) -> None:
    """Start a cluster and wait until all its nodes are idle.

    The machines have this machine's files and Slurm. With --slurm they have a Debian root of that
    release, which is made on the first use in the checkout's build/roots: some minutes, 1 GB.

    \b
    Examples:
      bootseer dev cluster up --nodes 4 --link-rate 800mbit
      bootseer dev cluster up --slurm 24.11
    """
    from bootseer.units import format_duration
    from bootseer_dev.cluster import Cluster, ClusterSpec

    spec = ClusterSpec(
        name=name,
        nodes=nodes,
        cpus_per_node=cpus,
        link_rate=link_rate,
        users=users,
        systemd=systemd,
        cgroups=cgroups,
        slurm_conf_extra=slurm_conf,
        slurm=slurm,
    )
    began = time.monotonic()
    started = Cluster.up(spec, partial(click.echo, err=True))
    took = format_duration(time.monotonic() - began)
    click.echo(f"{nodes} nodes idle after {took}; state and logs in {started.state_dir}")


@cluster.command(epilog="Example:  bootseer dev cluster root 24.11")
@click.argument("release")
def root(release: str) -> None:
    """Make the Debian root of a Slurm release, if it is not there.

    `bootseer dev cluster up --slurm RELEASE` does so, too.
    """
    from bootseer_dev.cluster.roots.prepare import prepare

    click.echo(prepare(release, partial(click.echo, err=True)).folder)


@cluster.command(epilog="Example:  bootseer dev cluster down")
@_name
def down(name: str) -> None:
    """End a cluster and delete all that is left of it.

    No cluster is no error.
    """
    from bootseer_dev.cluster import Cluster

    Cluster.remove(name)


@cluster.command(epilog="Example:  bootseer dev cluster status")
@_name
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(name: str, as_json: bool) -> None:
    """Show a cluster's nodes and places."""
    from bootseer_dev.cluster import Cluster

    found = Cluster.attach(name)
    states = found.node_states()
    if as_json:
        click.echo(json.dumps({**_describe(found), "nodes": states}, indent=2))
        return
    click.echo(f"cluster {name}: keeper pid {found.keeper_pid}, state and logs {found.state_dir}")
    for node, state in states.items():
        click.echo(f"{node}  {state}")


@cluster.command(context_settings={"ignore_unknown_options": True})
@_name
@click.option("--user", default="root", show_default=True, help="As whom.")
@click.option("--node", help="Where: n1 to nN; by default the head (login node).")
@click.argument("argv", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def run(name: str, user: str, node: str | None, argv: tuple[str, ...]) -> None:
    """Run a command inside a cluster.

    It has this terminal, and its exit code is passed on.

    \b
    Examples:
      bootseer dev cluster run --user alice -- srun -N2 hostname
      bootseer dev cluster run --node n1 -- ps aux
    """
    from bootseer_dev.cluster import Cluster

    common.call(Cluster.attach(name), list(argv), user, node)


def _describe(cluster: Cluster) -> dict[str, object]:
    return {
        "name": cluster.spec.name,
        "state_dir": str(cluster.state_dir),
        "shared": str(cluster.shared),
        "keeper_pid": cluster.keeper_pid,
        "users": list(cluster.spec.users),
        "link_rate": cluster.spec.link_rate,
    }
