"""What ``bootseer ckpt`` has found, as text and as JSON."""

from __future__ import annotations

import stat
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict

from bootseer.checkpoint.admin.bench import Row
from bootseer.checkpoint.admin.describe import FileDescription
from bootseer.checkpoint.admin.progress import LINK
from bootseer.checkpoint.admin.verify import VerifyResult
from bootseer.checkpoint.files.entries import FileEntry
from bootseer.cli.terminal.console import console, new_table, print_json
from bootseer.cli.terminal.runner import print_line
from bootseer.store.api.base import Unlisted
from bootseer.units import MIB, NS_PER_S, format_size


def listing(entries: Sequence[FileEntry], above: str, *, long: bool, as_json: bool) -> None:
    """Print the entries of a folder by their names below it."""
    cut = len(above) + 1 if above else 0
    if as_json:
        print_json([_document(e, e.name[cut:]) for e in entries])
        return
    width = max((len(str(entry.size_bytes)) for entry in entries), default=0)
    for entry in entries:
        name = entry.name[cut:] + ("/" if entry.is_folder else "")
        if long:
            kind = stat.S_IFDIR if entry.is_folder else stat.S_IFREG
            mode = stat.filemode(kind | (entry.info.mode or 0))
            if entry.info.mode is None:
                mode = f"{mode[0]}{'?' * 9}"
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.info.mtime_ns // NS_PER_S))
            print_line(f"{mode}  {entry.size_bytes:>{width}}  {when}  {_form(entry):<22}  {name}")
        else:
            print_line(f"{name}  (damaged)" if entry.problem else name)
        if long and entry.problem:
            print_line(f"  {entry.problem}")


def unlisted(found: Sequence[Unlisted]) -> None:
    """Print on stderr which entries a listing left out."""
    for one in found:
        what = f"{one.problem}; it is left out" if one.problem else f"left out, {LINK}: {one.name}"
        print_line(f"bootseer: {what}", err=True)


def description(found: FileDescription, *, as_json: bool) -> None:
    """Print details of a file."""
    entry, layout = found.entry, found.entry.layout
    document = _document(entry, entry.name)
    document |= {"owner": entry.info.owner, "group": entry.info.group, "whole": found.is_whole}
    if layout is not None:
        document |= {
            "units": len(layout.units),
            "digest": layout.digest,
            "parts_folder": found.folder,
            "parts": [asdict(part) for part in found.parts],
        }
    if found.hosts:
        document["hosts"] = list(found.hosts)
    document["problems"] = [str(problem) for problem in found.problems]
    if as_json:
        print_json(document)
        return
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.info.mtime_ns // NS_PER_S))
    rows = {
        "name": entry.name,
        "size": f"{format_size(entry.size_bytes)} ({entry.size_bytes} bytes)",
        "time": when,
        "mode": stat.filemode(entry.info.mode or 0)[1:] if entry.info.mode is not None else "",
        "owner": " ".join(filter(None, (entry.info.owner, entry.info.group))),
        "form": _form(entry),
        "machines": ", ".join(found.hosts),
        "parts in": found.folder,
        "digest": layout.digest if layout else "",
        "whole": "yes, as far as can be told without reading it" if found.is_whole else "no",
    }
    for title, text in rows.items():
        if text:
            print_line(f"{title:<9} {text}")
    if found.parts:
        print_line("part           bytes          needed  machines")
    for part in found.parts:
        there = "missing" if part.size_bytes is None else str(part.size_bytes)
        hosts = ", ".join(part.hosts)
        print_line(f"{part.index:04d}  {there:>14}  {part.need_bytes:>14}  {hosts}".rstrip())
    for problem in found.problems:
        print_line(str(problem))


def findings(found: VerifyResult, *, as_json: bool) -> None:
    """Print the problems that a verification found."""
    if as_json:
        document = {
            "files": found.progress.total_files,
            "whole_files": found.progress.done_files,
            "bytes": found.progress.moved_bytes,
            "problems": [asdict(p) | {"message": str(p)} for p in found.problems],
            "notes": found.notes,
            "repaired": found.repaired,
        }
        print_json(document)
        return
    for line in (*map(str, found.problems), *found.notes, *found.repaired):
        print_line(line)


def rates(rows: Sequence[Row], size_bytes: int, *, as_json: bool) -> None:
    """Print the rates of a benchmark."""
    if as_json:
        document = {
            "size_bytes": size_bytes,
            "bytes_per_s": [
                {"form": row.form, "what": row.what, "rates": row.rates} for row in rows
            ],
        }
        print_json(document)
        return
    table = new_table()
    table.add_column(f"{format_size(size_bytes)}, MB/s")
    table.add_column("")
    for name in ("min", "median", "max"):
        table.add_column(name, justify="right")
    for row in rows:
        shown = (min(row.rates), statistics.median(row.rates), max(row.rates))
        table.add_row(row.form, row.what, *(f"{rate / 1e6:.0f}" for rate in shown))
    console().print(table)


def _form(entry: FileEntry) -> str:
    if entry.is_folder:
        return "folder"
    if entry.problem is not None:
        return "damaged"
    if entry.layout is None:
        return "plain"
    unit = entry.layout.unit_bytes
    shown = f"{unit // MIB} MiB" if unit >= MIB else f"{unit // 1024} KiB"
    return f"striped {shown} x {entry.layout.parts}"


def _document(entry: FileEntry, name: str) -> dict[str, object]:
    layout = entry.layout
    return {
        "name": name,
        "kind": _form(entry).partition(" ")[0],
        "size_bytes": entry.size_bytes,
        "mtime_ns": entry.info.mtime_ns,
        "mode": entry.info.mode,
        "unit_bytes": layout.unit_bytes if layout else None,
        "part_count": layout.parts if layout else None,
        "problem": str(entry.problem) if entry.problem else None,
    }
