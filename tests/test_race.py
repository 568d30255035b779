"""What the race makes of its starts, and the jobs that it runs."""

import json
import subprocess
from dataclasses import replace

import pytest
from bootseer_dev.race import report
from bootseer_dev.race.contestants import (
    FLOOR,
    Places,
    contestants,
    on_local_copies,
)
from bootseer_dev.race.fetch_shard import segments
from bootseer_dev.race.job import PHASES, script
from bootseer_dev.race.material import small_package
from bootseer_dev.race.processors import Ticks
from bootseer_dev.race.report import Start, phases
from bootseer_dev.race.spec import RaceSpec
from bootseer_dev.race.storage import server_commands, switch_commands
from rich.console import Console

PLACES = Places(
    pip="pip install thing",
    hadoop_cat="hadoop fs -cat",
    python="python3",
    plain="hdfs://nn/plain",
    striped="hdfs://nn/striped",
    image="race:v1",
    local="/copies",
    containers="/mnt",
    modules=("thing",),
)


def start(ready_s, store_bytes=0):
    took_s = dict.fromkeys(PHASES, 0.0) | {"step": float(ready_s)}
    return Start(took_s, store_bytes, 0.5)


STARTS = {
    "today": [start(110), start(220)],
    "by_hand_mounted": [start(30), start(60)],
    "by_hand_copied": [start(20), start(100)],
    "bootseer_cold": [start(40), start(40)],
    "bootseer_warm": [start(15), start(30)],
    "only_image": [start(60), start(70)],
    FLOOR: [start(10), start(20)],
}


def test_ratios_are_of_the_starts_of_one_round():
    assert report.overheads(STARTS, "bootseer_warm") == [5, 10]
    found = report.ratios(STARTS)
    assert found["overhead_removed"] == 0.95
    assert found["overhead_over_best_by_hand"] == (5 / 20 + 10 / 40) / 2
    assert found["warm_over_floor"] == 1.5
    assert found["overhead_removed_only_image"] == pytest.approx((0.5 + 0.75) / 2)


def test_best_by_hand_is_the_faster_by_its_median():
    assert report.best_by_hand(STARTS) == "by_hand_mounted"


def test_phases_are_of_the_node_that_was_ready_last_and_add_up():
    second = 10**9
    marks = {
        "n1": {name: (10 + number) * second for number, name in enumerate(PHASES)},
        "n2": {name: (12 + 2 * number) * second for number, name in enumerate(PHASES)},
    }
    found = phases(marks, 9 * second)
    assert list(found) == list(PHASES)
    assert found["submit"] == 3 and found["image"] == 2
    assert sum(found.values()) == 12 + 2 * (len(PHASES) - 1) - 9


@pytest.mark.leaves_open  # fonts, by matplotlib
def test_result_is_written_as_figures_as_a_table_and_as_a_picture(tmp_path):
    whats = {name: f"start {name}" for name in STARTS}
    report.write(tmp_path, whats, STARTS, 100e6, Console(quiet=True))
    written = json.loads((tmp_path / "race.json").read_text())
    figures = {figure["name"]: figure["median"] for figure in written["figures"]}
    assert figures["bootseer_warm_ready_s"] == 22.5
    assert figures["bootseer_warm_overhead_s"] == 7.5
    assert figures["today_step_s"] == 165
    assert "local_memory_overhead_s" not in figures
    assert {ratio["name"] for ratio in written["ratios"]} == report.ratios(STARTS).keys()
    table = (tmp_path / "race.md").read_text()
    for what in whats.values():
        assert table.count(what) == 2
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {7, len(PHASES) + 2}
    assert "<svg" in (tmp_path / "race.svg").read_text()


def test_script_of_each_contestant_is_a_shell_script_that_marks_each_part():
    for contestant in contestants(PLACES):
        text = script(contestant, PLACES)
        done = subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True)
        assert done.returncode == 0, (contestant.name, done.stderr)
        in_shell = PHASES[: PHASES.index("container")]
        assert all(f"\nmark {name}\n" in text for name in in_shell), text


def test_only_bootseers_parts_are_given_its_options():
    by_name = {contestant.name: contestant for contestant in contestants(PLACES)}
    assert {name for name, c in by_name.items() if c.key} == {
        *("bootseer_cold", "bootseer_warm"),
        *("only_image", "only_environment", "only_checkpoint"),
    }
    only = by_name["only_image"]
    assert only.options == ["--bootseer=only_image", "--bootseer-image=bootseer://race:v1"]
    assert only.environment == by_name["today"].environment
    assert by_name["bootseer_cold"] == replace(
        by_name["bootseer_warm"],
        name="bootseer_cold",
        what=by_name["bootseer_cold"].what,
        is_first=True,
    )


def test_a_technique_alone_is_recorded_with_the_rest_on_the_node():
    [only] = [c for c in contestants(PLACES) if c.name == "only_checkpoint"]
    soon = on_local_copies(only, PLACES)
    assert soon.checkpoint == only.checkpoint and soon.key == only.key
    assert "/copies/image.sqsh" in soon.image.command
    assert "/copies/env" in soon.environment.command


def test_without_the_techniques_alone():
    names = {contestant.name for contestant in contestants(PLACES, alone=False)}
    assert not any(name.startswith("only_") for name in names)


@pytest.mark.parametrize(("size", "count"), [(512, 4), (513, 5), (1, 1), (0, 0)])
def test_streams_of_a_fetch_cover_the_file(size, count):
    found = list(segments(size, 128))
    assert len(found) == count
    assert sum(length for _, length in found) == size
    assert [offset for offset, _ in found] == list(range(0, size, 128))


def test_all_datanodes_and_the_file_server_are_behind_the_uplink():
    lines = "\n".join(switch_commands(["d1", "d2"], 800))
    for name in ("d1", "d2"):
        assert f"ip link set to-{name} master br1" in lines
    assert "rate 800mbit" in lines and "rate 400mbit ceil 800mbit" in lines
    assert "master br1" in "\n".join(server_commands(7))


def test_small_package_can_be_imported(tmp_path, monkeypatch):
    for name, data in small_package().items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    monkeypatch.syspath_prepend(tmp_path)
    import race_package

    assert race_package.m000.size == race_package.m238.size > 0
    assert not hasattr(race_package, "m001")


def test_sizes_of_a_race():
    assert RaceSpec().shard_bytes == 8 * RaceSpec(is_small=True).shard_bytes == 512 * 2**20


def test_processors_are_idle_while_they_wait_for_a_disk():
    assert Ticks.parse("cpu  100 10 50 700 40 1 2 3 9 9\ncpu0 1 2 3") == (166, 906)
