"""What is said of a captured tree: each rule where it holds, and nothing where all is well."""

import importlib.util
import json
import os
import py_compile
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from bootseer.env.capture.lint import MOST_PER_KIND, examine
from bootseer.env.capture.site_packages import SMALL_BYTES
from bootseer.env.client.scan import TreeNode, scan
from bootseer.env.snapshot.manifest import Finding
from bootseer.errors import Unavailable

HOME = "/users/me"
SITE = "lib/python3.11/site-packages"
DIRECT_URL = "tiny-1.0.dist-info/direct_url.json"


class Env:
    """A target that is filled by hand, as if it were somewhere else."""

    def __init__(self, root, targets=("/site/env",)):
        self.root = root
        self.targets = list(targets)
        self.environ = {}
        self.folders = {}
        self.opened = []
        for number in range(len(self.targets)):
            (root / str(number)).mkdir(parents=True)

    def write(self, path, content="", mode=0o644, top="0"):
        file = self.root / top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        file.chmod(mode)
        return file

    def link(self, path, target, top="0"):
        link = self.root / top / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def compile(self, path, **options):
        return py_compile.compile(str(self.root / "0" / path), doraise=True, **options)

    def read(self, path, most_bytes):
        self.opened.append(path)
        with open(self.root / os.fsdecode(path), "rb") as file:
            return file.read(most_bytes)

    def listing(self, folder):
        if folder not in self.folders:
            raise FileNotFoundError(folder)
        return self.folders[folder]

    def examine(self):
        found = examine(
            *(scan(str(self.root)), self.read, self.targets, HOME, self.environ),
            listing=self.listing,
        )
        for finding in found:
            assert len(finding.kind) <= 40
            assert len(finding.detail) <= 300 and finding.detail.isprintable()
            assert len(finding.path) <= 4096 and finding.path.isprintable()
        return found

    def only(self):
        [finding] = self.examine()
        return finding


@pytest.fixture
def env(tmp_path):
    return Env(tmp_path / "tree")


def direct_url(url, editable=True):
    return json.dumps({"url": url, "dir_info": {"editable": True} if editable else {}})


def test_an_install_that_is_well_has_none(env):
    env.write("pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    env.write("bin/tool", "#!/site/env/bin/python\n", 0o755)
    env.write("bin/any", "#!/usr/bin/env python3\n", 0o755)
    env.write("bin/long", '#!/bin/sh\n\'\'\'exec\' "/site/env/bin/python" "$0" "$@"\n', 0o755)
    env.write("bin/moves", "#!/bin/sh\n'''exec' \"$(dirname -- \"$0\")\"/'python'\n", 0o755)
    env.write("bin/shell", "#!/bin/sh\nexec /tmp/tool\n", 0o755)
    env.write("bin/binary", b"\x7fELF\0", 0o755)
    env.write("bin/text", "# /tmp/python\n", 0o755)
    env.write("bin/empty", "#!\n", 0o755)
    env.write("bin/data", "#!/tmp/python\n")
    env.write("libexec/tool", "#!/tmp/python\n", 0o755)
    env.write(f"{SITE}/tiny/bin/tool", "#!/tmp/python\n", 0o755)
    env.write(f"{SITE}/distutils-precedence.pth", f"import os; x('{'../' * 9}tmp')\n")
    env.write(f"{SITE}/own.pth", "# /tmp/a\n\n/site/env/src\n../../../src\nvendored\n")
    env.write(f"{SITE}/copied-1.0.dist-info/direct_url.json", direct_url("file:///tmp/a", False))
    env.write(f"{SITE}/{DIRECT_URL}", '{"url": "file:///tmp/a.whl", "archive_info": {}}')
    env.write(f"{SITE}/odd-1.0.dist-info/direct_url.json", "[")
    env.write("share/direct_url.json", direct_url("file:///tmp/a"))
    env.write(f"{SITE}/tiny/path_finder.py")
    env.write(f"{SITE}/__editable___tiny.py")
    env.write(f"{SITE}/tiny/__init__.py", "one = 1\n")
    env.compile(f"{SITE}/tiny/__init__.py")
    env.write("conda-meta/history", "==> /tmp/cmd <==\n")
    env.link("lib64", "lib")
    env.link("bin/python", "/site/env/bin/python3.11")
    assert env.examine() == []


@pytest.mark.parametrize(
    ("target", "kind", "word"),
    [
        ("/usr/bin/python3.11", "link to outside", "every other one needs the same"),
        ("/sw/python/bin/python", "link to outside", "every node needs the same"),
        ("../../beside/it", "link to outside", "/site/beside/it"),
        ("/site/environment", "link to outside", "/site/environment"),
        ("/site/env/../beside", "link to outside", "/site/beside"),
        ("/tmp/build/python", "volatile link", "temporary"),
        ("../../../tmp/python", "volatile link", "temporary"),
        ("/dev/shm/x", "volatile link", "temporary"),
        ("/var/tmp/x", "volatile link", "temporary"),
        ("/run/user/1/x", "volatile link", "temporary"),
        ("/local/77/x", "volatile link", "temporary"),
        ("/fast/77/x", "volatile link", "temporary"),
        ("/home/you/x", "volatile link", "home folder"),
        (f"{HOME}/.local/share/uv/python/x", "volatile link", "home folder"),
    ],
)
def test_links_that_lead_out(env, target, kind, word):
    env.environ = {"TMPDIR": "/local/77/", "SLURM_TMPDIR": "/fast/77", "TMP": "/"}
    env.link("bin/python", target)
    found = env.only()
    assert (found.kind, found.path) == (kind, "/site/env/bin/python")
    assert word in found.detail


def test_a_link_to_another_target_is_well_even_where_that_is_temporary(tmp_path):
    env = Env(tmp_path / "tree", ["/site/env", "/tmp/other"])
    env.link("one", "/tmp/other/x")
    env.link("two", "../../tmp/other")
    env.link("back", "/site/env", top="1")
    assert env.examine() == []


EDITABLE = {
    "direct_url.json": ([(DIRECT_URL, direct_url("file:///src/my%20tiny"))], "/src/my tiny"),
    "a .pth file": ([("__editable__.tiny-1.0.pth", "/src/tiny\n/src/more\n")], "/src/tiny"),
    "a .pth file of code": (
        [("__editable__.tiny-1.0.pth", "import __editable___tiny_1_0_finder; x()\n")],
        "where it was written",
    ),
    "a finder": ([("__editable___tiny_1_0_finder.py", "")], "where it was written"),
    "an egg-link": ([("tiny.egg-link", "/src/tiny\n.")], "/src/tiny"),
}


@pytest.mark.parametrize("name", EDITABLE)
def test_editable_installs(env, name):
    files, location = EDITABLE[name]
    for path, content in files:
        env.write(f"{SITE}/{path}", content)
    found = env.only()
    path = files[0][0].removesuffix("/direct_url.json")
    assert (found.kind, found.path) == ("editable install", f"/site/env/{SITE}/{path}")
    assert f"imported from {location}, outside" in found.detail


def test_an_editable_install_is_said_once_whatever_it_has_left(env):
    env.write(f"{SITE}/{DIRECT_URL}", direct_url("file:///src/tiny"))
    env.write(f"{SITE}/__editable__.tiny-1.0.pth", "import __editable___tiny_1_0_finder\n")
    env.write(f"{SITE}/__editable___tiny_1_0_finder.py")
    env.write(f"{SITE}/_tiny.pth", "/src/tiny/src\n")
    env.write(f"{SITE}/old.egg-link", "/src/old\n.")
    env.write(f"{SITE}/easy-install.pth", "/src/old\n")
    assert [finding.path.rpartition("/")[2] for finding in env.examine()] == [
        "old.egg-link",
        "tiny-1.0.dist-info",
    ]


def test_an_editable_install_of_what_is_in_a_target_is_well(env):
    env.write(f"{SITE}/{DIRECT_URL}", direct_url("file:///site/env/src/tiny"))
    env.write(f"{SITE}/__editable___tiny_1_0_finder.py")
    env.write(f"{SITE}/__editable__.flat-1.0.pth", "/site/env/src/flat\n")
    env.write(f"{SITE}/old.egg-link", "/site/env/src/old\n.")
    assert env.examine() == []


def test_editable_installs_of_what_is_in_a_target_hide_no_others(env):
    for name, folder in {"a": "/site/env", "b": "/src", "c": "/site/env", "d": "/src"}.items():
        env.write(f"{SITE}/__editable__.{name}-1.0.pth", f"{folder}/{name}\n")
    assert [found.path[-9:] for found in env.examine()] == ["b-1.0.pth", "d-1.0.pth"]


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ("/src/shared\n", "/src/shared, outside"),
        ("ok\n/tmp/build\n/src/b\n", "/tmp/build (and 1 more folders), a place for temporary"),
        ("../../../../beside\n", "/site/beside, outside"),
    ],
)
def test_path_files_that_lead_out(env, lines, where):
    env.write(f"{SITE}/more.pth", lines)
    found = env.only()
    assert (found.kind, found.path) == ("path file", f"/site/env/{SITE}/more.pth")
    assert where in found.detail


def test_weights_are_no_path_files(env):
    env.write("lib/model.pth", "/src/shared\n")
    env.write("model.pth", b"PK\0\n/src/shared\n")
    env.write("large.pth", "/src/shared\n" * 10_000)
    assert env.examine() == []
    assert env.opened == [b"0/model.pth"]


@pytest.mark.parametrize(("size_bytes", "count"), [(SMALL_BYTES, 1), (SMALL_BYTES + 1, 0)])
def test_a_path_file_is_small(env, size_bytes, count):
    env.write(f"{SITE}/more.pth", "/src/shared\n".ljust(size_bytes, "#"))
    assert len(env.examine()) == count


@pytest.mark.parametrize(
    ("script", "interpreter"),
    [
        ("#!/tmp/venv/bin/python\n", "/tmp/venv/bin/python"),
        ("#! /home/you/bin/python3 -I\n", "/home/you/bin/python3"),
        ("#!/sw/python/bin/python", "/sw/python/bin/python"),
        ("#!/bin/sh\n'''exec' /tmp/a/python \"$0\" \"$@\"\n' '''\n", "/tmp/a/python"),
        ("#!/bin/sh\n'''exec' \"/tmp/a b/python\" \"$0\"\n' '''\n", "/tmp/a b/python"),
    ],
)
@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/site/env", "bin/tool"),
        ("/site/env/bin", "tool"),
        ("/site/env", "envs/inner/bin/tool"),
    ],
)
def test_scripts_of_an_interpreter_that_may_be_gone(tmp_path, target, path, script, interpreter):
    env = Env(tmp_path / "tree", [target])
    env.write(path, script, 0o755)
    env.write("envs/inner/conda-meta/history")
    found = env.only()
    assert (found.kind, found.path) == ("interpreter", f"{target}/{path}")
    assert f"runs on {interpreter}, " in found.detail


def test_an_interpreter_is_said_once(env):
    env.write("bin/a", "#!/usr/bin/python3\n", 0o755)
    for name in "bc":
        env.write(f"bin/{name}", "#!/tmp/python\n", 0o755)
    found = env.only()
    assert found.path == "/site/env/bin/b"
    assert "as 1 more scripts, /tmp/python" in found.detail


@pytest.mark.parametrize(
    ("line", "kind", "word"),
    [
        ("home = /tmp/python/bin", "base Python", "/tmp/python/bin"),
        (f"Home={HOME}/.pyenv/versions/3.11/bin", "base Python", "home folder"),
        ("include-system-site-packages = True", "system packages", "of the node's Python and"),
        (
            "home = /usr/bin\ninclude-system-site-packages = true",
            "system packages",
            "the packages of /usr/bin and",
        ),
    ],
)
def test_virtual_environments_that_need_more_of_a_node(env, line, kind, word):
    env.write("pyvenv.cfg", f"{line}\nversion = 3.11.2\n")
    found = env.only()
    assert (found.kind, found.path) == (kind, "/site/env/pyvenv.cfg")
    assert word in found.detail


def test_packages_without_bytecode(env):
    for number in range(110):
        env.write(f"{SITE}/deep/er/m{number}.py")
        env.write(f"src/m{number}.py")
        env.write(f"{SITE}/deep/er/__pycache__/m{number}.cpython-311.opt-1.pyc")
    found = env.only()
    assert (found.kind, found.path) == ("no bytecode", "/site/env")
    assert "110 files" in found.detail and "compileall -q /site/env`" in found.detail
    for number in range(60):
        (env.root / f"0/{SITE}/deep/er/__pycache__/m{number}.cpython-311.pyc").write_bytes(b"")
    assert env.examine() == []


def test_some_modules_without_bytecode_are_well(env):
    for number in range(300):
        env.write(f"{SITE}/m{number}.py")
        if number > 140:
            env.write(f"{SITE}/__pycache__/m{number}.pypy310.pyc")
    assert env.examine() == []


@pytest.mark.parametrize(
    ("sources", "compiled", "count"), [(100, 0, 0), (101, 0, 1), (202, 101, 0), (203, 101, 1)]
)
def test_bytecode_is_missing_where_many_and_most_have_none(sources, compiled, count):
    site, file = f"0/{SITE}".encode(), TreeNode("file", 0o644, 0, 0)
    tree = {site: TreeNode("folder", 0o755, 0, 0)}
    tree |= {site + b"/m%d.py" % n: file for n in range(sources)}
    tree |= {site + b"/__pycache__/m%d.cpython-311.pyc" % n: file for n in range(compiled)}
    found = examine(tree, lambda path, most_bytes: b"", ["/site/env"], HOME, {})
    assert [finding.kind for finding in found] == ["no bytecode"] * count


@pytest.mark.parametrize("what", ["time", "length"])
def test_stale_bytecode(env, what):
    source = env.write(f"{SITE}/a/b.py", "one = 1\n")
    env.compile(f"{SITE}/a/b.py")
    status = source.stat()
    if what == "time":
        os.utime(source, ns=(0, status.st_mtime_ns + 2 * 10**9))
    else:
        source.write_bytes(b"one = 111\n")
        os.utime(source, ns=(0, status.st_mtime_ns))
    found = env.only()
    tag = sys.implementation.cache_tag
    path = f"/site/env/{SITE}/a/__pycache__/b.{tag}.pyc"
    assert (found.kind, found.path) == ("stale bytecode", path)
    assert "1 of 1" in found.detail


def test_the_first_stale_bytecode_is_named_and_the_others_are_counted(tmp_path):
    def read(path, most_bytes):
        if b"/a." in path:
            raise PermissionError(path)
        return readable(path, most_bytes)

    env = Env(tmp_path / "tree", ["/site/env", "/site/more"])
    readable, env.read = env.read, read
    for top, name in ("0a", "0b", "1c"):
        source = env.write(f"{name}.py", "one = 1\n", top=top)
        env.compile(f"../{top}/{name}.py")
        os.utime(source, ns=(0, 0))
    found = env.only()
    assert found.path == f"/site/env/__pycache__/b.{sys.implementation.cache_tag}.pyc"
    assert "as 2 of 3 that" in found.detail and "compileall -q /site/env`" in found.detail


def test_bytecode_that_goes_by_a_hash_is_never_stale_by_its_time(env):
    source = env.write(f"{SITE}/a.py", "one = 1\n")
    env.compile(f"{SITE}/a.py", invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    os.utime(source, ns=(0, 0))
    assert env.examine() == []


def test_bytecode_whose_source_is_not_in_the_snapshot_is_not_looked_at(env):
    source = env.write(f"{SITE}/a.py", "one = 1\n")
    env.compile(f"{SITE}/a.py")
    source.unlink()
    assert env.examine() == env.opened == []


def test_of_much_bytecode_some_from_everywhere_is_looked_at(env):
    for number in range(1000):
        env.write(f"{SITE}/m{number:04}.py")
        env.write(f"{SITE}/__pycache__/m{number:04}.cpython-311.pyc", bytes(16))
    assert "64 of 64" in env.only().detail
    numbers = [int(path.rpartition(b"/m")[2][:4]) for path in env.opened]
    assert len(numbers) == 64 and numbers[0] < 16 and numbers[-1] > 980


USER_SITE = f"{HOME}/.local/{SITE}"


@pytest.fixture
def shadowed(env):
    env.write(f"{SITE}/Some_Thing-2.0.dist-info/METADATA")
    env.write(f"{SITE}/other-2.0.dist-info/METADATA")
    env.folders = {
        "/site/env": ["lib", "bin"],
        USER_SITE: ["some.thing-1.0.dist-info", "third-1.dist-info", "some.py"],
    }
    return env


def test_packages_that_the_user_has_too(shadowed):
    found = shadowed.only()
    assert (found.kind, found.path) == ("user site", f"/site/env/{SITE}")
    assert f"some-thing: also in {USER_SITE}, " in found.detail
    assert "PYTHONNOUSERSITE=1" in found.detail


@pytest.mark.parametrize(
    ("names", "text"),
    [("abc", "a, b, c: also in"), ("abcd", "a, b, c and 1 more: also in")],
)
def test_of_packages_that_the_user_has_too_three_are_named(env, names, text):
    for name in names:
        env.write(f"{SITE}/{name}-2.0.dist-info/METADATA")
    env.folders = {"/site/env": ["lib"], USER_SITE: [f"{name}-1.0.dist-info" for name in names]}
    assert text in env.only().detail


def test_a_folder_that_comes_before_the_users_packages_hides_no_other(shadowed):
    earlier = "lib/python3.10/site-packages"
    shadowed.write(f"{earlier}/Some_Thing-2.0.dist-info/METADATA")
    shadowed.environ["PYTHONPATH"] = f"/site/env/{earlier}"
    assert shadowed.only().path == f"/site/env/{SITE}"


def test_a_virtual_environment_hides_no_other_target(tmp_path):
    env = Env(tmp_path / "tree", ["/site/venv", "/site/env"])
    env.write("pyvenv.cfg", "home = /usr/bin\n")
    for top in "01":
        env.write(f"{SITE}/a-2.0.dist-info/METADATA", top=top)
    env.folders = {USER_SITE: ["a-1.0.dist-info"]}
    assert env.only().path == f"/site/env/{SITE}"


def not_asked(env):
    env.environ["PYTHONNOUSERSITE"] = "1"


def no_such(env):
    del env.folders[USER_SITE]


def others(env):
    env.folders[USER_SITE] = ["third-1.dist-info"]


def another_base(env):
    env.environ["PYTHONUSERBASE"] = "/site/base"


def a_base_that_is_nowhere(env):
    env.environ["PYTHONUSERBASE"] = "here"
    env.folders[f"here/{SITE}"] = env.folders[USER_SITE]


def in_path(env):
    env.environ["PYTHONPATH"] = f"/a:/site/env/{SITE}/"


def in_a_virtual_environment(env):
    env.write("pyvenv.cfg", "home = /usr/bin\n")


def in_a_virtual_environment_that_was_there(env):
    env.folders["/site/env"].append("pyvenv.cfg")


def is_the_users_own(env):
    env.targets = [f"{HOME}/.local"]


@pytest.mark.parametrize(
    "why",
    [
        *(not_asked, no_such, others, another_base, a_base_that_is_nowhere),
        *(in_path, is_the_users_own),
        *(in_a_virtual_environment, in_a_virtual_environment_that_was_there),
    ],
)
def test_the_users_packages_do_not_come_first(shadowed, why):
    why(shadowed)
    assert shadowed.examine() == []


def test_a_folder_of_target_comes_before_the_users_packages(env):
    env.write("some_thing-2.0.dist-info/METADATA")
    env.folders = {USER_SITE: ["some_thing-1.0.dist-info"]}
    assert env.examine() == []


def test_very_many_of_a_kind_are_counted(env):
    for number in range(MOST_PER_KIND + 7):
        env.link(f"lib/l{number:03}", "/sw/x")
    env.link("lib/z", "/tmp/x")
    found = env.examine()
    assert len(found) == MOST_PER_KIND + 2
    assert found[MOST_PER_KIND] == Finding(
        "link to outside", f"/site/env/lib/l{MOST_PER_KIND:03}", "7 more like these begin here"
    )
    assert found[-1].kind == "volatile link"


def test_what_is_said_fits_a_manifest(env):
    env.link("a\n\udcff", "/tmp/" + "deep\n/" * 200)
    assert env.only().path == "/site/env/a\\n\\udcff"
    env.write(f"{SITE}/{DIRECT_URL}", direct_url("file:///{}{0}/" + "%01/" * 900))
    assert len(env.examine()) == 2


@pytest.mark.parametrize("top", ["/sw", "/tmp"])
def test_of_what_is_too_long_the_middle_is_left_out(env, top):
    env.link("bin/python", top)
    room = 300 - len(env.only().detail) + len(top)
    whole = (top + "/" + "/".join(f"{number:03}" for number in range(99)))[:room]
    (env.root / "0/bin/python").unlink()
    env.link("bin/python", whole)
    assert f"leads to {whole}, " in env.only().detail

    (env.root / "0/bin/python").unlink()
    env.link("bin/python", whole + "more")
    shown = env.only().detail.removeprefix("leads to ").partition(", ")[0]
    head, tail = shown.split("…")
    assert len(shown) == room and 0 <= len(tail) - len(head) <= 1
    assert whole.startswith(head) and (whole + "more").endswith(tail)


@pytest.mark.parametrize("error", [PermissionError("no"), Unavailable("gone")])
def test_what_cannot_be_read_is_left_out(env, error):
    def read(path, most_bytes):
        raise error

    env.write(f"{SITE}/{DIRECT_URL}", direct_url("file:///src/tiny"))
    env.write(f"{SITE}/a.py", "one = 1\n")
    env.compile(f"{SITE}/a.py")
    env.write("pyvenv.cfg", "home = /tmp")
    env.read = read
    assert env.examine() == []


def test_what_can_be_read_is_said_beside_what_cannot(env):
    def read(path, most_bytes):
        if path == b"0/a/pyvenv.cfg":
            raise PermissionError(path)
        return b"home = /tmp\n"

    env.write("a/pyvenv.cfg")
    env.write("b/pyvenv.cfg")
    env.read = read
    assert env.only().path == "/site/env/b/pyvenv.cfg"


@pytest.mark.parametrize(
    "document", ["", "[]", "5", "null", "{}", '{"dir_info": 5}', "[" * 50_000, "\udcff"]
)
def test_a_direct_url_may_be_anything(env, document):
    env.write(f"{SITE}/{DIRECT_URL}", document.encode(errors="surrogateescape"))
    assert env.examine() == []


@pytest.mark.parametrize("url", [5, None, [], {}, "", "file://[", "https://x/y"])
def test_an_url_may_be_anything(env, url):
    env.write(f"{SITE}/{DIRECT_URL}", direct_url(url))
    assert [found.kind for found in env.examine()] in ([], ["editable install"])


def test_large_trees_take_little():
    folder = TreeNode("folder", 0o755, 0, 0)
    site = f"0/{SITE}".encode()
    tree = {b"0": folder, b"0/bin": folder, site: folder, site + b"/__pycache__": folder}
    for number in range(17_000):
        name = b"m%05d" % number
        tree[site + b"/" + name + b".py"] = TreeNode("file", 0o644, 0, 0, 9)
        tree[site + b"/__pycache__/" + name + b".cpython-311.pyc"] = TreeNode(
            "file", 0o644, 0, 0, 9
        )
    for number in range(3000):
        tree[b"0/bin/%d" % number] = TreeNode("file", 0o755, 0, 0, 9)
        tree[site + b"/%d.pth" % number] = TreeNode("file", 0o644, 0, 0, 9)
    opened = []

    def read(path, most_bytes):
        opened.append(path)
        assert most_bytes <= 64 << 10 and not path.endswith((b".py", b".so"))
        return bytes(16)

    began = time.process_time()
    examine(tree, read, ["/site/env"], HOME, {})
    # Ten times what it takes, for a machine that is slow or busy.
    assert time.process_time() - began < 1
    assert len(opened) <= 500 + 500 + 64


def run(*command, cwd=None):
    environ = {"PATH": os.defpath, "HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    if importlib.util.find_spec("ensurepip") is None:
        pytest.skip("no ensurepip; install python3-venv")
    folder = tmp_path_factory.mktemp("real") / "venv"
    run(sys.executable, "-m", "venv", str(folder))
    return folder


def examine_real(folder, *more_targets):
    tree = {b"0" + (b"/" + path if path else b""): node for path, node in scan(str(folder)).items()}

    def read(path, most_bytes):
        with open(folder / os.fsdecode(path[2:]), "rb") as file:
            return file.read(most_bytes)

    return examine(tree, read, [str(folder), *more_targets], "/nonexistent", {})


def test_of_a_real_virtual_environment_only_its_python_is_outside(venv):
    found = examine_real(venv)
    links = [finding for finding in found if "link" in finding.kind]
    assert [Path(finding.path).parent for finding in links] == [venv / "bin"]
    assert set(found) - set(links) == {f for f in found if f.kind == "base Python"}
    base = os.path.realpath(sys.base_prefix)
    assert examine_real(venv, base, sys.base_prefix) == []


# What setuptools does for an editable install, without the `wheel` that it needs for that.
BACKEND = """
import os, zipfile

FILES = {
    "__editable__.tiny_one-0.1.pth": os.path.dirname(os.path.abspath(__file__)),
    "tiny_one-0.1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: tiny-one\\nVersion: 0.1\\n",
    "tiny_one-0.1.dist-info/WHEEL": "Wheel-Version: 1.0\\nTag: py3-none-any\\n",
    "tiny_one-0.1.dist-info/RECORD": "",
}

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = "tiny_one-0.1-py3-none-any.whl"
    with zipfile.ZipFile(f"{wheel_directory}/{name}", "w") as wheel:
        for path, content in FILES.items():
            wheel.writestr(path, content)
    return name
"""


def test_a_real_editable_install(venv, tmp_path):
    (tmp_path / "backend.py").write_text(BACKEND)
    (tmp_path / "pyproject.toml").write_text(
        textwrap.dedent("""
            [project]
            name = "tiny-one"
            version = "0.1"
            [build-system]
            requires = []
            build-backend = "backend"
            backend-path = ["."]
        """)
    )
    pip = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "install", "--no-index", "--no-build-isolation", "-e", str(tmp_path))
    found = [finding for finding in examine_real(venv) if finding.kind == "editable install"]
    run(*pip, "uninstall", "-y", "tiny-one")
    [finding] = found
    assert finding.path.endswith("/tiny_one-0.1.dist-info")
    assert str(tmp_path)[:60] in finding.detail
