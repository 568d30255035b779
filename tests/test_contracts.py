"""The contracts of pyproject.toml, which `make contracts` checks, leave nothing out."""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import pytest

import bootseer

ROOT = Path(__file__).parents[1]


@pytest.fixture
def contracts():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {contract["name"].partition(" ")[0]: contract for contract in settings["contracts"]}


def modules():
    folder = Path(bootseer.__file__).parent
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    return packages | {path.stem for path in folder.glob("*.py")} - {"__init__"}


def test_all_but_fuse_are_kept_from_pyfuse3(contracts):
    kept = set(contracts["pyfuse3"]["source_modules"])
    assert kept == {"bootseer_dev", *(f"bootseer.{name}" for name in modules() - {"fuse"})}
    assert contracts["pyfuse3"]["forbidden_modules"] == ["pyfuse3"]


@pytest.mark.parametrize("name", ["os", "time", "threading", "random"])
def test_core_is_kept_from_state_and_clock(contracts, name):
    assert contracts["core"]["source_modules"] == ["bootseer.core"]
    assert name in contracts["core"]["forbidden_modules"]
