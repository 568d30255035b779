"""Ranges of a file as what they are to be: whole, decompressed, and with the right digests."""

import gzip
import hashlib
import os

import pytest
import zstandard

from bootseer.errors import Corrupt, Unavailable
from bootseer.image.oci import blob as blob_module
from bootseer.image.oci.blob import Blob, ByteStream, DecompressionBudget, Layer
from bootseer.units import KIB, MIB

CONTENT = bytes(range(256)) * 2400  # 600 KiB: three pieces


@pytest.fixture
def blob_of(tmp_path):
    """Make a blob of a file that has other things before and behind it."""
    opened = []

    def make(content, before=b"before", behind=b"behind"):
        (tmp_path / "file").write_bytes(before + content + behind)
        opened.append(os.open(tmp_path / "file", os.O_RDONLY))
        return Blob("the blob", opened[-1], len(before), len(content))

    yield make
    for fd in opened:
        os.close(fd)


def digest(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_a_blob_is_read_in_pieces(blob_of):
    blob = blob_of(CONTENT)
    assert [len(piece) for piece in blob.pieces()] == [256 * KIB, 256 * KIB, 88 * KIB]
    assert b"".join(blob.pieces()) == CONTENT
    assert b"".join(blob.pieces(1000)) == CONTENT[1000:]
    assert list(blob.pieces(len(CONTENT))) == []
    assert list(blob_of(b"").pieces()) == []


def test_a_blob_that_became_shorter_is_told_of(blob_of, tmp_path):
    blob = blob_of(CONTENT)
    os.truncate(tmp_path / "file", 300 * KIB)
    with pytest.raises(Unavailable, match="the blob became shorter"):
        list(blob.pieces())


def test_a_blob_that_cannot_be_read_is_told_of(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(Unavailable, match="the blob cannot be read: Is a directory"):
        list(Blob("the blob", fd, 0, 10).pieces())
    os.close(fd)


@pytest.mark.parametrize("kind", ["blob", "pieces"])
def test_what_is_skipped_is_passed_over_and_no_more(blob_of, kind):
    blob = blob_of(CONTENT)
    stream = blob.stream() if kind == "blob" else ByteStream("pieces", blob.pieces())
    at = 0
    for skipped, read in ((0, 10), (5, 10), (256 * KIB - 25, 3), (0, 0), (100 * KIB, 200 * KIB)):
        stream.skip(skipped)
        at += skipped
        assert stream.position == at
        assert stream.read(read) == CONTENT[at : at + read]
        at += read
        assert stream.position == at
    stream.skip(len(CONTENT) - at)
    assert stream.position == len(CONTENT) and stream.read(10) == b""
    assert stream.position == len(CONTENT)
    with pytest.raises(Corrupt, match="ends within a member"):
        stream.skip(1)


@pytest.mark.parametrize("kind", ["blob", "pieces"])
@pytest.mark.parametrize("begun", [0, 10])
def test_nothing_behind_the_end_can_be_skipped(blob_of, kind, begun):
    blob = blob_of(CONTENT)
    stream = blob.stream() if kind == "blob" else ByteStream("pieces", blob.pieces())
    stream.read(begun)
    with pytest.raises(Corrupt, match="ends within a member"):
        stream.skip(len(CONTENT) - begun + 1)


def test_what_is_skipped_of_a_blob_is_not_read(blob_of, monkeypatch):
    read, pread = [], os.pread
    stream = blob_of(CONTENT).stream()
    monkeypatch.setattr(
        blob_module.os, "pread", lambda fd, size, at: read.append((at, size)) or pread(fd, size, at)
    )
    stream.skip(500 * KIB)
    assert stream.read(10) == CONTENT[500 * KIB :][:10]
    stream.skip(len(CONTENT) - 500 * KIB - 20)  # of a piece that is there already
    assert stream.read(20) == CONTENT[-10:]
    assert read == [(6 + 500 * KIB, 100 * KIB)]


def test_chunks_are_no_longer_than_asked_for(blob_of):
    stream = blob_of(CONTENT).stream()
    assert [bytes(chunk) for chunk in stream.chunks(5)] == [CONTENT[:5]]
    sizes = [len(chunk) for chunk in stream.chunks(300 * KIB)]
    assert sizes == [256 * KIB - 5, 44 * KIB + 5]
    assert [len(chunk) for chunk in stream.chunks(MIB)] == [256 * KIB - 44 * KIB - 5, 88 * KIB]


def gzip_of(*parts):
    return b"".join(gzip.compress(part, 1) for part in parts)


def zstd_of(*parts):
    return b"".join(zstandard.ZstdCompressor().compress(part) for part in parts)


SKIPPED = b"\x5e\x2a\x4d\x18\x04\0\0\0skip"
LARGE = os.urandom(300_000) + bytes(3 * MIB) + os.urandom(300_000)
FORMS = {
    "plain": LARGE,
    "gzip": gzip_of(LARGE),
    "members": gzip_of(LARGE[:1000], LARGE[1000:]),
    "padded members": gzip_of(LARGE[:1000]) + bytes(700) + gzip_of(LARGE[1000:]) + bytes(600_000),
    "zstd": zstd_of(LARGE),
    "frames": zstd_of(LARGE[:1000], LARGE[1000:]),
    "skipped frames": SKIPPED + zstd_of(LARGE[:1000]) + SKIPPED + zstd_of(LARGE[1000:]) + SKIPPED,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("again", [False, True])
def test_an_archive_is_read_whatever_its_form(blob_of, form, again):
    data, told = FORMS[form], []
    layer = Layer(blob_of(data), digest(data), digest(LARGE))
    pieces = list(layer.archive(DecompressionBudget(len(LARGE)), told.append, again=again))
    assert b"".join(pieces) == LARGE
    assert sum(told) == len(data) and len(told) == -(-len(data) // (256 * KIB))
    assert all(0 < len(piece) <= MIB for piece in pieces)


WRONG = digest(b"something else")


@pytest.mark.parametrize("form", ["plain", "gzip", "zstd"])
def test_each_digest_is_checked(blob_of, form):
    data = FORMS[form]

    def read(blob_digest, diff_id, *, again=False):
        layer = Layer(blob_of(data), blob_digest, diff_id)
        return b"".join(
            layer.archive(DecompressionBudget(MIB * 10), lambda size: None, again=again)
        )

    for again in (False, True):
        assert read("", digest(LARGE), again=again) == LARGE
        with pytest.raises(Corrupt, match=f"its digest is not {WRONG}"):
            read("", WRONG, again=again)
    with pytest.raises(Corrupt, match=f"its digest is not {WRONG}"):
        read(digest(data), WRONG)
    if form == "plain":
        # The blob is the archive: one digest of the two is looked at.
        assert read(WRONG, digest(LARGE)) == LARGE
        with pytest.raises(Corrupt):
            read(digest(data), WRONG, again=True)
    else:
        with pytest.raises(Corrupt, match=f"its digest is not {WRONG}"):
            read(WRONG, digest(LARGE))
        assert read(digest(data), WRONG, again=True) == LARGE, "it was read before"
        with pytest.raises(Corrupt, match=f"its digest is not {WRONG}"):
            read(WRONG, digest(LARGE), again=True)


@pytest.mark.parametrize("form", ["plain", "gzip", "zstd"])
def test_an_archive_unpacks_to_no_more_than_it_may(blob_of, form):
    layer = Layer(blob_of(FORMS[form]), "", digest(LARGE))
    with pytest.raises(Corrupt, match="the blob: the image unpacks to more than"):
        list(layer.archive(DecompressionBudget(len(LARGE) - 1), lambda size: None))


def test_a_budget_is_one_for_all_and_is_named():
    budget = DecompressionBudget(20_000_000)
    budget.take("a", 15_000_000)
    budget.take("b", 5_000_000)
    with pytest.raises(Corrupt, match="c: the image unpacks to more than 20 MB"):
        budget.take("c", 1)


@pytest.mark.parametrize(
    ("head", "name"), [(b"BZh91AY", "bzip2"), (b"\xfd7zXZ\0", "xz")], ids=["bzip2", "xz"]
)
def test_what_is_not_understood_says_what_to_do(blob_of, head, name):
    layer = Layer(blob_of(head + bytes(100)), "", WRONG)
    with pytest.raises(Unavailable, match=f"compressed with {name}; write the image again"):
        list(layer.archive(DecompressionBudget(1000), lambda size: None))


@pytest.mark.parametrize("head", [b"\x50", b"\x5f"])
def test_any_skipped_frame_is_one_of_zstd(blob_of, head):
    data = head + b"\x2a\x4d\x18\0\0\0\0" + zstd_of(b"content")
    layer = Layer(blob_of(data), "", digest(b"content"))
    assert b"".join(layer.archive(DecompressionBudget(1000), lambda size: None)) == b"content"


@pytest.mark.parametrize(
    "head", [b"\x4f\x2a\x4d\x18", b"\x60\x2a\x4d\x18", b"\x50\x2a\x4d\x19", b"\x28\xb5\x2f\xfe"]
)
def test_what_only_looks_like_zstd_is_read_as_it_is(blob_of, head):
    data = head + bytes(100)
    layer = Layer(blob_of(data), "", digest(data))
    assert b"".join(layer.archive(DecompressionBudget(1000), lambda size: None)) == data


def test_what_is_cut_is_damaged(blob_of):
    for form, message in (("gzip", "its digest is not"), ("zstd", "its digest is not")):
        data = FORMS[form][:-20]
        with pytest.raises(Corrupt, match=message):
            list(
                Layer(blob_of(data), "", digest(LARGE)).archive(DecompressionBudget(10 * MIB), int)
            )
