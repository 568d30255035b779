"""Build the packages for a release of Debian, by dpkg-deb in a root of it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from bootseer_dev.cluster.roots import inside
from bootseer_dev.cluster.roots.root import Root
from bootseer_dev.packages.content import MAIN, Build, descriptions, size_bytes, template

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's names of those that the kernel knows."""
_MAINTAINER = "BootSeer developers <bootseer@localhost>"
_ROWS_OF_SHLIBS = re.compile(r"^shlibs:Depends=(.*)$", re.MULTILINE)
# Libraries that wheels bring are beside those that need them. Advice alone needs libpython.
_SHLIBS = r"""
mkdir -p debian
printf 'Source: bootseer\n\nPackage: bootseer\nArchitecture: any\n' >debian/control
beside=$(find "$1" -name '*.so*' -type f -printf '-l%h\n' | sort -u)
find "$1" -name '*.so*' -type f ! -name bootseer-advice.so -print0 |
    xargs -0 dpkg-shlibdeps -O --ignore-missing-info $beside >"$2" 2>"$2.log" ||
    { grep error: "$2.log"; false; }
"""


def build_debs(build: Build, root: Root, folder: str, log: Path) -> list[str]:
    """Build both packages; returns their file names in the folder.

    Args:
        build: what is built.
        root: of the Debian release.
        folder: in the root, absolute; has ``stage/bootseer`` and ``stage/plugin``.
        log: gets what the programs write.

    Raises:
        Unavailable: a program failed.
    """
    place = Path(f"{root.folder}{folder}")
    main, plugin = place / "stage/bootseer", place / "stage/plugin"
    said = descriptions(build, main)
    target = build.target
    values = {"VERSION": build.version}
    main_fields = {
        "Package": MAIN,
        "Depends": ", ".join(
            [
                _shared_libraries(root, folder, log),
                f"python{target.python}",
                "systemd | systemd-sysusers",
                "systemd | systemd-tmpfiles",
            ]
        ),
        "Recommends": f"fuse3, libpython{target.python}, squashfs-tools",
        "Description": f"warm starts for jobs on Slurm\n{said[0]}",
    }
    plugin_fields = {
        "Package": build.plugin,
        "Depends": f"{MAIN} (= {build.version}), slurm-wlm-basic-plugins (>= {target.slurm}), "
        f"slurm-wlm-basic-plugins (<< {target.next_slurm}~)",
        "Provides": "bootseer-plugin",
        "Conflicts": "bootseer-plugin",
        "Replaces": "bootseer-plugin",
        "Description": f"plugin of BootSeer for Slurm {target.slurm}\n{said[1]}",
    }
    _put_control(build, main, main_fields, ["etc/bootseer/bootseer.toml"])
    for step in ("postinst", "prerm", "postrm"):
        _put_script(main, step, template(f"debian/bootseer.{step}", values))
    _put_control(build, plugin, plugin_fields, ["etc/bootseer/plugstack.conf"])
    for step in ("postinst", "prerm"):
        _put_script(plugin, step, template(f"debian/plugin.{step}", values))
    for stage in ("bootseer", "plugin"):
        argv = ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z10", "--build"]
        inside.run(root, [*argv, f"{folder}/stage/{stage}", f"{folder}/out"], log)
    return sorted(path.name for path in (place / "out").glob("*.deb"))


def _put_control(build: Build, stage: Path, fields: Mapping[str, str], files: list[str]) -> None:
    """Write what dpkg wants to know.

    Args:
        build: what is built.
        stage: the folder that stands for the machine's root.
        fields: of the package.
        files: its configuration files.
    """
    folder = stage / "DEBIAN"
    folder.mkdir()
    size_kib = -(-size_bytes(stage) // 1024)
    common = {
        "Version": build.version,
        "Architecture": _ARCHITECTURES[os.uname().machine],
        "Maintainer": _MAINTAINER,
        "Section": "admin",
        "Priority": "optional",
        "Installed-Size": str(size_kib),
    }
    lines = [f"{name}: {_field(text)}" for name, text in ({**fields, **common}).items()]
    (folder / "control").write_text("\n".join(lines) + "\n")
    (folder / "conffiles").write_text("".join(f"/{name}\n" for name in files))
    with (folder / "md5sums").open("w") as sums:
        for path in sorted(stage.rglob("*")):
            name = path.relative_to(stage)
            if path.is_file() and not path.is_symlink() and name.parts[0] not in ("DEBIAN", "etc"):
                digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
                sums.write(f"{digest}  {name}\n")


def _field(text: str) -> str:
    return text.replace("\n", "\n ")


def _put_script(stage: Path, name: str, text: str) -> None:
    path = stage / "DEBIAN" / name
    path.write_text(text)
    path.chmod(0o755)


def _shared_libraries(root: Root, folder: str, log: Path) -> str:
    """Return the packages of the libraries that the environment needs."""
    answer = Path(f"{root.folder}{folder}/shlibs")
    argv = ["sh", "-euc", _SHLIBS, "sh", f"{folder}/stage/bootseer", f"{folder}/shlibs"]
    inside.run(root, argv, log, cwd=folder)
    found = _ROWS_OF_SHLIBS.search(answer.read_text())
    return found[1] if found else ""
