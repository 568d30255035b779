"""What a Python is, found out in it without much being imported, and not in a second one."""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import sysconfig

import pytest

from bootseer.env.build_zipapp import build
from bootseer.env.client.inputs.python_facts import python_facts

PYTHON = os.path.realpath(os.path.join(sys.base_prefix, "bin/python3"))


def test_it_says_what_the_standard_library_says():
    assert python_facts("pip", sys.path) == {
        "implementation": platform.python_implementation(),
        "version": platform.python_version(),
        "abi": sysconfig.get_config_var("SOABI"),
        "platform": sysconfig.get_platform(),
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "machine": platform.machine(),
        "libc": os.confstr("CS_GNU_LIBC_VERSION"),
        "installer": importlib.metadata.version("pip"),
    }


@pytest.mark.parametrize(
    ("installer", "file", "text", "version"),
    [
        ("pip", "pip-1.2.dist-info/METADATA", "Name: pip\nVersion: 1.2\n\nVersion: 3\n", "1.2"),
        ("pip-tools", "pip_tools-7.dist-info/METADATA", "Version: 7\n", "7"),
        ("pip", "pip-1.egg-info/PKG-INFO", "Version: 1\n", "1"),
        ("pip", "pip-1.egg-info", "Version: 1\n", "1"),
        ("pip", "pip_tools-7.dist-info/METADATA", "Version: 7\n", "none"),
        ("pip", "pip-1.dist-info/METADATA", "Name: pip\n\nVersion: 1\n", "none"),
        ("pip", "pip-1.dist-info/RECORD", "", "none"),
    ],
)
def test_the_version_of_an_installer(tmp_path, installer, file, text, version):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    path = ["/nonexistent", str(tmp_path)]
    assert python_facts(installer, path)["installer"] == version
    if version != "none":
        [found] = importlib.metadata.distributions(name=installer, path=path)
        assert found.version == version


def test_the_program_for_containers_starts_no_second_python(tmp_path):
    """If that is the same one; the key is the same in both cases."""
    (tmp_path / "bootseer-env").write_bytes(build())
    folder, name = os.path.split(PYTHON)

    def key(home):
        command = [name, "-m", "pip", "install", "--target", "/x", "numpy"]
        words = [PYTHON, "-X", "importtime", "bootseer-env", "key", "--target", "/x", "--"]
        environ = {"PATH": folder, "HOME": str(home)}
        done = subprocess.run(
            [*words, *command],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        )
        lines = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
        return json.loads(done.stdout), set(lines[lines.index("site") :])

    version = ".".join(map(str, sys.version_info[:2]))
    # Distributions there are not those of the other Python, which has -I.
    (tmp_path / f"user/.local/lib/python{version}/site-packages").mkdir(parents=True)
    (own, imported), (others, with_process) = key(tmp_path), key(tmp_path / "user")
    assert own == others
    assert "subprocess" in with_process
    slow = {"subprocess", "tempfile", "logging", "platform", "sysconfig"}
    assert slow & imported == set()
