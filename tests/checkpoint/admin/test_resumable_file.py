"""A file that comes in pieces has its name when it is whole, and goes on where it was before."""

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from bootseer.checkpoint.admin import resumable_file
from bootseer.checkpoint.admin.resumable_file import EXPORT_PREFIX, ResumableFile, remove_leftovers
from bootseer.errors import Conflict, Denied, NoSpace


@pytest.fixture(autouse=True)
def journal(monkeypatch):
    """Have short files go on, too."""
    monkeypatch.setattr(resumable_file, "JOURNAL_LEAST_BYTES", 4)


def begin(path, digest="1", size_bytes=8):
    return ResumableFile(str(path), size_bytes, 2, {"digest": digest})


def begun(path):
    made = begin(path)
    for offset in (6, 0, 2):
        made.put(offset, b"12")
        made.mark_written(offset)
    made.sync()
    made.close()
    return next(path.parent.glob("*.journal"))


def ended(made):
    made.close()
    again = begin(made.path)
    again.close()
    return again.done


def test_a_line_names_a_piece_once():
    """Or a few bytes each would stand for all pieces."""
    assert resumable_file._pieces(b"0-2, 3\n", 4) == [0, 1, 2, 3]
    assert resumable_file._pieces(b"0-3, 0-3\n", 4) is None


def test_goes_on(tmp_path):
    begun(tmp_path / "file")
    made = begin(tmp_path / "file")
    assert made.done == {0, 1, 3}
    made.close()


def test_names_nothing_more_once_a_write_has_failed(tmp_path, monkeypatch):
    """The kernel tells once that it has lost something, of whatever it had not stored yet."""
    made = begin(tmp_path / "file")
    for offset in (0, 2):
        made.put(offset, b"12")
    made.mark_written(0)

    def fdatasync(fd):
        patch.undo()
        raise OSError(errno.EDQUOT, "quota")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fdatasync)
        with pytest.raises(NoSpace):
            made.sync()
    made.mark_written(2)
    made.sync()
    assert ended(made) == set()


def test_a_line_that_is_written_in_portions_is_whole(tmp_path, monkeypatch):
    made = begin(tmp_path / "file")
    made.put(2, b"12")
    made.mark_written(2)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:1]))
        made.sync()
    assert ended(made) == {1}


def test_the_umask_is_read_and_not_set():
    before = os.umask(0o027)
    try:
        assert resumable_file._umask() == 0o027
    finally:
        assert os.umask(before) == 0o027


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_line_that_was_cut_short_does_not_count(tmp_path, cut):
    journal = begun(tmp_path / "file")
    journal.write_bytes(journal.read_bytes()[:-cut])
    made = begin(tmp_path / "file")
    assert made.done == set()
    made.put(4, b"12")
    made.mark_written(4)
    made.sync()
    made.close()
    made = begin(tmp_path / "file")
    assert made.done == {2}
    made.close()


@pytest.mark.parametrize("line", [b"0-9\n", b"x\n", b"-1\n", b"3-1\n", b"1-\n", b"9\n", b"\0\0\n"])
def test_a_line_that_says_what_cannot_be_does_not_count(tmp_path, line):
    journal = begun(tmp_path / "file")
    first = journal.read_bytes().splitlines(keepends=True)[0]
    journal.write_bytes(first + line + b"0\n")
    made = begin(tmp_path / "file")
    assert made.done == set()
    made.close()


def test_another_version_begins_anew(tmp_path):
    begun(tmp_path / "file")
    made = begin(tmp_path / "file", "2")
    assert made.done == set()
    made.close()


def test_a_file_of_another_length_begins_anew(tmp_path):
    journal = begun(tmp_path / "file")
    os.truncate(str(journal).removesuffix(".journal"), 7)
    made = begin(tmp_path / "file")
    assert made.done == set()
    made.close()


@pytest.mark.parametrize("least_bytes", [4, 9])
def test_two_at_once_are_refused(tmp_path, monkeypatch, least_bytes):
    """The first goes on, with or without a journal."""
    monkeypatch.setattr(resumable_file, "JOURNAL_LEAST_BYTES", least_bytes)
    made = begin(tmp_path / "file")
    made.put(0, b"1234")
    made.mark_written(0)
    with pytest.raises(Conflict, match="another process"):
        begin(tmp_path / "file")
    made.put(4, b"5678")
    made.sync()
    made.publish(0o600, 0)
    made.close()
    assert (tmp_path / "file").read_bytes() == b"12345678"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("least_bytes", [4, 9])
@pytest.mark.parametrize("other", ["1", "2"])
def test_two_at_once_mix_nothing_where_there_are_no_locks(
    tmp_path, monkeypatch, least_bytes, other
):
    def flock(fd, operation):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(resumable_file, "JOURNAL_LEAST_BYTES", least_bytes)
    contents = {"1": b"12345678", "2": b"87654321"}
    first = begin(tmp_path / "file")
    first.put(0, contents["1"][:4])
    first.mark_written(0)
    first.sync()
    second = begin(tmp_path / "file", other)
    first.put(4, contents["1"][4:])
    first.mark_written(4)
    second.put(0, contents[other])
    try:
        first.publish(0o600, 0)
        assert (tmp_path / "file").read_bytes() == contents["1"]
    except Conflict:
        first.close()
    try:
        second.publish(0o600, 0)
    except Conflict:
        other = "1"
    for made in (first, second):
        made.close()
    assert (tmp_path / "file").read_bytes() == contents[other]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_leads_elsewhere_is_refused(tmp_path):
    made = begin(tmp_path / "file")
    made.discard()
    made.close()
    made = begin(tmp_path / "file")
    (temporary,) = (p for p in tmp_path.iterdir() if not p.name.endswith(".journal"))
    made.close()
    temporary.unlink()
    temporary.symlink_to(tmp_path / "other")
    with pytest.raises(Denied):
        begin(tmp_path / "file")
    assert not (tmp_path / "other").exists()


# Where it goes on


def test_a_file_whose_last_piece_is_shorter_goes_on_too(tmp_path):
    made = begin(tmp_path / "file", size_bytes=7)
    made.put(6, b"7")
    made.mark_written(6)
    made.sync()
    made.close()
    again = begin(tmp_path / "file", size_bytes=7)
    assert again.done == {3}
    again.close()


@pytest.mark.parametrize(("least_bytes", "goes_on"), [(8, True), (9, False)])
def test_a_file_that_is_long_enough_goes_on(tmp_path, monkeypatch, least_bytes, goes_on):
    monkeypatch.setattr(resumable_file, "JOURNAL_LEAST_BYTES", least_bytes)
    made = begin(tmp_path / "file")
    made.put(2, b"12")
    made.mark_written(2)
    made.sync()
    made.close()
    assert any(tmp_path.iterdir()) == goes_on
    again = begin(tmp_path / "file")
    assert again.done == ({1} if goes_on else set())
    again.close()


def test_it_goes_on_again_and_again(tmp_path):
    for number in range(4):
        made = begin(tmp_path / "file")
        assert made.done == set(range(number))
        made.put(2 * number, b"12")
        made.mark_written(2 * number)
        made.sync()
        made.close()


def test_what_was_noted_is_named_once(tmp_path):
    """And nothing is where nothing was noted."""
    made = begin(tmp_path / "file")
    for offset in (0, 4):
        made.sync()
        made.put(offset, b"12")
        made.mark_written(offset)
        made.sync()
        made.sync()
    made.close()
    (journal,) = tmp_path.glob("*.journal")
    assert journal.read_bytes().splitlines()[1:] == [b"0", b"2"]


def test_it_is_time_to_sync_when_so_much_would_be_fetched_again(tmp_path, monkeypatch):
    monkeypatch.setattr(resumable_file, "SYNC_BYTES", 4)
    made = begin(tmp_path / "file")
    told = []
    for offset in (0, 2, 4):
        told.append(made.mark_written(offset))
        if told[-1]:
            made.sync()
    assert told == [False, True, False]
    made.close()


@pytest.mark.parametrize(
    ("line", "pieces"),
    [
        (b"3\n", [3]),
        (b"4\n", None),
        (b"2-2, 0\n", [2, 0]),
        (b"0-3\n", [0, 1, 2, 3]),
        (b"0-4\n", None),
        (b"0-3, 0\n", None),
        (b"0", None),
        (b"0, x\n", None),
        (b"0-x\n", None),
        (b"x-0\n", None),
        (b"0" * 40 + b"\n", [0]),
        (b"0" * 41 + b"\n", None),
    ],
)
def test_a_line_is_believed_as_far_as_it_can_be_true(line, pieces):
    assert resumable_file._pieces(line, 4) == pieces


# What is on the disk


@pytest.fixture
def steps(monkeypatch):
    """What is written to a journal, synced or renamed, in order."""
    found = []

    def kind(fd):
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        return path.suffix or ("file" if path.is_file() else "folder")

    def noted(name, call):
        def step(first, *others):
            found.append((name, kind(first)) if isinstance(first, int) else (name,))
            return call(first, *others)

        return step

    for name in ("write", "fdatasync", "fsync", "rename"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    return found


def test_a_journal_names_what_is_on_the_disk(tmp_path, steps):
    made = begin(tmp_path / "file")
    assert steps == [("write", ".journal"), ("fdatasync", ".journal")]
    steps.clear()
    made.put(0, b"12")
    made.mark_written(0)
    made.sync()
    assert steps == [("fdatasync", "file"), ("write", ".journal"), ("fdatasync", ".journal")]
    made.close()


def test_a_file_that_has_its_name_is_on_the_disk(tmp_path, steps):
    made = begin(tmp_path / "file")
    steps.clear()
    made.publish(None, 0)
    assert steps == [("fsync", "file"), ("rename",), ("fsync", "folder")]
    made.close()


# Its name, mode and time


@pytest.mark.parametrize(("mode", "found"), [(None, 0o640), (0o604, 0o604)])
def test_it_replaces_what_is_there(tmp_path, mode, found):
    (tmp_path / "file").write_bytes(b"before")
    made = begin(tmp_path / "file")
    made.put(0, b"12345678")
    before = os.umask(0o027)
    try:
        made.publish(mode, 1_234_567_890_123_456_789)
    finally:
        os.umask(before)
    made.close()
    made.close()
    status = (tmp_path / "file").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (found, 1_234_567_890_123_456_789)
    assert (tmp_path / "file").read_bytes() == b"12345678"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_it_is_nobody_else_s_until_it_has_its_name(tmp_path):
    made = begin(tmp_path / "file")
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert all(path.name.startswith(EXPORT_PREFIX) for path in tmp_path.iterdir())
    made.close()


def test_a_name_without_a_folder_is_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = begin("file")
    made.put(0, b"12345678")
    made.publish(0o600, 0)
    made.close()
    assert (tmp_path / "file").read_bytes() == b"12345678"


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path):
    path = tmp_path / ("x" * 255)
    made = begin(path)
    made.publish(0o600, 0)
    made.close()
    assert path.stat().st_size == 8


def test_where_the_umask_is_not_told_a_file_is_its_owner_s_alone(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda path: "Name:\tpython\n")
    assert resumable_file._umask() == 0o077


# What is not gone on with


@pytest.fixture
def open_files(tmp_path):
    """Tells how many files of the folder this process has open."""

    def count():
        links = []
        for fd in Path("/proc/self/fd").iterdir():
            try:
                links.append(os.readlink(fd))
            except FileNotFoundError:
                continue
        return sum(link.startswith(str(tmp_path)) for link in links)

    return count


@pytest.mark.parametrize("least_bytes", [4, 9])
def test_what_was_closed_is_let_go(tmp_path, monkeypatch, open_files, least_bytes):
    monkeypatch.setattr(resumable_file, "JOURNAL_LEAST_BYTES", least_bytes)
    for end in (ResumableFile.close, ResumableFile.discard, lambda made: made.publish(None, 0)):
        made = begin(tmp_path / "file")
        end(made)
        made.close()
        assert open_files() == 0
        begin(tmp_path / "file", "2").close()  # and another one begun
        assert open_files() == 0


@pytest.mark.parametrize("ours", [True, False])
def test_what_is_discarded_is_gone_unless_another_has_it(tmp_path, ours):
    made = begin(tmp_path / "file")
    made.put(0, b"12")
    if not ours:
        for path in list(tmp_path.iterdir()):
            path.unlink()
            path.write_bytes(b"another's")
    made.discard()
    made.close()
    assert len(list(tmp_path.iterdir())) == (0 if ours else 2)


def test_what_gets_its_name_just_before_it_is_locked_is_not_written_to(
    tmp_path, monkeypatch, open_files
):
    flock = fcntl.flock
    (tmp_path / "file").write_bytes(b"")

    def late(fd, operation):
        os.rename(os.readlink(f"/proc/self/fd/{fd}"), tmp_path / "file")
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(Conflict, match="another process"):
        begin(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b""
    assert open_files() == 0


@pytest.mark.parametrize("suffix", ["", ".journal"])
def test_what_another_begins_meanwhile_is_not_begun_anew(tmp_path, monkeypatch, open_files, suffix):
    other = Path(str(begun(tmp_path / "file")).removesuffix(".journal") + suffix)

    def late(path):
        remove_leftovers(path)
        other.write_bytes(b"another's")

    monkeypatch.setattr(resumable_file, "remove_leftovers", late)
    with pytest.raises(Conflict, match="exists already"):
        begin(tmp_path / "file", "2")
    assert other.read_bytes() == b"another's"
    assert open_files() == 0


def test_a_file_whose_journal_cannot_be_used_is_not_begun(tmp_path, open_files):
    journal = begun(tmp_path / "file")
    journal.unlink()
    journal.symlink_to(tmp_path / "other")
    with pytest.raises(Denied):
        begin(tmp_path / "file")
    assert open_files() == 0
    assert not (tmp_path / "other").exists()


def test_what_is_another_user_s_is_refused(tmp_path, monkeypatch, open_files):
    begun(tmp_path / "file")
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(Denied, match="not a file of yours"):
        begin(tmp_path / "file")
    assert open_files() == 0


def test_what_is_no_file_is_refused(tmp_path, open_files):
    journal = begun(tmp_path / "file")
    temporary = journal.with_name(journal.stem)
    temporary.unlink()
    os.mkfifo(temporary)
    with pytest.raises(Denied, match="not a file of yours"):
        begin(tmp_path / "file")
    assert open_files() == 0


def test_what_is_left_beside_a_file_goes(tmp_path):
    journal = begun(tmp_path / "file")
    begun(tmp_path / "other")
    journal.unlink()  # one of two is there
    remove_leftovers(str(tmp_path / "file"))
    assert len(list(tmp_path.iterdir())) == 2
    remove_leftovers(str(tmp_path / "file"))
    remove_leftovers(str(tmp_path / "other"))
    assert list(tmp_path.iterdir()) == []
