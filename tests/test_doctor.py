"""`bootseer doctor`: what it says about a node."""

import os
import subprocess
from types import SimpleNamespace

import psutil
import pytest

from bootseer import config
from bootseer.cli import doctor
from bootseer.slurm import plugin, plugstack


@pytest.fixture
def cache_dir(tmp_path, monkeypatch):
    """Set node.cache_dir to a folder that does not exist yet."""
    file = tmp_path / "bootseer.toml"
    file.write_text(f'[node]\ncache_dir = "{tmp_path}/cache/blocks"\n')
    found = config.load(str(file))
    monkeypatch.setattr(config, "load", lambda: found)
    return tmp_path / "cache/blocks"


def mounted(monkeypatch, found):
    """Have the machine's file systems be of these kinds, by mount point."""
    mounts = [SimpleNamespace(mountpoint=str(path), fstype=kind) for path, kind in found.items()]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)


def test_the_cache_folder_is_on_a_local_disk(cache_dir, monkeypatch):
    mounted(monkeypatch, {"/": "ext4"})
    is_good, detail = doctor._cache()
    assert is_good
    assert detail.startswith(f"{cache_dir} is on ext4, ")


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "tmpfs"])
def test_the_cache_folder_is_not_on_a_local_disk(cache_dir, monkeypatch, kind):
    mounted(monkeypatch, {"/": "ext4", cache_dir.parents[1]: kind})
    is_good, detail = doctor._cache()
    assert not is_good
    assert f"is on {kind}, " in detail
    assert "set node.cache_dir to a" in detail


@pytest.mark.root
def test_a_mounted_file_system_is_recognised(cache_dir):
    os.makedirs(cache_dir)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5M", "x", cache_dir], check=True)
    try:
        is_good, detail = doctor._cache()
    finally:
        subprocess.run(["umount", cache_dir], check=True)
    assert not is_good
    assert detail.startswith(f"{cache_dir} is on tmpfs, 5.")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "lacks this line: include "),
        (["include plugstack.conf.d/*.conf"], "is included by "),
        (["include plugstack.conf.d/*.conf"] * 2, "plugstack.conf:2: include plugstack"),
    ],
)
def test_the_plugin_is_to_be_included_once(tmp_path, monkeypatch, lines, said):
    monkeypatch.setattr(plugin, "PLUGSTACK_DIR", tmp_path / "plugstack.conf.d")
    assert "bootseer plugin install" in doctor._plugin()[1]
    (tmp_path / "plugstack.conf.d").mkdir()
    (tmp_path / "plugstack.conf.d/bootseer.conf").touch()
    (tmp_path / "plugstack.conf").write_text("\n".join(lines))
    is_good, detail = doctor._plugin()
    assert (is_good, said in detail) == (len(lines) == 1, True)


def test_a_folder_of_slurm_s_that_is_closed_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(plugin, "PLUGSTACK_DIR", tmp_path)

    def closed(*_):
        raise PermissionError(13, "Permission denied", "/etc/slurm/plugstack.conf")

    (tmp_path / "bootseer.conf").touch()
    monkeypatch.setattr(plugstack, "lines_that_include", closed)
    assert doctor._plugin() == (
        False,
        "/etc/slurm/plugstack.conf cannot be read by you, and srun reads it with your rights",
    )
