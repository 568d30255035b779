"""Digests of files and folders for keys."""

import errno
import hashlib
import os

import pytest

from bootseer.env.client.inputs import digest
from bootseer.env.client.inputs.digest import (
    FileDigest,
    KeyProblem,
    file_digest,
    read_text,
    reading,
    tree_digest,
)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def test_a_files_digest_has_its_length(tmp_path):
    (tmp_path / "a").write_bytes(b"hello")
    assert file_digest(str(tmp_path / "a")) == FileDigest(sha256(b"hello"), 5)


@pytest.mark.parametrize("name", ["none", "a/below"])
def test_what_is_not_there_has_no_content(tmp_path, name):
    (tmp_path / "a").touch()
    assert read_text(str(tmp_path / name)) is None
    assert file_digest(str(tmp_path / name)) is None


def test_a_text_has_a_length_that_it_may_have(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.touch()
    os.truncate(path, digest.MAX_TEXT_BYTES + 1)
    with pytest.raises(KeyProblem, match="larger than 16 MiB"):
        read_text(str(path))
    monkeypatch.setattr(digest, "MAX_TEXT_BYTES", 5)
    path.write_bytes(b"hello")
    assert read_text(str(path)) == b"hello"


def test_a_project_has_a_size_that_it_may_have(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).write_bytes(b"hello")
    (tmp_path / "c").touch()
    os.truncate(tmp_path / "c", digest.MAX_TREE_BYTES)
    with pytest.raises(KeyProblem, match="more than 64 MiB or 10,000 files"):
        tree_digest(str(tmp_path))
    (tmp_path / "c").unlink()
    monkeypatch.setattr(digest, "MAX_TREE_FILES", 2)
    monkeypatch.setattr(digest, "MAX_TREE_BYTES", 10)
    assert tree_digest(str(tmp_path)).endswith("2 files, 10 bytes")


def test_a_projects_digest_is_of_names_and_content_in_order(tmp_path):
    for folder in ("d", "venv"):
        (tmp_path / folder).mkdir()
    (tmp_path / "venv/pyvenv.cfg").touch()
    (tmp_path / "d/b").write_bytes(b"hello")
    (tmp_path / "a").write_bytes(b"run")
    (tmp_path / "a").chmod(0o755)
    # What a link leads to counts elsewhere, if at all.
    (tmp_path / "c.egg-info").symlink_to("d")
    (tmp_path / "e").symlink_to("venv")
    (tmp_path / "f").symlink_to("d/b")
    os.mkfifo(tmp_path / "g")
    whole = b"".join(
        len(field).to_bytes(8, "little") + field
        for fields in [
            (b"executable", b"a", sha256(b"run").encode()),
            (b"link", b"c.egg-info", b"d"),
            (b"file", b"d/b", sha256(b"hello").encode()),
            (b"link", b"e", b"venv"),
            (b"link", b"f", b"d/b"),
            (b"other", b"g", b""),
        ]
        for field in fields
    )
    assert tree_digest(str(tmp_path)) == f"sha256:{sha256(whole)}, 2 files, 8 bytes"


@pytest.mark.parametrize(("filename", "named"), [("inner", "inner: "), (None, "outer: ")])
def test_what_cannot_be_read_is_named(filename, named):
    with pytest.raises(KeyProblem, match=named), reading("outer"):
        raise OSError(errno.EIO, "Input/output error", filename)
