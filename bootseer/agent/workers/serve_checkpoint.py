"""Serve the job's checkpoint folder on the mount that root has made."""

from __future__ import annotations

from contextlib import closing, suppress

import trio

from bootseer.agent.messages.worker import (
    CheckpointEnded,
    CheckpointReads,
    CheckpointServed,
    CloseWindow,
    StopCheckpoint,
)
from bootseer.agent.workers.base import Task
from bootseer.agent.workers.job_peers import JobPeers, checkpoint_store
from bootseer.checkpoint.mount.owner_names import OwnerNames
from bootseer.checkpoint.mount.serve import CheckpointOptions, CheckpointService, serve_checkpoint
from bootseer.checkpoint.mount.view import ViewOptions
from bootseer.checkpoint.read.fetcher import FetchLimits
from bootseer.checkpoint.write.options import WriteOptions
from bootseer.config import Config
from bootseer.core.meter import Meter
from bootseer.errors import BootseerError, Closed
from bootseer.ipc.channel import unexpected
from bootseer.units import GIB, MIB, format_size


def checkpoint_options(config: Config, *, read_only: bool) -> CheckpointOptions:
    """Return the checkpoint options of the settings."""
    checkpoint = config.checkpoint
    return CheckpointOptions(
        FetchLimits(
            memory_bytes=checkpoint.read_memory_mib * MIB,
            streams=checkpoint.streams,
        ),
        WriteOptions(
            unit_bytes=checkpoint.unit_mib * MIB,
            width=checkpoint.width,
            streams=2 * checkpoint.width,
            memory_bytes=checkpoint.write_memory_mib * MIB,
            spill_dir=checkpoint.spill_dir,
            spill_bytes=int(checkpoint.spill_gib * GIB),
        ),
        ViewOptions(read_only=read_only),
    )


async def run(task: Task) -> None:
    """Serve until the agent stops it or the mount is detached; then report totals."""
    stop = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        peers = JobPeers(task, nursery)

        async def serve(*, task_status: trio.TaskStatus[CheckpointService]) -> None:
            shared = peers.files_of_checkpoint(store)
            with stop, closing(peers):
                await serve_checkpoint(
                    store, task.connection, owners, options, shared, task_status=task_status
                )
            nursery.cancel_scope.cancel()

        try:
            async with task.stage("checkpoint.mount") as report:
                report.start_ns = task.job.started_ns
                store = checkpoint_store(task)
                owners = OwnerNames(task.job.uid, task.job.gid, task.job.user)
                options = checkpoint_options(task.config, read_only=task.job.read_only)
                service = await nursery.start(serve)
                report.detail = store.url
        except Closed:
            raise
        except BootseerError:
            await task.channel.send(CheckpointEnded())
            return  # reported as a fallback
        await task.channel.send(CheckpointServed())
        await _handle_messages(task, service, stop)
    await _report(task, service, peers)


async def _handle_messages(task: Task, service: CheckpointService, stop: trio.CancelScope) -> None:
    """Handle the agent's messages until it has gone."""
    async with trio.open_nursery() as nursery:
        try:
            while True:
                match message := await task.channel.receive_only():
                    case CloseWindow():
                        nursery.start_soon(_report_reads, task, service)
                    case StopCheckpoint():
                        service.settle_s = message.timeout_s
                        stop.cancel()
                    case _:
                        raise unexpected(message)
        except Closed:
            stop.cancel()


async def _report_reads(task: Task, service: CheckpointService) -> None:
    """Report the reads so far; this needs store requests, which may take long."""
    with suppress(Closed):
        await task.channel.send(CheckpointReads(await service.reads.close()))


async def _report(task: Task, service: CheckpointService, peers: JobPeers) -> None:
    """Report the mount's totals."""
    fetcher, writes = service.fetcher, service.writes
    twice = fetcher.late.fetched_twice
    reading = [f"{twice} asked for twice"] if twice else []
    if peers.client is not None and peers.client.received_bytes:
        received = format_size(peers.client.received_bytes)
        reading.append(f"{received} of it through the job's nodes")
    await _report_transfer(task, "checkpoint.read", fetcher.fetched, reading)
    counts = {"parts broke": writes.broken, "parts moved": writes.moved}
    writing = [f"{number} {what}" for what, number in counts.items() if number]
    await _report_transfer(task, "checkpoint.write", writes.written, writing)
    if service.lost:
        names: dict[str, list[str]] = {}
        for lost in service.lost:
            names.setdefault(lost.reason, []).append(lost.name)
        reasons = [f"{reason}: {', '.join(those)}" for reason, those in names.items()]
        async with task.stage("checkpoint.lost") as report:
            report.fall_back("; ".join(reasons))
    await task.channel.send(CheckpointEnded())


async def _report_transfer(task: Task, name: str, meter: Meter, unusual: list[str]) -> None:
    """Report the transferred bytes, from first to last, and what is unusual."""
    if not meter.began_ns:
        return
    rate = f"{format_size(meter.bytes_per_s)}/s while at work"
    async with task.stage(name) as report:
        report.start_ns, report.end_ns = meter.began_ns, meter.ended_ns
        report.bytes, report.detail = meter.size_bytes, ", ".join([rate, *unusual])
