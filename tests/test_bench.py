"""What the measurements make of what jobs tell."""

import io
import json
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from bootseer_dev.bench import overhead
from rich.console import Console

from bootseer.errors import Unavailable

PROLOG = {"prolog": {"start_s": 0.0, "end_s": 0.03}, "epilog": {"start_s": 9.0, "end_s": 9.05}}
READ = PROLOG | {"image.identify": {"start_s": 0.25, "end_s": 0.3}}
MOUNTED = PROLOG | {"checkpoint.mount": {"start_s": 0.01, "end_s": 0.02}}


def test_a_start_that_is_over_before_the_first_read_does_not_count():
    assert overhead.added_ms([READ, PROLOG, READ]) == [250.0, 250.0]
    assert overhead.added_ms([PROLOG]) == []


class Lab:
    """Jobs on two nodes, of whose image none, some or all are over before it is read."""

    def __init__(self, told):
        self.told = iter(told)
        self.cluster = SimpleNamespace(
            node_names=["n1", "n2"],
            run=lambda *_, **__: SimpleNamespace(stdout=str(time.time_ns())),
            unmount_share=lambda: None,
        )

    def put_image(self): ...

    def mount_share(self): ...

    def assert_clean(self): ...

    def start(self):
        return "true"

    def srun(self, *options, command=""):
        return any("ckpt" in option for option in options)

    def stages(self, is_mounted, node):
        return MOUNTED if is_mounted else next(self.told)


@pytest.mark.parametrize(
    ("told", "count"), [([READ] * 4, 4), ([READ, PROLOG, PROLOG, READ], 2), ([PROLOG] * 4, 0)]
)
def test_how_many_starts_came_to_a_read_is_told(told, count, tmp_path, monkeypatch):
    @contextmanager
    def cluster(name, **_):
        yield Lab(told)

    monkeypatch.setattr(overhead, "_cluster", cluster)
    monkeypatch.setattr(overhead.site, "install", lambda _: None)
    monkeypatch.setattr(overhead, "_memory", lambda _: {"broker": 1.0})
    out = io.StringIO()
    overhead.run_bench(tmp_path, Console(file=out, width=200), pairs=2, starts=2)
    assert f"in {count} of 4\n" in out.getvalue()
    written = json.loads((tmp_path / "bench.json").read_text())["figures"]
    counts = {figure["name"]: figure["n"] for figure in written}
    assert counts.get("prolog_added_ms", 0) == count
    assert counts["checkpoint_mount_ms"] == 4
    assert (counts["start_cpu_s"], counts["epilog_ms"]) == (2, 4)
    assert counts["job_pss_mib"] == 1


def test_what_a_slow_machine_does_not_come_to_is_left_out(tmp_path, monkeypatch):
    """The measurements were lost with the one that failed."""

    class SlowLab(Lab):
        def stages(self, is_mounted, node):
            return PROLOG

    @contextmanager
    def cluster(name, **_):
        yield SlowLab([])

    def not_in_time(lab):
        raise Unavailable("not within 120 s: the hot set in memory")

    monkeypatch.setattr(overhead, "_cluster", cluster)
    monkeypatch.setattr(overhead.site, "install", lambda _: None)
    monkeypatch.setattr(overhead, "_memory", not_in_time)
    out = io.StringIO()
    overhead.run_bench(tmp_path, Console(file=out, width=200), pairs=2, starts=2)
    assert "left out: not within 120 s" in out.getvalue()
    written = json.loads((tmp_path / "bench.json").read_text())["figures"]
    names = {figure["name"] for figure in written}
    names = {name for name in names if not name.startswith("first_instruction_")}
    assert names == {
        *("srun_absent_ms", "srun_unused_ms", "checkpoint_prolog_ms"),
        *("start_cpu_s", "epilog_ms"),
    }
