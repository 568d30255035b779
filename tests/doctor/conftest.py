import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bootseer.config import Config, User
from bootseer.doctor.check import Finding, Role, Unchecked
from bootseer.doctor.machine import Machine
from bootseer.doctor.runner import CHECKS

RELEASE = "22.05.8"
SLURM_CONF = """\
PrologFlags=Alloc
PrologEpilogTimeout=120
BatchStartTimeout=130
MessageTimeout=30
UnkillableStepTimeout=60
SlurmdPidFile=/run/slurmd.pid
NodeName=c[1-4] CPUs=8
"""
PLUGIN_LINE = "optional /usr/libexec/bootseer/bootseer.so\n"
ADA = User("ada", 4711, "/home/ada")


class Site:
    """A machine's files below a folder, with programs that answer as a healthy one's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.write("etc/slurm/slurm.conf", SLURM_CONF)
        self.write("etc/slurm/plugstack.conf", "include /etc/slurm/plugstack.conf.d/*.conf\n")
        self.write("etc/slurm/plugstack.conf.d/bootseer.conf", PLUGIN_LINE)
        self.write("usr/libexec/bootseer/bootseer.so")
        for name in ("prolog", "epilog", "importer", "squashfuse", "enroot"):
            self.write(f"usr/libexec/bootseer/bootseer-{name}", "#!/bin/sh -IS\n", 0o755)
        self.program("sh", "true")
        self.program("srun", f"echo slurm {RELEASE}")
        self.program("scontrol", "echo 'Slurmctld(primary) at head is UP'")
        self.program("munge", "echo MUNGE:x:")
        self.program("unmunge", "cat")
        self.program("getent", 'echo "10.0.0.7     STREAM $2"')
        self.program("mksquashfs", "echo 'mksquashfs version 4.5.1 (2022/03/17)'")
        self.program("fusermount3", "true", 0o4755)
        self.write("dev/fuse", "", 0o666)
        self.write("proc/sys/kernel/osrelease", "6.12.1-1\n")
        self.write("proc/sys/user/max_user_namespaces", "96365\n")
        self.write("proc/filesystems", "nodev\toverlay\n")
        self.write("sys/class/bdi/0:45/read_ahead_kb", "128\n")
        self.write("sys/fs/cgroup/cgroup.procs")
        self.folder("run/bootseer/jobs")
        self.folder("var/cache/bootseer")
        self.folder("var/tmp", 0o1777)

    def write(self, name: str, text: str = "", mode: int = 0o644) -> Path:
        path = self.root / name
        self.folder(path.parent.relative_to(self.root))
        path.write_text(text)
        path.chmod(mode)
        return path

    def folder(self, name: str | Path, mode: int = 0o755) -> Path:
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
        return path

    def program(self, name: str, script: str, mode: int = 0o755) -> None:
        self.write(f"bin/{name}", f"#!/bin/sh\n{script}\n", mode)

    def without(self, name: str) -> None:
        (self.bin / name).unlink()

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def library(self, version: int, name: str = "usr/libexec/bootseer/bootseer.so") -> Path:
        path = self.root / name
        source = f"const unsigned int plugin_version = {version:#x};"
        argv = ["cc", "-shared", "-x", "c", "-", "-o", path]
        subprocess.run(argv, input=source, text=True, check=True)
        return path

    def machine(
        self, *, user: User = ADA, is_root: bool = True, role: Role = Role.COMPUTE, **settings
    ) -> Machine:
        config = Config({name.replace("__", "."): value for name, value in settings.items()})
        found = Machine(
            config, user, root=self.root, search_path=f"{self.bin}:/bin", is_root=is_root
        )
        found.role = role
        return found

    def look(self, name: str, machine: Machine | None = None, **settings) -> list[Finding]:
        """What a check finds; a string for each note is left out."""
        (check,) = (check for check in CHECKS if check.name == name)
        found = check.look(machine or self.machine(**settings))
        return [item for item in found if isinstance(item, Finding)]

    def finding(self, name: str, machine: Machine | None = None, **settings) -> Finding:
        """The one finding of a check, which must say all that it should."""
        (found,) = self.look(name, machine, **settings)
        assert found.what and found.why and found.mend
        return found

    def notes(self, name: str, **settings) -> list[str]:
        (check,) = (check for check in CHECKS if check.name == name)
        found = check.look(self.machine(**settings))
        return [item for item in found if isinstance(item, str)]

    def unchecked(self, name: str, **settings) -> str:
        with pytest.raises(Unchecked) as why:
            self.look(name, **settings)
        return str(why.value)


@pytest.fixture
def site(place):
    """A healthy compute node."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    before = os.umask(0o022)
    made = Site(place)
    made.library(0x160508)
    yield made
    os.umask(before)
