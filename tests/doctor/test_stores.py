"""Checks of stores."""

import grp
import os
import pwd
import time
from datetime import datetime

import pytest

from bootseer import config
from bootseer.config import User
from bootseer.doctor import stores
from bootseer.doctor.check import Severity, Unchecked
from bootseer.doctor.machine import Machine
from bootseer.doctor.store_probe import StoreProbe

NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def machine_of(site):
    """A machine with these settings in a file, which the probe's process reads too."""

    def make(text: str, user: str = NOBODY.pw_name) -> Machine:
        file = site.write("bootseer.toml", text)
        entry = pwd.getpwnam(user)
        owner = User(entry.pw_name, entry.pw_uid, entry.pw_dir)
        return Machine(config.load(str(file)), owner, root=site.root, search_path="/bin")

    return make


@pytest.fixture
def probed(site, monkeypatch):
    """Have a probe find this."""

    def set_result(**fields):
        found = StoreProbe("hdfs://nn/user/ada", **fields)
        monkeypatch.setattr(stores, "_probe", lambda *_: found)

    return set_result


@pytest.mark.root
def test_a_healthy_store_is_tried_and_left_as_it_was(site, machine_of):
    folder = site.folder("store")
    os.chown(folder, NOBODY.pw_uid, NOBODY.pw_gid)
    machine = machine_of(f'store.url = "file://{folder}"')
    for name in ("own", "write", "speed", "clock", "ticket", "images", "shared"):
        assert site.look(f"stores.{name}", machine) == []
    found = stores.probe(machine, "store.url")
    assert found.read_bytes_per_s > 0
    assert abs(found.skew_s) < 1  # the kernel's time of files is some ms behind
    assert os.listdir(folder) == []


@pytest.mark.root
def test_a_store_that_the_first_job_will_make_is_not_made(site, machine_of):
    home = site.folder("home")
    os.chown(home, NOBODY.pw_uid, NOBODY.pw_gid)
    machine = machine_of(f'store.url = "file://{home}/.bootseer"')
    assert site.look("stores.own", machine) == site.look("stores.write", machine) == []
    assert os.listdir(home) == []


@pytest.mark.root
def test_a_store_that_users_cannot_write(site, machine_of):
    machine = machine_of(f'store.url = "file://{site.folder("store")}/{{user}}"')
    found = site.finding("stores.write", machine)
    assert f"nobody cannot write in file://{site.root}/store/nobody" in found.what
    assert "is not writable" in found.what
    folder = site.folder("store/nobody")  # root's
    machine = machine_of(f'store.url = "file://{folder}"')
    assert "is owned by uid 0" in site.finding("stores.own", machine).what
    with pytest.raises(Unchecked, match=r"see stores\.own"):
        site.look("stores.write", machine)


@pytest.mark.root
def test_what_users_can_do_is_not_seen_by_root(site, machine_of):
    machine = machine_of(f'store.url = "file://{site.folder("store")}"', "root")
    assert site.look("stores.own", machine) == []
    with pytest.raises(Unchecked, match="run it as one, or with --user NAME"):
        site.look("stores.write", machine)


def test_a_store_that_is_away(site, machine_of):
    machine = machine_of('[store]\nurl = "hdfs://127.0.0.1:9/x"\ndeadline_s = 1')
    found = site.finding("stores.own", machine)
    assert "store.url, as nobody: " in found.what
    assert found.severity is Severity.ERROR


@pytest.mark.root
def test_each_store_is_named_with_what_to_do(site, machine_of):
    folder = site.folder("images", 0o777)
    group = grp.getgrgid(os.getgid()).gr_name
    text = (
        '[store]\nurl = "s3://bucket/all"\n'
        f'[image]\nstore_url = "file://{folder}"\n'
        f'[env]\nshared = ["{group}=s3://bucket/envs"]\n'
    )
    machine = machine_of(text, "root")
    assert "store.shared_bucket = true" in site.finding("stores.own", machine).what
    assert f"chmod o-w {folder}" in site.finding("stores.images", machine).what
    found = site.finding("stores.shared", machine)
    assert f"env.shared {group}" in found.what
    assert "env.shared_bucket" in found.what
    folder.chmod(0o755)
    assert site.look("stores.images", machine_of(text, "root")) == []


@pytest.mark.parametrize(
    ("url", "check", "is_error"),
    [
        ("hdfs://nn/user/root", "own", False),
        ("s3://bucket/root", "own", False),
        ("file:///root/.bootseer", "own", True),
        ("s3://bucket/images", "images", False),
        ("hdfs://nn/images", "images", True),
    ],
)
def test_a_store_that_refuses_root_may_be_healthy(site, monkeypatch, url, check, is_error):
    found = StoreProbe(url, "permission denied", is_refused=True)
    monkeypatch.setattr(stores, "_probe", lambda *_: found)
    as_root = site.machine(user=User("root", 0, "/root"), image__store_url=url)
    if is_error:
        assert "permission denied" in site.finding(f"stores.{check}", as_root).what
    else:
        with pytest.raises(Unchecked, match=r"--user NAME; to root it says: permission denied"):
            site.look(f"stores.{check}", as_root)
    as_user = site.machine(image__store_url=url)
    assert "permission denied" in site.finding(f"stores.{check}", as_user).what


def test_stores_of_other_groups_are_left_out(site, monkeypatch):
    monkeypatch.setattr(stores, "_probe", lambda *_: StoreProbe(problem="closed"))
    nobody = User(NOBODY.pw_name, NOBODY.pw_uid, "/")
    own = grp.getgrgid(NOBODY.pw_gid).gr_name
    for group, count in (("root", 0), (own, 1), ("no-such-group", 1)):
        machine = site.machine(user=nobody, env__shared=[f"{group}=/x"])
        assert len(site.look("stores.shared", machine)) == count


def test_a_slow_store(site, probed):
    probed(answer_s=2.5)
    assert "answers after 2.5 s" in site.finding("stores.speed").what
    probed(answer_s=0.1, read_bytes_per_s=2e5)
    assert "reads 1 MiB at 200 kB/s" in site.finding("stores.speed").what
    probed(answer_s=0.1, read_bytes_per_s=2e7)
    assert site.look("stores.speed") == []


@pytest.mark.parametrize(("skew_s", "word"), [(60, "ahead of"), (-60, "behind")])
def test_a_clock_that_is_wrong(site, probed, skew_s, word):
    probed(skew_s=float(skew_s))
    assert f"60 s {word} this machine's" in site.finding("stores.clock").what
    probed(skew_s=1.0)
    assert site.look("stores.clock") == []


def test_a_probe_runs_once_for_all_checks(site, monkeypatch):
    calls = []
    monkeypatch.setattr(stores, "_probe", lambda *a: calls.append(a) or StoreProbe("file:///x"))
    machine = site.machine()
    for name in ("own", "write", "speed", "clock"):
        site.look(f"stores.{name}", machine)
    assert len(calls) == 1


def test_a_probe_that_hangs_or_breaks(site, monkeypatch):
    monkeypatch.setattr(stores, "_KILL_S", 0.05)
    assert "does not answer within 0.05 s" in site.finding("stores.own").what
    monkeypatch.setattr(stores, "_KILL_S", 5)
    monkeypatch.setattr(stores, "_BOOT", "raise SystemExit('no {module}')")
    assert "could not be tried: no bootseer.doctor.store_probe" in site.finding("stores.own").what


@pytest.mark.root
@pytest.mark.parametrize("year", ["%y", "%Y"])
@pytest.mark.parametrize(
    ("left_s", "what"),
    [(-60, "has expired"), (630, "Kerberos ticket ends in 10 min"), (90000, ""), (None, "missing")],
)
def test_kerberos_tickets(site, left_s, what, year):
    property_ = "<property><name>hadoop.security.authentication</name><value>kerberos</value>"
    conf = site.write(
        "hadoop/core-site.xml", f"<configuration>{property_}</property></configuration>"
    )
    ends = time.time() + (left_s or 0)
    dates = [datetime.fromtimestamp(t).strftime(f"%m/%d/{year} %H:%M:%S") for t in (0, ends)]
    ticket = f"{dates[0]}  {dates[1]}  krbtgt/X@X" if left_s is not None else "no cache"
    site.program("klist", f"echo '{ticket}'")
    settings = {
        "user": User(NOBODY.pw_name, NOBODY.pw_uid, "/"),
        "store__url": "hdfs://nn/user/{user}",
        "hdfs__conf_dir": str(conf.parent),
        "hdfs__kerberos_cache": "FILE:/tmp/krb5cc_{uid}",
    }
    found = site.look("stores.ticket", **settings)
    assert len(found) == bool(what)
    assert all(what in item.what for item in found)
    site.program("klist", "id -u >&2; id -u; echo $HOME $KRB5CCNAME")
    nobody = site.machine(user=User(NOBODY.pw_name, NOBODY.pw_uid, "/"))
    said = nobody.run(["klist"], as_user=True).stdout.split()
    assert said == [str(NOBODY.pw_uid), "/"]  # not root, who would read a user's file
    conf.write_text("<configuration/>")
    assert site.look("stores.ticket", **settings) == []


def test_the_document_of_a_probe_is_checked(site, monkeypatch):
    monkeypatch.setattr(stores, "_BOOT", "print('{{\"url\": 3}}')")
    assert "could not be tried" in site.finding("stores.own").what
