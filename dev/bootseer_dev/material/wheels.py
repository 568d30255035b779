"""A package index of real wheels: PyTorch without its CUDA parts, transformers, numpy and so on.

PyTorch's wheel from PyPI is the one for CUDA: its libraries name those of CUDA, 4 GB in wheels of
their own, of which a machine without a GPU calls nothing. Stand-ins take their place: wheels with
the same names and versions, and libraries with the symbols that PyTorch's refer to.
"""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.parser import BytesParser
from html import escape
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from bootseer.errors import Unavailable
from bootseer.units import MIB
from bootseer_dev.material.images import Say

TORCH = "torch"
OTHERS = ("transformers", "numpy")
_CUDA_WHEEL = re.compile(r"nvidia-|cuda-|triton$")
_CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl)")
_LIBRARIES_OF = "cuda-toolkit"
_LIBRARIES_AT = "nvidia/cu13/lib"
"""Where PyTorch's libraries look for those of this wheel."""
_VERSION_FILE = re.compile(r"Version: \d+\s+File: (\S+)")
_VERSION_NAME = re.compile(r"Name: (\S+)\s+Flags:")
_OF_PYTHON = re.compile(r"_?Py")
_SYMBOL_COLUMNS = 8


def make_wheelhouse(folder: Path, say: Say) -> None:
    """Fill a folder with wheels, once, and with an index of them below "simple".

    Args:
        folder: that is made if it is missing.
        say: told what is going on.

    Raises:
        Unavailable: the wheels cannot be had.
    """
    if (folder / "simple").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    say("fetching PyTorch, 0.5 GB")
    download_wheels(folder, "--no-deps", TORCH)
    [torch] = folder.glob(f"{TORCH}-*.whl")
    needs = [need for need in requirements(torch) if need.marker is None or need.marker.evaluate()]
    say("fetching transformers, numpy and what all of them need")
    download_wheels(folder, *OTHERS, *(str(n) for n in needs if not _CUDA_WHEEL.match(n.name)))
    say("making stand-ins for CUDA")
    for need in needs:
        if _CUDA_WHEEL.match(need.name):
            is_home = canonicalize_name(need.name) == _LIBRARIES_OF
            files = stand_in_libraries(torch) if is_home else {}
            write_wheel(folder, need, {f"{_LIBRARIES_AT}/{n}": data for n, data in files.items()})
    write_index(folder)


def requirements(wheel: Path) -> list[Requirement]:
    """Return what a wheel says that it needs."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if re.fullmatch(r"[^/]*\.dist-info/METADATA", n)]
        metadata = BytesParser().parsebytes(archive.read(name), headersonly=True)
    return [
        need
        for need in map(Requirement, metadata.get_all("Requires-Dist", []))
        if need.marker is None or "extra" not in str(need.marker)
    ]


def write_wheel(folder: Path, need: Requirement, files: Mapping[str, bytes]) -> Path:
    """Write a wheel that satisfies a requirement, extras and all, with these files in it."""
    lowest = [s.version for s in need.specifier if s.operator in ("==", "~=", ">=")]
    name, version = canonicalize_name(need.name).replace("-", "_"), (lowest or ["1"])[0]
    about = f"{name}-{version}.dist-info"
    extras = "".join(f"Provides-Extra: {extra}\n" for extra in sorted(need.extras))
    all_files = {
        **files,
        f"{about}/METADATA": (
            f"Metadata-Version: 2.1\nName: {need.name}\nVersion: {version}\n{extras}"
        ).encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: bootseer\nRoot-Is-Purelib: false\n"
        b"Tag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={_record_digest(data)},{len(data)}\n" for path, data in all_files.items()
    )
    all_files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in all_files.items():
            archive.writestr(member, data)
    return path


def write_index(folder: Path) -> None:
    """Write an index of a folder's wheels below "simple", as PEP 503 has it."""
    projects: dict[str, list[Path]] = {}
    for wheel in sorted(folder.glob("*.whl")):
        projects.setdefault(parse_wheel_filename(wheel.name)[0], []).append(wheel)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        simple = Path(made) / "simple"
        for project, wheels in projects.items():
            page = simple / project / "index.html"
            page.parent.mkdir(parents=True)
            page.write_text(_page((w.name, f"../../{w.name}#sha256={_digest(w)}") for w in wheels))
        (simple / "index.html").write_text(_page((name, f"{name}/") for name in projects))
        simple.rename(folder / "simple")


def _page(links: Iterable[tuple[str, str]]) -> str:
    lines = (f'<a href="{escape(target)}">{escape(text)}</a><br>' for text, target in links)
    return "<!DOCTYPE html>\n<html><body>\n" + "\n".join(lines) + "\n</body></html>\n"


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(MIB):
            digest.update(data)
    return digest.hexdigest()


def _record_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def download_wheels(folder: Path, *what: str) -> None:
    """Have pip put wheels into a folder; `what` is what pip's download is told.

    Raises:
        Unavailable: they cannot be had.
    """
    argv = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download"]
    done = subprocess.run(
        [*argv, "--only-binary=:all:", "-d", str(folder), *what], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise Unavailable(f"pip cannot fetch {' '.join(what)}:\n{done.stderr.strip()}")


@dataclass(slots=True)
class _Library:
    """What a shared library refers to, and has.

    Attributes:
        needed: libraries.
        defined: symbols.
        versioned: symbols that it needs, by the library that they are of and their version.
        loose: symbols that it needs of whatever library.
    """

    needed: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)
    versioned: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    loose: set[str] = field(default_factory=set)


def stand_in_libraries(wheel: Path) -> dict[str, bytes]:
    """Compile a stand-in for each CUDA library that libraries in a wheel need; returns ELF files.

    Raises:
        Unavailable: there is no compiler, or no readelf.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if re.search(r"\.so(\.[\d.]+)?$", n)]
            archive.extractall(folder, names)
        libraries = [_look(folder / name) for name in names]
        ours = {Path(name).name for name in names}
        needed = set().union(*(library.needed for library in libraries)) - ours
        cuda = sorted(name for name in needed if _CUDA_LIBRARY.match(name))
        if not cuda:
            return {}
        elsewhere = [_look(path) for path in _on_this_machine(needed - set(cuda))]
        known = set().union(*(library.defined for library in (*libraries, *elsewhere)))
        loose = set().union(*(library.loose for library in libraries)) - known
        symbols = {name: {"": loose if name == cuda[0] else set()} for name in cuda}
        for (name, version), of_it in chain.from_iterable(li.versioned.items() for li in libraries):
            if name in symbols:
                symbols[name].setdefault(version, set()).update(of_it)
        return {name: _compile(folder, name, versions) for name, versions in symbols.items()}


def _look(path: Path) -> _Library:
    """Read a library's dynamic section."""
    found = _Library()
    found.needed.update(re.findall(r"\(NEEDED\).*\[(.*)\]", _run("readelf", "-dW", str(path))))
    file_of, file = {}, ""
    for line in _run("readelf", "-VW", str(path)).splitlines():
        if match := _VERSION_FILE.search(line):
            file = match[1]
        elif file and (match := _VERSION_NAME.search(line)):
            file_of[match[1]] = file
    for line in _run("readelf", "--dyn-syms", "-W", str(path)).splitlines():
        columns = line.split()
        if len(columns) < _SYMBOL_COLUMNS or not columns[0].endswith(":"):
            continue
        name, _, version = columns[7].partition("@")
        if columns[6] != "UND":
            found.defined.add(name)
        elif version in file_of:
            found.versioned.setdefault((file_of[version], version), set()).add(name)
        elif columns[4] != "WEAK" and not _OF_PYTHON.match(name):
            found.loose.add(name)
    return found


def _on_this_machine(names: set[str]) -> Iterator[Path]:
    for name in sorted(names):
        path = Path(_run("gcc", f"-print-file-name={name}").strip())
        if path.is_absolute():
            yield path


def _compile(folder: Path, name: str, versions: Mapping[str, set[str]]) -> bytes:
    """Compile a library whose functions say that something is wrong, whatever they are asked."""
    source, script, library = folder / "stub.c", folder / "stub.map", folder / name
    functions = sorted(set().union(*versions.values()))
    source.write_text("".join(f"int {symbol}(void) {{ return 999; }}\n" for symbol in functions))
    nodes = "".join(
        f"{version} {{ global: {'; '.join(sorted(of_it))}; }};\n"
        for version, of_it in versions.items()
        if version
    )
    link = [f"-Wl,-soname,{name}"]
    if nodes:
        script.write_text(nodes)
        link.append(f"-Wl,--version-script={script}")
    _run("gcc", "-w", "-fno-builtin", "-shared", "-fPIC", *link, "-o", str(library), str(source))
    return library.read_bytes()


def _run(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError as error:
        raise Unavailable(f"{argv[0]} is missing: install gcc and binutils") from error
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{' '.join(argv)} failed:\n{error.stderr.strip()}") from error
