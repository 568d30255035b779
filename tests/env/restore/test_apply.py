"""What is restored is the tree that was captured, made whole or not at all."""

import errno
import hashlib
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bootseer._io import ffi, lib
from bootseer.env.client.scan import TreeNode, difference
from bootseer.env.restore import apply as unpack_module
from bootseer.env.restore import atomic as restore_module
from bootseer.env.restore.atomic import remove
from bootseer.errors import BootseerError, Conflict, Denied, Unavailable

FOLDER = TreeNode("folder", 0o755, 0, 0, mtime_ns=7)


def file(data=b"", **more):
    digest = hashlib.sha256(data).digest()
    return TreeNode("file", 0o644, 0, 0, size_bytes=len(data), digest=digest, **more)


class Kernel:
    """The C extension, on a kernel without openat2(2)."""

    def __getattr__(self, name):
        return getattr(lib, name)

    def bs_has_openat2(self):
        return 0


@pytest.fixture(params=["openat2", "by names"])
def ways(request, monkeypatch):
    """Both ways to open what is in a folder."""
    if request.param == "by names":
        for module in (restore_module, unpack_module):
            monkeypatch.setattr(module, "lib", Kernel())
    elif not lib.bs_has_openat2():
        pytest.skip("no openat2(2) here")


def part(tree, number=0):
    """What is in a folder of a snapshot, as it is seen from that folder."""
    root = b"%d" % number
    found = {p[len(root) + 1 :]: n for p, n in tree.items() if (p + b"/").startswith(root + b"/")}
    return {p: n._replace(same_as=n.same_as[len(root) + 1 :]) for p, n in found.items()}


@pytest.mark.parametrize("chunk_bytes", [1000, 65536, 8 << 20])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_tree_comes_back(attributes, take, look, tmp_path, ways, chunk_bytes, threads):
    snapshot = take(attributes, chunk_bytes=chunk_bytes)
    counted = []
    snapshot.restore(tmp_path / "new", threads=threads, count=counted.append)
    assert look(tmp_path / "new") == part(snapshot.tree)
    assert sum(counted) == sum(chunk.size_bytes for chunk in snapshot.opened()[1])
    assert sorted(os.listdir(tmp_path)) == ["new", "source"]


def test_an_empty_folder_is_replaced(source, take, look, tmp_path):
    snapshot = take(source)
    (tmp_path / "new").mkdir()
    before = (tmp_path / "new").stat()
    snapshot.restore(tmp_path / "new")
    assert look(tmp_path / "new") == part(snapshot.tree)
    assert not os.path.samestat(before, (tmp_path / "new").stat())


@pytest.fixture
def users_overlay(tmp_path):
    """The root of an overlay that is mounted as a user's container runtime does, without xattrs.

    Its lower layer has an empty folder, and one with something in it.
    """
    for name in ("lower/empty", "lower/full/lib/deep", "upper", "work", "merged"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lower/full/lib/kept").write_text("kept")
    layers = ",".join(f"{name}dir={tmp_path}/{name}" for name in ("lower", "upper", "work"))
    merged = tmp_path / "merged"
    script = f"mount -t overlay overlay -o {layers} {merged} && echo done && exec cat"
    command = ["unshare", "--user", "--mount", "--map-root-user", "sh", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"done\n"
        yield Path(f"/proc/{process.pid}/root{merged}")
        process.stdin.close()


@pytest.mark.root
@pytest.mark.parametrize("there", ["new", "empty"])
def test_where_folders_cannot_be_moved(source, take, look, users_overlay, there):
    """As in containers of Enroot and Pyxis."""
    (users_overlay / "folder").mkdir()
    with pytest.raises(OSError) as found:
        os.rename(users_overlay / "folder", users_overlay / "other")
    assert found.value.errno == errno.EXDEV
    before = sorted({*os.listdir(users_overlay), there})
    snapshot = take(source)
    snapshot.restore(users_overlay / there)
    assert look(users_overlay / there) == part(snapshot.tree)
    assert sorted(os.listdir(users_overlay)) == before


@pytest.mark.root
def test_what_is_there_stays_where_folders_cannot_be_moved(source, take, look, users_overlay):
    snapshot = take(source)
    snapshot.restore(users_overlay / "full")
    found = look(users_overlay / "full")
    assert found.pop(b"lib/kept").size_bytes == 4
    assert found == part(snapshot.tree)


@pytest.mark.root
def test_what_fails_leaves_nothing_where_folders_cannot_be_moved(source, take, users_overlay):
    snapshot = take(source, chunk_bytes=1000)
    before = sorted(os.listdir(users_overlay))

    def read(chunk):
        raise Unavailable("the store is gone")

    with pytest.raises(Unavailable, match="gone"):
        snapshot.restore(users_overlay / "new", read=read)
    assert sorted(os.listdir(users_overlay)) == before


NAMES = st.binary(min_size=1, max_size=6).filter(
    lambda n: n not in (b".", b"..") and not set(n) & {0, 47}
)
TIMES = st.integers((1 - (1 << 31)) * 10**9, (1 << 33) * 10**9)
"""What ext4 can say."""
MODES = st.integers(0, 0o1777)


@st.composite
def trees(draw):
    tree = {b"": FOLDER, b"0": FOLDER._replace(mtime_ns=draw(TIMES), mode=draw(MODES))}
    content, folders, files = {}, [b"0"], []
    for name in draw(st.lists(NAMES, max_size=12)):
        path = draw(st.sampled_from(folders)) + b"/" + name
        kind = draw(st.sampled_from(["file", "file", "folder", "link", "name"]))
        if path in tree:
            continue
        if kind == "file":
            data = draw(st.binary(max_size=40)) * draw(st.sampled_from([1, 1, 30]))
            tree[path] = file(data, mtime_ns=draw(TIMES))._replace(mode=draw(MODES))
            content[path] = data
            files.append(path)
        elif kind == "folder":
            tree[path] = FOLDER._replace(mtime_ns=draw(TIMES), mode=draw(MODES))
            folders.append(path)
        elif kind == "link":
            tree[path] = TreeNode("link", 0o777, 0, 0, mtime_ns=draw(TIMES), target=draw(NAMES))
        elif files and (first := draw(st.sampled_from(files))) < path:
            tree[path] = tree[first]._replace(same_as=first)
    return dict(sorted(tree.items())), content


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(trees(), st.integers(1, 3000), st.integers(1, 3))
def test_any_tree_comes_back(tmp_path_factory, written, look, drawn, chunk_bytes, threads):
    folder = tmp_path_factory.mktemp("any")
    tree, content = drawn
    written(tree, content, chunk_bytes=chunk_bytes).restore(folder / "new", threads=threads)
    assert look(folder / "new") == part(tree)


@pytest.mark.parametrize("by_names", [0, 1])
@pytest.mark.parametrize("path", [b"..", b"a/..", b"../x", b"a/../../x"])
@pytest.mark.parametrize("action", ["FOLDER", "FILE", "BEGIN", "PART", "NAME", "LINK", "FINISH"])
def test_no_step_leads_upwards(tmp_path, look, action, path, by_names):
    """No index has such a path; should one come through, nothing is done with it."""
    (tmp_path / "folder" / "a").mkdir(parents=True)
    (tmp_path / "x").write_bytes(b"precious")
    before = look(tmp_path)
    texts = ffi.new("char[]", path + b"\0x")
    other = len(path) + 1
    step = {"path": 0, "other": other, "mode": 0o700, "action": getattr(lib, f"BS_{action}")}
    fd = os.open(tmp_path / "folder", os.O_RDONLY)
    try:
        folders = ffi.new("int[]", [fd])
        ground = ffi.new("bs_ground *", (folders, 1, texts, len(texts), by_names))
        done = ffi.new("size_t *")
        result = lib.bs_make(ground, ffi.new("bs_step *", step), 1, ffi.NULL, 0, done)
    finally:
        os.close(fd)
    assert result == -errno.EXDEV
    assert look(tmp_path) == before


def test_paths_as_long_as_they_can_be(written, tmp_path, ways):
    path = b"0"
    tree = {b"": FOLDER, b"0": FOLDER}
    while len(path) + 256 < 4095:
        path += b"/" + b"d" * min(255, 4093 - len(path))
        tree[path] = FOLDER
    path += b"/" + b"f" * (4094 - len(path))
    assert len(path) == 4095
    tree[path] = file(b"deep" * 1000)
    written(tree, {path: b"deep" * 1000}, chunk_bytes=900).restore(tmp_path / "new")
    fd = os.open(tmp_path / "new", os.O_RDONLY)
    try:
        found = os.stat(path[2:], dir_fd=fd)
        assert (found.st_size, found.st_mode, found.st_nlink) == (4000, 0o100644, 1)
    finally:
        os.close(fd)


def test_several_targets_and_a_file_in_two_of_them(written, look, tmp_path):
    data = {b"0/a": b"a" * 5000, b"1/b/c": b"c"}
    tree = {
        **{b"": FOLDER, b"0": FOLDER, b"0/a": file(data[b"0/a"]), b"1": FOLDER},
        **{b"1/a": file(data[b"0/a"], same_as=b"0/a"), b"1/b": FOLDER, b"1/b/c": file(b"c")},
    }
    (tmp_path / "elsewhere").mkdir()
    first, second = tmp_path / "first", tmp_path / "elsewhere/second"
    written(tree, data, chunk_bytes=1000).restore(first, second)
    assert os.path.samefile(first / "a", second / "a")
    assert {**look(first), b"": FOLDER} == part(tree)
    assert look(second)[b"b/c"] == tree[b"1/b/c"]


def before_and_after(tmp_path, source):
    """A folder that holds something, and that the snapshot makes something else of."""
    old = tmp_path / "old"
    (old / "kept/inner").mkdir(parents=True)
    (old / "kept/inner/file").write_bytes(b"stays")
    (old / "lib/deep").mkdir(parents=True)
    (old / "lib/a.py").write_bytes(b"older")
    (old / "lib/deep/own").write_bytes(b"stays")
    (old / "lib/deep/large/is a folder").mkdir(parents=True)
    (old / "lib/file7").symlink_to("../kept/inner/file")
    (old / "empty folder").write_bytes(b"is a file")
    (old / "link/is a folder").mkdir(parents=True)
    (old / "gone/with all").mkdir(parents=True)
    (old / "gone file").touch()
    (old / "to kept").symlink_to("kept")
    (old / "lib/deep").chmod(0o555)
    return old


@pytest.mark.parametrize("user", [0, 65534])
def test_what_is_there_is_kept_replaced_or_deleted(
    attributes, take, look, tmp_path, ways, user, monkeypatch
):
    if os.geteuid() != 0 and user == 0:
        pytest.skip("not root")
    deleted = [b"0/gone", b"0/gone file", b"0/never", b"0/never/was", b"0/to kept/inner/file"]
    snapshot = take(attributes, chunk_bytes=65536, deleted=sorted(deleted))
    old = before_and_after(tmp_path, attributes)
    if user and os.geteuid() == 0:
        subprocess.run(["chown", "-hR", f"{user}:{user}", str(old)], check=True)
        (old / "kept").chmod(0o500)
    kept = {p: n for p, n in look(old).items() if p.startswith((b"kept", b"lib/deep/own", b"to"))}
    old.chmod(0o500)
    index, chunks = snapshot.opened()
    parent = os.open(tmp_path, os.O_RDONLY)
    tmp_path.chmod(0o755)
    if os.geteuid() == 0 and user:
        os.seteuid(user)
    try:
        target = restore_module.RestoreTarget(parent, "old")
        restore_module.restore(index, chunks, snapshot.read, [target])
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        os.close(parent)
    found = look(old)
    assert found == dict(sorted({**part(snapshot.tree), **kept}.items()))
    assert difference(found, look(old)) == ((), (), ())
    assert stat.S_IMODE(old.stat().st_mode) == snapshot.tree[b"0"].mode


def test_several_targets_must_be_as_many_as_there_are(source, take, tmp_path):
    with pytest.raises(BootseerError, match="1 folders, and not 2"):
        take(source).restore(tmp_path / "a", tmp_path / "b")
    assert os.listdir(tmp_path) == ["source"]


class Cancelled(Exception):
    pass


def test_a_cancellation_leaves_nothing(source, take, tmp_path, threads_left):
    snapshot = take(source, chunk_bytes=1000)
    counted = []

    def check():
        if len(counted) > 20:
            raise Cancelled

    with pytest.raises(Cancelled):
        snapshot.restore(tmp_path / "new", count=counted.append, check_cancelled=check)
    assert 20 < len(counted) < 100
    assert os.listdir(tmp_path) == ["source"]
    assert not threads_left()


def test_a_cancellation_does_not_wait_for_all_that_is_to_be_read(source, take, tmp_path):
    snapshot = take(source, chunk_bytes=1000)
    asked, go_on = [], threading.Event()

    def read(chunk):
        asked.append(chunk)
        go_on.wait()
        return snapshot.read(chunk)

    def check():
        go_on.set()
        raise Cancelled

    with pytest.raises(Cancelled):
        snapshot.restore(tmp_path / "new", read=read, check_cancelled=check, threads=2)
    assert len(asked) <= 4
    assert os.listdir(tmp_path) == ["source"]


@pytest.mark.parametrize("nonempty", [False, True])
def test_what_cannot_be_read_leaves_nothing(source, take, look, tmp_path, nonempty, threads_left):
    snapshot = take(source, chunk_bytes=1000)
    if nonempty:
        before_and_after(tmp_path, source)
    before = look(tmp_path)

    def read(chunk):
        if chunk.start > 300_000:
            raise Unavailable("the store is gone")
        return snapshot.read(chunk)

    with pytest.raises(Unavailable, match="gone"):
        snapshot.restore(tmp_path / "old", read=read)
    assert difference(before, look(tmp_path)) == ((), (), ())
    assert not threads_left()


def test_a_bounded_number_of_chunks_is_read_ahead(source, take, tmp_path):
    snapshot = take(source, chunk_bytes=1000)
    now, most = 0, 0
    lock = threading.Lock()

    def read(chunk):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0)
        with lock:
            now -= 1
        return snapshot.read(chunk)

    snapshot.restore(tmp_path / "new", read=read, threads=3)
    assert most <= 3


@pytest.mark.parametrize("what", ["a file", "a link"])
def test_what_is_no_folder_is_left_alone(source, take, tmp_path, what):
    if what == "a file":
        (tmp_path / "new").write_bytes(b"precious")
    else:
        (tmp_path / "there").mkdir()
        (tmp_path / "new").symlink_to("there")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(Conflict, match="no folder"):
        take(source).restore(tmp_path / "new")
    assert sorted(os.listdir(tmp_path)) == before
    assert what == "a file" or not os.listdir(tmp_path / "there")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_folder_that_becomes_a_link_meanwhile_leads_nowhere(
    source, take, look, tmp_path, ways, threads
):
    snapshot = take(source, chunk_bytes=1000)
    outside = tmp_path / "outside"
    outside.mkdir()
    swapped = []

    def read(chunk):
        if chunk.start > 100_000 and not swapped:
            swapped.append(True)
            [made] = tmp_path.glob(".new.bootseer-*")
            (made / "lib").rename(made / "was lib")
            (made / "lib").symlink_to(outside)
        return snapshot.read(chunk)

    with pytest.raises(Conflict, match="meanwhile"):
        snapshot.restore(tmp_path / "new", read=read, threads=threads)
    assert swapped and not os.listdir(outside)
    assert sorted(os.listdir(tmp_path)) == ["outside", "source"]


def test_a_target_that_is_filled_meanwhile_is_left_alone(source, take, tmp_path):
    snapshot = take(source)
    (tmp_path / "new").mkdir()

    def read(chunk):
        (tmp_path / "new/file").touch()
        return snapshot.read(chunk)

    with pytest.raises(Conflict, match="try again"):
        snapshot.restore(tmp_path / "new", read=read)
    assert sorted(os.listdir(tmp_path)) == ["new", "source"]
    assert os.listdir(tmp_path / "new") == ["file"]


def test_a_long_name_of_a_target(source, take, look, tmp_path):
    snapshot = take(source)
    snapshot.restore(tmp_path / ("n" * 255))
    assert look(tmp_path / ("n" * 255)) == part(snapshot.tree)


@pytest.fixture
def nobody(tmp_path):
    """Become a user who owns nothing here, and may look."""
    tmp_path.chmod(0o755)
    fd = os.open(tmp_path, os.O_RDONLY)
    os.seteuid(65534)
    try:
        yield fd
    finally:
        os.seteuid(0)
        os.close(fd)


@pytest.mark.root
@pytest.mark.parametrize("target", ["there", "new"])
def test_a_folder_of_another_user_is_refused(source, take, tmp_path, target, request):
    snapshot = take(source)
    (tmp_path / "there").mkdir(mode=0o777)
    index, chunks = snapshot.opened()
    targets = [restore_module.RestoreTarget(request.getfixturevalue("nobody"), target)]
    with pytest.raises(Denied, match=r"a folder of your own|permission denied"):
        restore_module.restore(index, chunks, snapshot.read, targets)
    os.seteuid(0)
    assert sorted(os.listdir(tmp_path)) == ["source", "there"]


@pytest.mark.root
def test_an_ordinary_user_restores_what_no_one_may_write_to(attributes, take, look, tmp_path):
    snapshot = take(attributes, chunk_bytes=65536)
    snapshot.tree[b"0"] = snapshot.tree[b"0"]._replace(mode=0o555)
    (tmp_path / "home/new").mkdir(parents=True)
    os.chown(tmp_path / "home", 65534, 65534)
    os.chown(tmp_path / "home/new", 65534, 65534)
    index, chunks = snapshot.opened()
    parent = os.open(tmp_path / "home", os.O_RDONLY)
    os.seteuid(65534)
    try:
        target = restore_module.RestoreTarget(parent, "new")
        restore_module.restore(index, chunks, snapshot.read, [target])
    finally:
        os.seteuid(0)
        os.close(parent)
    found = look(tmp_path / "home/new")
    assert found[b"lib/a.py"] == part(snapshot.tree)[b"lib/a.py"]
    assert (tmp_path / "home/new/lib").stat().st_uid == 65534
    assert os.listdir(tmp_path / "home") == ["new"]


MOUNTED = """
import os, pickle, sys
from bootseer.env.snapshot import index
from bootseer.env.snapshot.chunks import split
from bootseer.env.restore.atomic import RestoreTarget, restore
from bootseer.errors import BootseerError
folder, how = sys.argv[1], sys.argv[2]
snapshot = pickle.load(open(sys.argv[3], "rb"))
found = index.decode(snapshot["index"], "index", snapshot["outside"])
stored = snapshot["stored"]
def read(chunk):
    if how == "fill" and chunk.start > 200_000 and not os.path.exists(folder + "/hog"):
        with open(folder + "/hog", "wb", buffering=0) as hog:
            try:
                while hog.write(bytes(4096)): pass
            except OSError: pass
    return stored[chunk.start : chunk.stop]
parent = os.open(folder if how != "target" else os.path.dirname(folder), os.O_RDONLY)
name = "new" if how != "target" else os.path.basename(folder)
try:
    restore(found, split(found, 20_000), read, [RestoreTarget(parent, name)])
except BootseerError as error:
    print(type(error).__name__, error)
print(sorted(os.listdir(folder)))
"""


def mounted(options, how, snapshot, tmp_path):
    """Restore to a tmpfs of its own, and say what came of it."""
    import pickle

    kept = tmp_path / "kept"
    kept.write_bytes(
        pickle.dumps({k: getattr(snapshot, k) for k in ("index", "stored", "outside")})
    )
    (tmp_path / "mount").mkdir()
    script = f'mount -t tmpfs -o {options} none "$1" && exec "$0" -Ic "$2" "$1" "$3" "$4"'
    argv = [sys.executable, str(tmp_path / "mount"), MOUNTED, how, str(kept)]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, *argv], capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.root
@pytest.mark.parametrize(
    ("options", "how", "said"),
    [
        ("size=256k", "plain", "NoSpace 'new' takes"),
        ("size=9m,nr_inodes=100", "plain", "NoSpace 'new' takes"),
        ("size=4m", "fill", "NoSpace cannot restore"),
        ("ro", "plain", "Denied cannot restore 'new': the file system is mounted read-only"),
    ],
)
def test_no_space(source, take, tmp_path, options, how, said):
    printed = mounted(options, how, take(source, chunk_bytes=20_000), tmp_path)
    assert printed.startswith(said)
    assert printed.endswith("['hog']\n" if how == "fill" else "[]\n")


@pytest.mark.root
def test_a_mount_is_filled_and_not_replaced(source, take, tmp_path):
    snapshot = take(source)
    printed = mounted("size=9m", "target", snapshot, tmp_path)
    assert (
        printed
        == f"{sorted(p for p in map(os.fsdecode, part(snapshot.tree)) if p and '/' not in p)}\n"
    )


def test_a_file_system_without_what_it_takes_is_named(written, tmp_path, monkeypatch):
    errors = {"bs_make": -95}

    class Lacking(Kernel):
        def bs_make(self, *args):
            return errors["bs_make"]

    monkeypatch.setattr(unpack_module, "lib", Lacking())
    tree = {b"": FOLDER, b"0": FOLDER, b"0/a": file(b"")}
    with pytest.raises(Unavailable, match="lacks what the snapshot has"):
        written(tree, {b"0/a": b""}).restore(tmp_path / "new")


class TestRemove:
    @pytest.fixture
    def folder(self, tmp_path):
        fd = os.open(tmp_path, os.O_RDONLY)
        yield fd
        os.close(fd)

    def test_all_is_gone_and_nothing_else(self, source, tmp_path, folder):
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept/file").touch()
        (source / "to kept").symlink_to(tmp_path / "kept")
        (source / "0/lib/to kept").symlink_to(tmp_path / "kept/file")
        remove(folder, "source")
        assert os.listdir(tmp_path) == ["kept"]
        assert os.listdir(tmp_path / "kept") == ["file"]

    @pytest.mark.parametrize(
        "make", [os.mkfifo, lambda path: path.symlink_to("kept"), lambda path: path.touch()]
    )
    def test_what_is_no_folder(self, tmp_path, folder, make):
        (tmp_path / "kept").mkdir()
        make(tmp_path / "it")
        remove(folder, "it")
        assert os.listdir(tmp_path) == ["kept"]

    def test_nothing(self, folder):
        with pytest.raises(FileNotFoundError, match="No such file or directory: 'it'"):
            remove(folder, "it")

    def test_folders_as_deep_as_they_come(self, tmp_path, folder):
        fd = os.dup(folder)
        for name in ["deep"] + ["d" * 9] * 5000:
            os.mkdir(name, dir_fd=fd)
            os.close(os.open("file", os.O_CREAT, dir_fd=fd))
            below = os.open(name, os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(fd)
        remove(folder, "deep")
        assert os.listdir(tmp_path) == ["file"]

    @pytest.mark.root
    def test_folders_that_nobody_may_look_into(self, tmp_path, folder):
        (tmp_path / "home/it/closed/inner").mkdir(parents=True)
        (tmp_path / "home/it/closed/file").touch()
        subprocess.run(["chown", "-R", "65534", str(tmp_path / "home")], check=True)
        for path in ("home/it/closed/inner", "home/it/closed", "home/it"):
            (tmp_path / path).chmod(0)
        home = os.open(tmp_path / "home", os.O_RDONLY)
        os.seteuid(65534)
        try:
            remove(home, "it")
        finally:
            os.seteuid(0)
            os.close(home)
        assert not os.listdir(tmp_path / "home")

    @pytest.mark.root
    def test_what_is_mounted_stays(self, tmp_path):
        (tmp_path / "it/mount").mkdir(parents=True)
        script = (
            'mount -t tmpfs none "$1/it/mount" && touch "$1/it/mount/kept" && "$0" -Ic "$2" "$1"'
        )
        code = (
            "import os, sys\nfrom bootseer.env.restore.atomic import remove\n"
            "try: remove(os.open(sys.argv[1], os.O_RDONLY), 'it')\n"
            "except OSError as error: print(error.errno, os.listdir(sys.argv[1] + '/it/mount'))"
        )
        argv = ["unshare", "-m", "sh", "-c", script, sys.executable, str(tmp_path), code]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert done.stdout == "16 ['kept']\n"


class TestFoldersAreOpenedWithoutLinks:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "root/a/b").mkdir(parents=True)
        (tmp_path / "root/link").symlink_to("a")
        (tmp_path / "root/a/out").symlink_to(tmp_path)
        (tmp_path / "root/file").touch()
        fd = os.open(tmp_path / "root", os.O_RDONLY)
        yield fd
        os.close(fd)

    @pytest.mark.parametrize("by_names", [0, 1])
    @pytest.mark.parametrize("path", ["", "a", "a/b"])
    def test_folders(self, folder, tmp_path, path, by_names):
        fd = lib.bs_open_folder(folder, path.encode(), by_names)
        assert os.path.samestat(os.fstat(fd), (tmp_path / "root" / path).stat())
        os.close(fd)

    @pytest.mark.parametrize("by_names", [0, 1])
    @pytest.mark.parametrize(
        "path",
        [
            *("..", "a/../..", "../root", "/", "/etc", "link", "link/b", "a/out", "a/out/root"),
            *("file", "none", "a/none", "file/x", "d" * 300, "d/" * 3000),
        ],
    )
    def test_all_else(self, folder, path, by_names):
        open_before = len(os.listdir("/proc/self/fd"))
        assert lib.bs_open_folder(folder, path.encode(), by_names) < 0
        assert len(os.listdir("/proc/self/fd")) == open_before
