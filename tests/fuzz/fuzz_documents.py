"""The decoders of JSON documents, of journals and of events."""

import gzip
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import replace

import trio
from fuzz_base import DIGEST, Decoder, in_memory, shared_memory

from bootseer.checkpoint.admin import resumable_file
from bootseer.core import access_log, event, warm_plan
from bootseer.core.fields import open_document
from bootseer.core.ranges import ByteRange
from bootseer.env.client import key, messages
from bootseer.env.server.run_request import read_request
from bootseer.env.snapshot import manifest, repository
from bootseer.errors import ConfigError, Corrupt, NotFound
from bootseer.startup import run_events
from bootseer.store.api.base import publish, read_all
from bootseer.store.memory import MemoryStore
from bootseer.units import MIB

# JSON.


def documents(name, samples, decode, allowed=(Corrupt,)):
    return Decoder(
        name,
        lambda: [s if isinstance(s, bytes) else json.dumps(s).encode() for s in samples()],
        decode,
        allowed,
    )


def _plan():
    known = warm_plan.PlannedImage("/images/a.sqsh", "sqfs1-a", 1 << 30, 1 << 20, 5, 6)
    run = warm_plan.PlannedRun("run", 7, "cold", 8)
    return warm_plan.WarmPlan("user", "key", (known, replace(known, path="env://key")), (run,))


def run_plan(data):
    found = warm_plan.decode(data, "plan")
    assert warm_plan.decode(found.encode(), "plan") == found


def _reads():
    file = access_log.FileReads("a/step-12/b", (1,), (ByteRange(0, 9), ByteRange(20, 30)))
    return access_log.NodeReads("user", "key", 2, 1, (file, file))


def run_reads(data):
    found = access_log.decode(data, "reads", "user", "key")
    assert access_log.decode(found.encode(), "reads", "user", "key") == found
    for file in found.files[:100]:
        access_log.numbered(file.path)
        access_log.newest_components(file.path, lambda folder: ["step-3", "step-20"])
        access_log.expand(file, lambda folder: ["step-3", "step-20"])


def _event():
    return event.Event("image.prefetch", 1, 2, "agent", event.OK, 3, -1, "it").document()


def run_event(data):
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    found = event.from_json(value, "event")
    assert event.from_json(found.document(), "event") == found


def parts():
    return (
        key.KeyPart("command", "pip install x", "what is run"),
        key.KeyPart("python", "3.11", ""),
    )


def sealed_key(data, *above):
    """Repair the key of a document of a key, which may be a part of the one that this is."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data, None
    for name in above or (None,):
        part = document.get(name) if name and isinstance(document, dict) else document
        with suppress(Exception):
            part["key"] = key.key_of(key.KeyPart(**item) for item in part["parts"])
            if name == "parts":
                document["key"] = part["key"]
    with suppress(ValueError):
        return json.dumps(document).encode(), document
    return data, None


def run_key(data):
    _, document = sealed_key(data)
    found = key.from_document(document, "key")
    assert key.from_document(key.to_document(found), "key") == found


def _snapshot():
    return manifest.Snapshot(
        key=key.key_of(parts()), parts=parts(), targets=("/venv", "/x/y"),
        bases=(manifest.EMPTY, DIGEST), capture="0123456789abcdef", digest=DIGEST, image=DIGEST,
        image_bytes=4096, index=DIGEST, files=3, content_bytes=5,
        outside=("302f6c",), findings=(manifest.Finding("owner", "/venv/a", "somebody's"),),
        captured_ns=5, captured_by="user", node="node", command_ms=7,
    )  # fmt: skip


def run_snapshot(data):
    sealed, document = sealed_key(data, "parts")
    wanted = document.get("key") if isinstance(document, dict) else ""
    found = manifest.decode(sealed, "snapshot", wanted if isinstance(wanted, str) else "")
    assert manifest.decode(found.encode(), "snapshot", found.key) == found
    assert isinstance(found.is_whole, bool)
    for path in found.outside_paths:
        assert isinstance(path, bytes)


def _request():
    listed = key.to_document(parts())
    return {"op": "env", "targets": ["/venv"], "names": ["venv"], "mode": "auto",
            "environ": {"TMPDIR": "/tmp"}, "key": listed, "as_empty": listed, "read_only": False,
            "force": True, "captures": True, "waits": False, "wait_s": 5}  # fmt: skip


def run_request(data):
    sealed, _ = sealed_key(data, "key", "as_empty")
    message = messages.FROM_CLIENT.decode(sealed)
    if isinstance(message, messages.Request):
        folder = os.open("/", os.O_RDONLY)
        try:
            assert read_request(message, [folder] * 2 * len(message.targets)).key
        finally:
            os.close(folder)


def run_document(data):
    fields = open_document(data, "claim", "bootseer lease", 1)
    fields.text("who", 300)
    fields.text("token", 64)
    fields.count("until_ns")


async def _from_store(data):
    store = MemoryStore()
    await publish(store, repository._last_object(["/venv"]), data)
    await publish(store, repository._STATS, data)
    await repository.read_stats(store)
    await repository.read_run(store, ["/venv"])


def run_catalog(data):
    trio.run(_from_store, sealed_key(data)[0])


def run_key_file(data):
    with in_memory(data) as path:
        repository._key_in(path)


def run_journal(data):
    """The numbers of pieces, a line for each time that they were on the disk."""
    for line in data.splitlines(keepends=True)[:50]:
        pieces = resumable_file._pieces(line, 2000)
        assert pieces is None or (set(pieces) <= set(range(2000)) and len(pieces) <= 2000)


def run_landing(data):
    """A journal beside a file that an export goes on with; a line that is good is kept."""
    with tempfile.TemporaryDirectory(dir=shared_memory()) as folder:
        path = os.path.join(folder, "file")
        for beside, size in zip(
            resumable_file._beside(path), (resumable_file.JOURNAL_LEAST_BYTES, 0), strict=True
        ):
            with open(beside, "wb") as file:
                file.truncate(size)
                if not size:
                    file.write(data)
        landed = resumable_file.ResumableFile(
            path, resumable_file.JOURNAL_LEAST_BYTES, MIB, {"a": "b"}
        )
        assert landed.done <= set(range(64))
        landed.discard()
        landed.close()


def _journal():
    header = {"version": 1, "piece_bytes": MIB, "source": {"a": "b"}}
    return [json.dumps(header, sort_keys=True).encode() + b"\n0-3, 5\n7\n63\n"]


def _node_run():
    happened = (event.from_json(_event(), ""),)
    run = run_events.NodeRun("run", 5, "key", "node", "cold", 7, happened)
    return gzip.decompress(run.encode())


def run_node_run(data):
    found = run_events.decode(gzip.compress(data, 1), "events")
    encoded = found.encode()  # what is no UTF-8 has become question marks
    assert run_events.decode(encoded, "events").encode() == encoded


def run_packed(data):
    run_events.decode(data, "events")


def _event_pack():
    store = MemoryStore()
    one = run_events.decode(gzip.compress(_node_run()), "events")
    trio.run(run_events.publish_pack, store, one, one.encode())
    (info,) = trio.run(store.list, f"runs/{one.run}")
    return trio.run(read_all, store, info.name, 1 << 20)


def run_event_pack(data):
    assert len(run_events.decode_pack(data, "pack")) <= run_events.MAX_PACKED


DOCUMENTS = [
    documents("plan", lambda: [_plan().encode()], run_plan),
    documents("reads", lambda: [_reads().encode()], run_reads),
    documents("event", lambda: [_event()], run_event),
    documents("key", lambda: [key.to_document(parts())], run_key),
    documents("snapshot", lambda: [_snapshot().encode()], run_snapshot),
    documents("env_request", lambda: [_request()], run_request),
    documents("claim", lambda: [{"format": "bootseer lease", "version": 1, "who": "a",
                                 "token": "b", "until_ns": 3}], run_document),
    documents("catalog", lambda: [key.to_document(parts()), {"mount_s": 3, "unpack_s": 5.5}],
              run_catalog, (Corrupt, NotFound)),
    documents("key_file", lambda: [{"key": DIGEST}], run_key_file, (ConfigError, NotFound)),
    Decoder("journal", lambda: [b"0-3, 5\n7, 9-1999\n", b"1\n"], run_journal),
    Decoder("landing", _journal, run_landing),
    documents("events", lambda: [_node_run(), _node_run().replace(b'"it"', b'"\\ud800"')],
              run_node_run),
    Decoder("packed_events", lambda: [gzip.compress(_node_run())], run_packed),
    Decoder("event_pack", lambda: [_event_pack()], run_event_pack),
]  # fmt: skip
