"""Build the packages for systems with RPM, by Debian's rpmbuild."""

from __future__ import annotations

from pathlib import Path

from bootseer import __version__
from bootseer_dev.cluster.roots import inside
from bootseer_dev.cluster.roots.root import Root
from bootseer_dev.packages.content import Build, descriptions, template


def build_rpms(build: Build, root: Root, folder: str, log: Path) -> list[str]:
    """Build both packages; returns their file names in the folder.

    Args, Raises: as for `deb.build_debs`.
    """
    place = Path(f"{root.folder}{folder}")
    main, plugin = descriptions(build, place / "stage/bootseer")
    target = build.target
    values = {
        "STAGE": f"{folder}/stage",
        "UPSTREAM": __version__,
        "REVISION": str(build.revision),
        "VERSION": build.version,
        "PYTHON": target.python,
        "SLURM": target.slurm,
        "NEXT_SLURM": target.next_slurm,
        "PLUGIN": build.plugin,
        "DESCRIPTION": main,
        "PLUGIN_DESCRIPTION": plugin,
    }
    (place / "bootseer.spec").write_text(template("rpm/bootseer.spec", values))
    defines = [
        f"--define=_topdir {folder}/rpm",
        f"--define=_rpmdir {folder}/out",
        "--define=_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
    ]
    inside.run(root, ["rpmbuild", "-bb", *defines, f"{folder}/bootseer.spec"], log, cwd=folder)
    return sorted(path.name for path in (place / "out").glob("*.rpm"))
