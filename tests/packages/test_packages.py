"""The packages on clean machines, by the commands of docs/admin/packages.md."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from bootseer_dev.cluster.namespaces.enter import CommandFailed
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.cluster.roots import inside
from bootseer_dev.cluster.roots.root import checkout
from bootseer_dev.cluster.slurm.configuration import example, fill_in
from bootseer_dev.cluster.slurm.releases import RELEASES
from bootseer_dev.packages import roots
from bootseer_dev.packages.build import build_packages
from bootseer_dev.packages.content import Build
from bootseer_dev.packages.machine import NAME, Machine
from bootseer_dev.packages.targets import TARGETS

pytestmark = [pytest.mark.packages, pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(2400)]

PAGE = checkout() / "docs/admin/packages.md"
USER = "alice"
FOLDER = "/srv/packages"
"""Where the machine has the packages."""
BEFORE = re.compile("PrologFlags|PrologEpilogTimeout|BatchStartTimeout")
"""Lines of the example slurm.conf that the page has the administrator add."""


@dataclass(frozen=True)
class Block:
    """Commands of the page, and as whom they are to be run."""

    script: str
    user: str


_BLOCK = re.compile(r"((?:^\S.*\n)+)\n(?:<!-- .* -->\n\n)?((?:^ {4}.*\n)+)", re.MULTILINE)
"""A paragraph, and the code that follows it."""


def blocks(section):
    """The commands of a section, each with what the paragraph before them says."""
    text = PAGE.read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    found = []
    for paragraph, code in re.findall(_BLOCK, text):
        as_root, as_user = ("as root" in paragraph.lower(), "as a user" in paragraph.lower())
        assert as_root != as_user, paragraph
        script = re.sub("^ {4}", "", code, flags=re.MULTILINE)
        found.append(Block(script, "root" if as_root else USER))
    return found


def test_the_page_has_all_its_commands():
    sections = re.findall("^## (.*)$", PAGE.read_text(), re.MULTILINE)
    code = re.findall(r"^ {4}.*$", PAGE.read_text(), re.MULTILINE)
    assert sum(block.script.count("\n") for s in sections for block in blocks(s)) == len(code)


def built(system, revision=1):
    """The packages of a system, built anew only if the checkout has been installed since."""
    build = Build(TARGETS[system], revision)
    folder = checkout() / "build/packages" / ("next" if revision > 1 else ".")
    suffix = "rpm" if build.target.is_rpm else "deb"
    paths = list(folder.glob(f"*{build.version}*.{suffix}"))
    since = Path(sys.prefix, "installed").stat().st_mtime
    if len(paths) != 2 or min(path.stat().st_mtime for path in paths) < since:
        paths = build_packages(build, folder, print)
    return sorted(paths)


@contextmanager
def running_slurm(system, tmp_path):
    """A clean machine for a system's packages."""
    target = TARGETS[system]
    root = roots.for_trying(target.suite, print)
    folder = tmp_path / "machine"
    folder.mkdir()
    with Machine.up(root, folder) as up:
        start_slurm(up, target.slurm)
        yield up


@pytest.fixture(params=["debian12", "debian13"])
def machine(request, tmp_path):
    with running_slurm(request.param, tmp_path) as up:
        yield up, request.param


def start_slurm(machine, release):
    """What a site has before BootSeer comes."""
    values = {"CLUSTER": "try", "HEAD": NAME, "NODES": NAME, "CPUS": "2", "MEMORY": "512"}
    lines = fill_in(example("slurm.conf"), values).splitlines(keepends=True)
    etc = machine.files / "etc/slurm"
    (etc / "slurm.conf").write_text("".join(x for x in lines if not BEFORE.match(x)))
    # The host may have both versions of control groups, with which 22.05 does not start.
    files = RELEASES[release].files or {"cgroup.conf": "CgroupPlugin=cgroup/v1\n"}
    for name, text in files.items():
        (etc / name).write_text(text)
    machine.run(
        f"useradd --create-home --shell /bin/bash {USER}\n"
        "install -d -o slurm /var/spool/slurmctld /var/log/slurm\n"
        "install -d /var/spool/slurmd\n"
        "[ -e /etc/munge/munge.key ] || mungekey\n"
        "systemctl restart munge slurmctld slurmd"
    )
    wait_for_idle(machine)


def wait_for_idle(machine):
    """Wait until no job runs, and the last one's epilog is over."""
    wait_until(
        lambda: machine.run("sinfo -h -o %T", check=False).stdout.strip() == "idle",
        "the node is idle",
        timeout_s=60,
    )


def put_packages(machine, paths):
    folder = machine.files / FOLDER.lstrip("/")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in paths:
        shutil.copy(path, folder)


def follow(machine, section):
    """Run the commands of a section; returns what they wrote."""
    said = ""
    for block in blocks(section):
        cwd = FOLDER if block.user == "root" else f"/home/{USER}"
        wait_for_idle(machine)
        said += machine.run(block.script, user=block.user, cwd=cwd).stdout
    return said


def state(machine):
    """What an installation must leave as it was."""
    etc = machine.files / "etc"
    files = [p for p in sorted((etc / "slurm").rglob("*")) if p.is_file()]
    return {
        **{str(p.relative_to(etc)): p.read_bytes() for p in files},
        **{name: (etc / name).read_text().splitlines() for name in ("passwd", "group", "shadow")},
        "mounts": mounts(machine),
    }


def mounts(machine):
    lines = Path(f"/proc/{machine.init}/mountinfo").read_text().splitlines()
    return sorted(line.split()[4] for line in lines if "bootseer" in line.split()[4])


def named_after_us(machine):
    """Files with our name, but for those of users, logs and dpkg's own notes."""
    top = machine.files
    skipped = (
        "home",
        "proc",
        "sys",
        "dev",
        "srv",
        "tmp",
        "var/log",
        "var/lib/dpkg",
        "var/cache/apt",
    )
    found = []
    for where, folders, files in os.walk(top):
        at = Path(where).relative_to(top)
        folders[:] = [name for name in folders if str(at / name) not in skipped]
        found += [str(at / name) for name in (*folders, *files) if "bootseer" in name]
    return found


def processes(machine):
    said = machine.run("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' || true").stdout
    return re.findall(r"/opt/bootseer/[^/ ]*/\S*|bootseer\.agent\S*", said)


def slurmd_log(machine):
    return (machine.files / "var/log/slurm/slurmd.log").read_text()


def versions(machine):
    return sorted(
        path.name
        for path in (machine.files / "opt/bootseer").iterdir()
        if path.is_dir() and not path.is_symlink() and path.name != "packaged"
    )


def run_a_warm_job(machine):
    said = follow(machine, "A first warm job")
    assert "first start under this key" in said and "hot set known" in said
    assert re.search(r"\bwarm\b", said.rpartition("hot set known")[2])


def upgrade_while_a_job_runs(machine, old_and_new, packages, upgrade, removal):
    """Its agent goes on in the old version, which stays as long, as does the package."""
    old, new = old_and_new
    script = "echo $SLURM_JOB_ID >long; while [ ! -e end ]; do sleep 1; done"
    running = subprocess.Popen(
        machine.command(f"srun --bootseer=long sh -c '{script}'", user=USER),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    home = machine.files / f"home/{USER}"
    wait_until(lambda: (home / "long").exists(), "the job runs", timeout_s=60)
    wait_until(lambda: any(old in p for p in processes(machine)), "its agent runs", timeout_s=20)
    put_packages(machine, packages)
    machine.run(upgrade, cwd=FOLDER)
    assert versions(machine) == [old, new]
    assert any(old in path for path in processes(machine))
    with pytest.raises(CommandFailed, match="jobs on this node use BootSeer"):
        machine.run(removal)
    (home / "end").touch()
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 0, output
    number = (home / "long").read_text().strip()
    wait_until(
        lambda: f"job {number}: published to" in slurmd_log(machine),
        "it is published",
        timeout_s=60,
    )
    report = machine.run(f"bootseer report {number}", user=USER).stdout
    assert "fallback" not in report


def test_from_a_clean_machine_to_a_warm_job_and_back(machine):
    machine, system = machine
    first, second = built(system), built(system, 2)
    old, new = Build(TARGETS[system], 1).version, Build(TARGETS[system], 2).version
    before, files_before = state(machine), named_after_us(machine)
    put_packages(machine, first)

    follow(machine, "Install")
    assert versions(machine) == [old]
    assert (machine.files / "usr/share/man/man1/bootseer-doctor.1.gz").exists()
    refused = machine.run("bootseer plugin install", check=False)
    assert refused.returncode == 5 and "bootseer-plugin-slurm" in refused.stdout

    run_a_warm_job(machine)
    upgrade, _ = blocks("Upgrade")
    removal = "apt-get remove --yes bootseer"
    upgrade_while_a_job_runs(machine, (old, new), second, upgrade.script, removal)
    follow(machine, "Upgrade")  # once more: nothing is new, and the old version goes
    assert versions(machine) == [new]
    assert not [path for path in processes(machine) if old in path]

    follow(machine, "Removal")
    assert state(machine) == {
        **before,
        "slurm/slurm.conf": (machine.files / "etc/slurm/slurm.conf").read_bytes(),
    }
    assert named_after_us(machine) == files_before
    assert processes(machine) == []
    assert machine.run("srun true", user=USER).stdout == ""


@pytest.mark.parametrize("system", ["debian12", "debian13"])
def test_a_package_has_no_parts_for_developers_and_says_its_size(system):
    main = next(path for path in built(system) if path.name.startswith("bootseer_"))
    listed = subprocess.check_output(["dpkg-deb", "-c", main], text=True)
    names = [line.split()[5].removeprefix("./") for line in listed.splitlines()]
    ours = re.compile(r"site-packages/bootseer/share/")  # the plugin's sources
    developers = re.compile(
        r"\.(h|a|pyx|pxd)$|/(tests|pip|setuptools|include)/|/(gcc|cc1?)$|\.cache/"
    )
    assert [name for name in names if developers.search(name) and not ours.search(name)] == []
    fields = subprocess.check_output(["dpkg-deb", "-f", main], text=True)
    assert re.search(r"It takes 1\d\d MB in 2?\d{3,4} files", fields)
    for name in (
        "usr/share/bash-completion/completions/bootseer",
        "usr/share/zsh/vendor-completions/_bootseer",
        "usr/share/fish/vendor_completions.d/bootseer.fish",
        "usr/share/man/man1/bootseer-plugin-install.1.gz",
        "usr/bin/bootseer",
    ):
        assert name in names


def test_the_rpms_have_the_same_content_and_sound_scripts(tmp_path):
    """Nothing here has RHEL: Debian's rpm reads them."""
    root = roots.for_building("bookworm", print)
    place = root.folder / "rpms"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for path in built("rpm"):
        shutil.copy(path, place)

    def ask(query, name):
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        [path] = place.glob(f"{name}-[0-9]*.rpm" if name == "bootseer" else f"{name}-*.rpm")
        inside.run(root, ["rpm", "-qp", "--nosignature", *query, f"/rpms/{path.name}"], log)
        return log.read_text()

    names = ask(["-l"], "bootseer").split("\n")
    assert {"/usr/bin/bootseer", "/opt/bootseer/packaged/bin/bootseer"} <= set(names)
    assert "/usr/share/zsh/site-functions/_bootseer" in names
    assert ask(["-c"], "bootseer").split() == ["/etc/bootseer/bootseer.toml"]
    requires = ask(["--requires"], "bootseer")
    assert "libfuse3.so.3()(64bit)" in requires and "/usr/bin/python3.11" in requires
    assert not re.search(r"libarrow|libparquet|/opt/|libpython|-[0-9a-f]{8}\.", requires)
    glibc = re.findall(r"GLIBC_2\.(\d+)", requires)
    assert max(map(int, glibc)) <= 34  # of RHEL 9
    scripts = ask(["--scripts"], "bootseer")
    assert "maintainer put 0.1.0-1" in scripts and "refuse-while-used || exit 1" in scripts
    assert "@" not in scripts

    plugin = "bootseer-plugin-slurm22.05"
    assert "/usr/lib/bootseer/bootseer.so" in ask(["-l"], plugin).split()
    assert ask(["-c"], plugin).split() == ["/etc/bootseer/plugstack.conf"]
    requires = ask(["--requires"], plugin)
    assert "bootseer = 0.1.0-1" in requires and "slurm < 22.06" in requires
    scripts += ask(["--scripts"], plugin)
    commands = re.sub(r"^.*\(using /bin/sh\):$", "", scripts, flags=re.MULTILINE)
    subprocess.run(["sh", "-n"], input=commands, text=True, check=True)
    assert "maintainer add-line" in scripts and "$maintain remove-line" in scripts
    shutil.rmtree(place)


def test_rpm_installs_upgrades_and_removes_them(tmp_path):
    """Debian's rpm, on Debian: their scripts run as on RHEL, which nothing here has."""
    first, second = built("rpm"), built("rpm", 2)
    old, new = (Build(TARGETS["rpm"], revision).version for revision in (1, 2))
    rpm = "rpm --force-debian --nodeps"  # no package of Debian's is in its database
    with running_slurm("rpm", tmp_path) as machine:
        needs = "rpm python3 fuse3 libfuse3-3 liblz4-1 libxxhash0 libzstd1 libpython3.11"
        machine.run(f"apt-get update && apt-get install --yes --no-install-recommends {needs}")
        before, files_before = state(machine), named_after_us(machine)
        put_packages(machine, first)
        machine.run(f"{rpm} --install *.rpm", cwd=FOLDER)
        assert versions(machine) == [old]
        for block in blocks("Install")[1:]:
            machine.run(block.script)
        run_a_warm_job(machine)

        upgrade = f"{rpm} --upgrade *.rpm && systemctl restart slurmd"
        removal = f"{rpm} --erase bootseer bootseer-plugin-slurm22.05"
        upgrade_while_a_job_runs(machine, (old, new), second, upgrade, removal)
        wait_for_idle(machine)
        machine.run(f"{removal} && systemctl restart slurmd")
        slurm_conf = (machine.files / "etc/slurm/slurm.conf").read_bytes()
        accounts = {name: state(machine)[name] for name in ("passwd", "group", "shadow")}
        assert state(machine) == {**before, **accounts, "slurm/slurm.conf": slurm_conf}
        left = set(named_after_us(machine)) - set(files_before)
        assert left == {"var/cache/bootseer"}
        assert processes(machine) == []
        wait_for_idle(machine)
        assert machine.run("srun true", user=USER).stdout == ""
