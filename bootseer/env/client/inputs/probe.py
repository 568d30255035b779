"""Facts about the place where a command runs: Python, installer, platform, accelerator."""

from __future__ import annotations

import glob
import json
import os
import re
import select
import signal
import site
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bootseer.env.client.inputs.digest import KeyProblem, printable
from bootseer.env.client.inputs.python_facts import python_facts

if TYPE_CHECKING:
    import subprocess

PROBE_TIMEOUT_S = 20.0
"""A Python whose packages are on a slow share takes seconds to begin."""

SMI_TIMEOUT_S = 5.0
MAX_OUTPUT_BYTES = 64 << 10
_MAX_FIELD = 1000

_CALL = """
import json
print(json.dumps(python_facts(sys.argv[1], sys.path)))
"""
_OTHER_PREFIX = ("PYTHONHOME", "PYTHONPATH", "PYTHONPLATLIBDIR", "__PYVENV_LAUNCHER__")


class PythonFacts(NamedTuple):
    """What a Python reports about itself.

    Attributes:
        implementation: "CPython".
        version: "3.11.2".
        abi: tag of extension modules: "cpython-311-x86_64-linux-gnu".
        platform: as in the tags of wheels: "linux-x86_64".
        prefix: folder to which it installs; not `base_prefix` in a virtual environment.
        base_prefix: folder in which it is installed.
        machine: "x86_64".
        libc: "glibc 2.36", "musl 1.2.4".
        installer: version of the installer that runs on it, "none" without one.
    """

    implementation: str
    version: str
    abi: str
    platform: str
    prefix: str
    base_prefix: str
    machine: str
    libc: str
    installer: str

    def __str__(self) -> str:
        """Return the text for a key's part."""
        where = f"in {self.base_prefix}"
        if self.prefix != self.base_prefix:
            where = f"virtual environment {self.prefix} of {self.base_prefix}"
        return f"{self.implementation} {self.version}, {self.abi}, {self.platform}, {where}"


def run(
    arguments: Sequence[str], environ: Mapping[str, str], timeout_s: float, cwd: str | None = None
) -> str | None:
    """Run a program that ends soon, and return its output.

    Returns:
        None if it cannot be run, fails, prints too much, or does not end in time; it and all
        processes of its session are killed then.
    """
    import subprocess  # its own imports take long where a container's files are slow

    try:
        process = subprocess.Popen(
            list(arguments),
            env=dict(environ),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError):
        return None
    output: bytes | None = None
    try:
        output = _output(process, time.monotonic() + timeout_s)
    finally:
        if output is None:
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()
        process.wait()
    if output is None or process.returncode:
        return None
    return output.decode("utf-8", "replace")


def ask_python(path: str, environ: Mapping[str, str], distribution: str = "pip") -> PythonFacts:
    """Ask a Python for its facts.

    Args:
        path: of the program.
        environ: that it runs with.
        distribution: installer whose version is wanted.

    Raises:
        KeyProblem: it does not answer.
    """
    try:
        if is_this_python(path):
            # As with -I, which leaves the folder or archive of the program out.
            fields = python_facts(distribution, sys.path[1:])
        else:
            script = [path, "-I", "-c", _source() + _CALL, distribution]
            fields = json.loads(run(script, environ, PROBE_TIMEOUT_S) or "")
        texts = [printable(str(fields[name])) for name in PythonFacts._fields]
    except (ValueError, KeyError, TypeError) as error:
        raise KeyProblem(
            f"{path}: no answer within {PROBE_TIMEOUT_S:.0f} s to the question which Python it "
            f"is, which is part of the key; try `{path} -I -c 'import json, sysconfig'`"
        ) from error
    return PythonFacts(*(text[:_MAX_FIELD] for text in texts))


def is_this_python(path: str) -> bool:
    """Whether this process can tell what a Python is, without starting another.

    That is so in containers, where it would take seconds: `bootseer-env` is an archive that runs on
    the first Python in PATH.
    """
    try:
        is_same = os.path.samefile(path, sys.executable)
    except OSError:
        return False
    return (
        is_same
        and os.path.dirname(path) == os.path.dirname(sys.executable)  # no virtual environment
        and os.path.isfile(sys.path[0])
        and not any(name in os.environ for name in _OTHER_PREFIX)
        and not sys.flags.no_site
        and not (site.ENABLE_USER_SITE and os.path.isdir(site.getusersitepackages()))
    )


def _source() -> str:
    """Return the source of `python_facts`, also from an archive."""
    loader = python_facts.__globals__["__loader__"]
    source: str = loader.get_source(python_facts.__module__)
    return source


def installer_version(
    tool: str, program: str, environ: Mapping[str, str], cwd: str | None = None
) -> str:
    """Return the version of an installer that does not run on the Python it installs for.

    uv and micromamba are asked, which takes milliseconds. conda would take a second, so the records
    of its installation are read.
    """
    if tool == "conda" and os.path.basename(program) != "micromamba":
        folder = os.path.dirname(os.path.dirname(os.path.realpath(program)))
        name = os.path.basename(program)
        records = glob.glob(os.path.join(glob.escape(folder), "conda-meta", f"{name}-[0-9]*.json"))
        return " ".join(sorted(os.path.basename(path)[: -len(".json")] for path in records))
    said = run([program, "--version"], environ, SMI_TIMEOUT_S, cwd)
    return printable((said or "").strip().partition("\n")[0])[:_MAX_FIELD]


def accelerator(environ: Mapping[str, str], program: str | None, root: str = "/") -> str:
    """Return the kinds of accelerators and the version of the driver, "none" without any.

    The number of a kind is left out: the result does not depend on it.

    Args:
        environ: that `program` runs with.
        program: nvidia-smi, if there is one.
        root: folder with proc and sys.
    """
    found = _nvidia(environ, program, root) + _amd(root)
    return "; ".join(found) or "none"


def _nvidia(environ: Mapping[str, str], program: str | None, root: str) -> list[str]:
    version = _small(os.path.join(root, "proc/driver/nvidia/version"))
    major = re.search(r"Module\s(?:.*?\s)?(\d+)\.\d", version)
    if not major:
        return []
    query = [program or "", "--query-gpu=compute_cap,name", "--format=csv,noheader"]
    said = run(query, environ, SMI_TIMEOUT_S) if program else None
    models = {
        f"{name.strip()} (compute capability {capability.strip()})"
        for capability, found, name in (line.partition(",") for line in (said or "").splitlines())
        if found
    }
    if not models:
        paths = glob.glob(os.path.join(glob.escape(root), "proc/driver/nvidia/gpus/*/information"))
        named = (re.search(r"^Model:\s*(.+?)\s*$", _small(path), re.MULTILINE) for path in paths)
        models = {model[1] for model in named if model}
    return [f"NVIDIA driver {major[1]}", *(printable(model) for model in sorted(models))]


def _amd(root: str) -> list[str]:
    nodes = glob.glob(
        os.path.join(glob.escape(root), "sys/class/kfd/kfd/topology/nodes/*/properties")
    )
    targets = set()
    for path in nodes:
        version = re.search(r"^gfx_target_version\s+(\d+)$", _small(path), re.MULTILINE)
        number = int(version[1]) if version else 0
        if number:  # processors have 0
            targets.add(f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}")
    if not targets:
        return []
    driver = printable(_small(os.path.join(root, "sys/module/amdgpu/version")).strip())
    return [f"AMD driver {driver or 'of the kernel'}", *sorted(targets)]


def _small(path: str) -> str:
    """Read the beginning of a file of the kernel, "" if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 16 << 10).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def _output(process: subprocess.Popen[bytes], until_s: float) -> bytes | None:
    """Read the output of a process; None if it is too much, or does not end in time."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    output = b""
    while len(output) <= MAX_OUTPUT_BYTES:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
            return None
        chunk = os.read(fd, 16 << 10)
        if not chunk:
            import subprocess

            try:
                process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                return None
            return output
        output += chunk
    return None
