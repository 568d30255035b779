"""The fake SPANK host: the plugin's C sources under ASan and UBSan, driven without Slurm."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bootseer.slurm.plugin import build, files

HERE = Path(__file__).parent
SPANK = files.share("spank")
STRICT = ["-std=gnu11", "-g", "-Wall", "-Wextra", "-Wconversion", "-Werror"]


@dataclass
class Seen:
    """What the host reported."""

    returncode: int
    seconds: float
    lines: list[str]

    def of(self, kind: str) -> list[str]:
        """The lines of one kind, without their first word."""
        return [line.partition(" ")[2] for line in self.lines if line.startswith(f"{kind} ")]

    def hooks(self) -> set[str]:
        """The hooks' return values."""
        return {line.rpartition(" ")[2] for line in self.of("rc")}


@dataclass
class Host:
    """Runs scenarios; each is a new process, as each of Slurm's is."""

    program: Path
    folder: Path
    arguments: list[str] = field(default_factory=list)

    @property
    def libexec(self) -> Path:
        """Where the entry scripts are."""
        return self.folder / "libexec"

    @property
    def run_dir(self) -> Path:
        """Where the agents' folders are."""
        return self.folder / "run"

    @property
    def job_dir(self) -> Path:
        """The folder of the host's job."""
        return self.run_dir / "jobs" / "4711"

    def script(self, name: str, body: str) -> None:
        """Write an entry script."""
        path = self.libexec / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run(
        self,
        context: str,
        *,
        options: dict[str, str | bytes | None] | None = None,
        env: dict[str, str | bytes] | None = None,
        job_env: dict[str, str | bytes] | None = None,
        arguments: tuple[str, ...] = (),
        step: int = 0,
        job_name: str | None = "job",
        argv: tuple[str, ...] = ("srun",),
        optind: int = 1,
        folder: str = "",
        container_folder: str = "",
        stderr: int = subprocess.PIPE,
    ) -> Seen:
        """Run one scenario, check what must hold in every one, and return what was seen."""
        records: list[bytes] = [b"c " + context.encode(), b"s %d" % step, b"i %d" % optind]
        if job_name is not None:
            records.append(b"n " + job_name.encode())
        for record, place in ((b"f ", folder), (b"F ", container_folder)):
            records += [record + place.encode()] if place else []
        places = [f"libexec={self.libexec}", f"run_dir={self.run_dir}"]
        for argument in (*places, *self.arguments, *arguments):
            records.append(b"a " + argument.encode())
        for name, value in (options or {}).items():
            records.append(f"O {name}".encode() if value is None else _pair("o", name, value))
        records += [_pair("p", name, value) for name, value in (env or {}).items()]
        records += [_pair("e", name, value) for name, value in (job_env or {}).items()]
        scenario = self.folder / "scenario"
        scenario.write_bytes(b"\0".join(records) + b"\0")
        started = time.monotonic()
        result = subprocess.run(
            argv,
            executable=self.program,
            env={
                "FAKE_SCENARIO": str(scenario),
                "PATH": os.environ["PATH"],
                "ASAN_OPTIONS": "detect_leaks=1",
                "UBSAN_OPTIONS": "halt_on_error=1",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            timeout=30,
        )
        seconds = time.monotonic() - started
        # Both sanitizers report on stderr, where nothing else writes.
        assert not result.stderr, result.stderr.decode(errors="replace")
        lines = result.stdout.decode(errors="surrogateescape").removesuffix("\n").split("\n")
        if result.returncode == 0:
            assert lines[-2:] == ["leaked descriptors 0", "leaked children 0"]
        return Seen(result.returncode, seconds, lines)


def _pair(kind: str, name: str, value: str | bytes) -> bytes:
    return f"{kind} {name}=".encode() + (value.encode() if isinstance(value, str) else value)


def compile_c(*arguments: str | Path) -> None:
    """Compile, or skip where there is no compiler or no Slurm header."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    if not Path("/usr/include/slurm/spank.h").exists():
        pytest.skip("no slurm/spank.h: install libslurm-dev")
    subprocess.run(["cc", *STRICT, *arguments], check=True)


@pytest.fixture(scope="session")
def host_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host")
    sources = [SPANK / f"{name}.c" for name in build.SOURCES]
    options = (f"-I{SPANK}", "-fsanitize=address,undefined", *sources, HERE / "fake_host.c")
    # Slurm's commands export their symbols to plugins, too.
    compile_c("-rdynamic", *options, "-o", folder / "host")
    compile_c(*options, "-o", folder / "nameless")
    compile_c("-shared", "-fPIC", HERE / "advice_stub.c", "-o", folder / "stub.so")
    return folder / "host"


@pytest.fixture
def host(host_program: Path, tmp_path: Path) -> Host:
    return _host(host_program, tmp_path)


@pytest.fixture
def nameless_host(host_program: Path, tmp_path: Path) -> Host:
    """A host that exports nothing to plugins."""
    return _host(host_program.with_name("nameless"), tmp_path)


def _host(program: Path, folder: Path) -> Host:
    made = Host(program, folder)
    made.libexec.mkdir()
    shutil.copy(program.with_name("stub.so"), made.libexec / "bootseer-advice.so")
    (made.run_dir / "jobs").mkdir(parents=True)
    return made


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait for something that another process is about to do."""

    def wait(done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 5
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    return wait


@pytest.fixture(scope="session")
def options_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """options.c as a library of its own."""
    library = tmp_path_factory.mktemp("options") / "options.so"
    compile_c("-shared", "-fPIC", "-O2", SPANK / "options.c", "-o", library)
    return library
