"""What the hooks import, as root and while a job waits: the standard library, and little of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import bootseer

ROOT = str(Path(bootseer.__file__).parents[1])

IMPORTED = """
import json, sys
before = set(sys.modules)
sys.path[:0] = [sys.argv[1]]
__import__(sys.argv[2])
print(json.dumps(sorted(set(sys.modules) - before)))
"""

MODULES = ("options", "hook", "prolog", "epilog", "importer")
HEAVY = {"asyncio", "ctypes", "logging", "multiprocessing", "ssl", "tempfile", "unittest", "urllib"}


@pytest.mark.parametrize("module", MODULES)
def test_a_hook_imports_the_standard_library_only(module):
    argv = [sys.executable, "-IS", "-c", IMPORTED, ROOT, f"bootseer.slurm.{module}"]
    answer = subprocess.run(argv, capture_output=True, text=True, check=True, env={})
    tops = {name.partition(".")[0] for name in json.loads(answer.stdout)}
    # tomllib came with Python 3.11; before, tomli is in its place.
    strangers = tops - set(sys.stdlib_module_names) - {"bootseer", "tomli"}
    assert strangers == set()
    assert not tops & HEAVY


@pytest.mark.parametrize("module", ["program", "send_mark"])
def test_a_mark_of_a_task_imports_the_standard_library_only(module):
    """For a job may have hundreds on a node, each while the others still start."""
    argv = [sys.executable, "-IS", "-c", IMPORTED, ROOT, f"bootseer.cli.{module}"]
    answer = subprocess.run(argv, capture_output=True, text=True, check=True)
    tops = {name.partition(".")[0] for name in json.loads(answer.stdout)}
    assert tops - set(sys.stdlib_module_names) == {"bootseer"}
    assert not tops & HEAVY


def test_the_image_is_opened_before_anything_slow_is_imported():
    argv = [sys.executable, "-P", "-c", IMPORTED, ROOT, "bootseer.agent.broker.startup"]
    answer = subprocess.run(argv, capture_output=True, text=True, check=True)
    tops = {name.partition(".")[0] for name in json.loads(answer.stdout)}
    assert tops - set(sys.stdlib_module_names) == {"bootseer", "_cffi_backend"}


def test_the_agents_command_line_takes_nothing_of_the_callers(tmp_path, monkeypatch):
    from bootseer.agent.node import spawn
    from bootseer.agent.node.job import JobFolder

    for name in ("PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "SPANK_BOOTSEER_KEY", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert spawn.command("start")[1] == "-ISB"
    environment = spawn.environment(JobFolder("/run/bootseer/jobs/1"))
    assert environment.keys() == {"PATH", "LANG", spawn.TAG}
