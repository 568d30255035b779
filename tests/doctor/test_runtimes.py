"""Checks of container runtimes."""

import pytest

from bootseer.doctor import runtimes
from bootseer.doctor.check import Severity

PYXIS = "etc/slurm/plugstack.conf.d/pyxis.conf"
IMPORTER = "importer=/usr/libexec/bootseer/bootseer-importer"
HOOK = "etc/enroot/hooks.d/50-bootseer.sh"


@pytest.fixture
def pyxis(site):
    """A site with Pyxis and Enroot, wired as they should be."""
    line = f"required /usr/lib/spank_pyxis.so {IMPORTER} use_squashfuse=1\n"
    site.write(PYXIS, line)
    site.program("enroot", "echo 4.1.2")
    site.program("squashfuse", "true")
    site.write(HOOK, "run_dir=/run/bootseer\n$BOOTSEER_ENV_MOUNTS\n", 0o755)
    return site


@pytest.mark.parametrize("name", [check.name for check in runtimes.CHECKS])
def test_nothing_is_found_where_nothing_is_wrong(site, name):
    assert site.look(name) == []


@pytest.mark.parametrize("name", [check.name for check in runtimes.CHECKS])
def test_nothing_is_found_with_pyxis_and_enroot(pyxis, name):
    assert pyxis.look(name, image__importer=True) == []


def test_what_is_there_is_noted(pyxis):
    pyxis.program("ch-run", "echo 0.31")
    notes = pyxis.notes("runtimes.found")
    assert {"Charliecloud 0.31", "Enroot 4.1.2"} <= set(notes)
    assert "Pyxis, /etc/slurm/plugstack.conf.d/pyxis.conf:1" in notes


def test_it_is_noted_which_squashfuse_enroot_finds(pyxis):
    (said,) = [note for note in pyxis.notes("runtimes.found") if note.startswith("squashfuse")]
    assert said.startswith(f"squashfuse is {pyxis.bin}/squashfuse; ")
    assert said.endswith("/bootseer-squashfuse is faster")
    pyxis.program("bootseer-squashfuse", "true")
    pyxis.without("squashfuse")
    (pyxis.bin / "squashfuse").symlink_to("bootseer-squashfuse")
    assert "squashfuse is bootseer-squashfuse" in pyxis.notes("runtimes.found")
    pyxis.without("enroot")
    pyxis.without("squashfuse")
    pyxis.program("squashfuse", "true")
    assert not any("squashfuse" in note for note in pyxis.notes("runtimes.found"))


def test_pyxis_that_unpacks(pyxis):
    pyxis.edit(PYXIS, " use_squashfuse=1", "")
    found = pyxis.finding("runtimes.squashfuse")
    assert "no use_squashfuse=1" in found.what
    assert found.mend.endswith(f"required /usr/lib/spank_pyxis.so {IMPORTER} use_squashfuse=1")


def test_pyxis_whose_containers_are_mounted_with_a_layer(pyxis):
    pyxis.edit(PYXIS, " use_squashfuse=1", "")
    pyxis.program("bootseer-enroot", "true")
    for name in ("unsquashfs", "mksquashfs"):
        (pyxis.bin / name).unlink(missing_ok=True)
        (pyxis.bin / name).symlink_to("bootseer-enroot")
    found = [finding.what for finding in pyxis.look("runtimes.squashfuse")]
    assert len(found) == 2 and "but enroot-mount is not" in found[0]
    (pyxis.bin / "enroot-mount").symlink_to("bootseer-enroot")
    assert pyxis.look("runtimes.squashfuse") == []
    assert "Enroot's containers are mounted by bootseer-enroot" in pyxis.notes("runtimes.found")


def test_without_squashfuse(pyxis):
    pyxis.without("squashfuse")
    machine = pyxis.machine()
    machine._search_path = str(pyxis.bin)
    assert "no squashfuse" in pyxis.finding("runtimes.squashfuse", machine).what


def test_an_importer_and_a_setting_that_do_not_agree(pyxis):
    assert "image.importer is false" in pyxis.finding("runtimes.importer").what
    pyxis.edit(PYXIS, IMPORTER, "")
    assert pyxis.look("runtimes.importer") == []
    found = pyxis.finding("runtimes.importer", image__importer=True)
    assert "image.importer is true" in found.what


def test_an_importer_that_cannot_be_run(pyxis):
    pyxis.edit(PYXIS, "/usr/libexec", "/opt")
    found = pyxis.finding("runtimes.importer", image__importer=True)
    assert found.severity is Severity.ERROR
    assert "/opt/bootseer/bootseer-importer cannot be run" in found.what


def test_the_hook_of_enroot(pyxis):
    found = pyxis.finding("runtimes.enroot", node__run_dir="/run/other")
    assert "run_dir=/run/bootseer, but node.run_dir is /run/other" in found.what
    pyxis.edit(HOOK, "ENV_MOUNTS", "CKPT")
    assert "is of an older version" in pyxis.finding("runtimes.enroot").what
    pyxis.edit(HOOK, "CKPT", "ENV_MOUNTS")
    (pyxis.root / HOOK).chmod(0o644)
    assert "not executable" in pyxis.finding("runtimes.enroot").what
    (pyxis.root / HOOK).unlink()
    assert "no hook" in pyxis.finding("runtimes.enroot").what
