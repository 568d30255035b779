"""Tar archives read from front to back: what tarfile and GNU tar write is what is found."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from contextlib import suppress

import pytest
from bootseer_dev.material.containers import Entry, pack_tar
from hypothesis import given, settings
from hypothesis import strategies as st

from bootseer import tar
from bootseer.errors import Corrupt
from bootseer.image.oci.blob import ByteStream

names = st.lists(st.text("aé\n ", min_size=1, max_size=90), min_size=1, max_size=3).map("/".join)
entries = st.builds(
    Entry,
    name=names,
    kind=st.sampled_from([tarfile.REGTYPE, tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE]),
    data=st.binary(max_size=1500),
    link=names,
    mode=st.integers(0, 0o7777),
    uid=st.sampled_from([0, 1000, 3_000_000_000]),
    mtime=st.sampled_from([0, 1, 2**32 - 1, 1_700_000_000]),
)


def stream_of(data, piece=1000):
    return ByteStream("archive", iter([data[i : i + piece] for i in range(0, len(data), piece)]))


def read(data):
    reader = tar.TarReader(stream_of(data), "archive")
    return [(member, b"".join(bytes(c) for c in reader.content(member))) for member in reader]


@settings(deadline=None)
@given(st.lists(entries, max_size=5), st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_what_tarfile_writes_is_read(wanted, tar_format):
    wanted = [
        e if e.kind == tarfile.REGTYPE else Entry(e.name, e.kind, link=e.link, mode=e.mode)
        for e in wanted
    ]
    found = read(pack_tar(wanted, tar_format))
    assert [
        (m.name.rstrip("/"), m.kind.encode(), data, m.link, m.mode, m.uid, m.gid, m.mtime_s)
        for m, data in found
    ] == [(e.name, e.kind, e.data, e.link, e.mode, e.uid, e.uid, e.mtime) for e in wanted]


@settings(deadline=None)
@given(entries, st.dictionaries(st.text("ab.é", min_size=1), st.binary(max_size=600), max_size=4))
def test_what_is_written_is_read_again(entry, xattrs):
    kind, size = entry.kind.decode(), len(entry.data) if entry.kind == tarfile.REGTYPE else 0
    member = tar.Member(entry.name, kind, entry.mode, entry.uid, 7, int(entry.mtime), size)
    member.link, member.xattrs = entry.link, xattrs
    data = tar.encode(member, entry.name)
    assert len(data) % 512 == 0
    ((found, content),) = read(data + entry.data[:size] + tar.padding(size))
    found.stored_bytes = found.offset = 0
    found.name = found.name.rstrip("/")
    assert (found, content) == (member, entry.data[:size])


def test_attributes_end_with_a_nul_wherever_the_last_block_ends():
    for length in range(400, 1000):
        data = tar._encode_xattrs({"user.a": bytes([1]) * length})
        assert data.endswith(b"\0")


def test_ustar_and_old_archives_are_read():
    long = "a" * 90 + "/" + "b" * 90
    found = read(pack_tar([Entry(long, data=b"x")], tarfile.USTAR_FORMAT))
    assert [(member.name, data) for member, data in found] == [(long, b"x")]
    old = bytearray(pack_tar([Entry("folder/"), Entry("file")], tarfile.USTAR_FORMAT))
    for at in (0, 512):  # as in Unix V7: no magic, no type
        old[at + 156 : at + 157], old[at + 257 : at + 265] = b"\0", bytes(8)
        old[at + 148 : at + 156] = b" " * 8
        old[at + 148 : at + 156] = b"%06o\0 " % sum(old[at : at + 512])
    assert [(m.name, m.kind) for m, _ in read(bytes(old))] == [
        ("folder/", tar.FOLDER),
        ("file", tar.FILE),
    ]


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
@pytest.mark.parametrize(
    "options",
    [
        ["--format=gnu"],
        ["--format=posix", "--sparse-version=0.0"],
        ["--format=posix", "--sparse-version=0.1"],
        ["--format=posix", "--sparse-version=1.0"],
    ],
)
@pytest.mark.parametrize("holes", [1, 3, 100])
def test_sparse_files_are_read(tmp_path, options, holes):
    name = "n" * 120
    with (tmp_path / name).open("wb") as file:
        for index in range(holes):
            file.seek(index * 1_000_000 + 200_000)
            file.write(b"%d" % index)
        file.truncate(holes * 1_000_000)
    (tmp_path / "after").write_bytes(b"after")
    command = ["tar", "-c", "--sparse", *options, name, "after"]
    data = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout
    assert len(data) < holes * 10_000 + 20_000
    (sparse, content), (_, after) = read(data)
    assert sparse.name == name and sparse.extents is not None
    assert content == (tmp_path / name).read_bytes()
    assert after == b"after"


@pytest.mark.parametrize(
    ("pairs", "content"),
    [
        ([], b""),
        ([], b"\0"),
        ([(1, 1)], b"\0x"),
        ([(0, 2), (2, 1), (4, 1)], b"xxx\0x"),
    ],
)
def test_holes_may_be_anywhere_in_a_file(pairs, content):
    [(member, found)] = read(sparse(pairs, content.count(b"x"), len(content)))
    assert (member.size_bytes, found) == (len(content), content)


def test_a_map_has_no_more_pieces_than_may_be(monkeypatch):
    monkeypatch.setattr(tar, "MAX_HOLES", 3)
    [(_, found)] = read(sparse([(0, 1), (2, 1)], 2, 3))
    assert found == b"x\0x"
    with pytest.raises(Corrupt, match="map of a sparse file is too long"):
        read(sparse([(2 * number, 1) for number in range(4)], 4, 7))


def test_a_place_in_a_map_without_a_length_is_nothing():
    says = {"GNU.sparse.size": "9", "GNU.sparse.map": "0,5,9"}
    [(_, found)] = read(pack_tar([Entry("file", data=b"12345", pax=says)]))
    assert found == b"12345\0\0\0\0"


def test_numbers_that_squashfs_has_not_are_cut():
    times = [Entry("a", mtime=-5), Entry("b", mtime=2**40), Entry("c", mtime=1.75)]
    for tar_format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        found = read(pack_tar(times, tar_format))
        assert [member.mtime_s for member, _ in found] == [0, 2**32 - 1, 1]


def header(**fields):
    """A header as no library writes it."""
    info = tarfile.TarInfo(fields.pop("name", "file"))
    info.type = fields.pop("kind", b"0")
    info.size = fields.pop("size", 0)
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    for place, value in fields.items():
        at = int(place.lstrip("at"))
        block[at : at + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax(data, size=None, kind=b"x"):
    length = len(data) if size is None else size
    return header(kind=kind, size=length) + data + bytes(-len(data) % 512)


def sparse(pairs, stored, size):
    """An archive of a file with holes, whose map stands before its data."""
    numbers = [len(pairs), *(number for pair in pairs for number in pair)]
    lines = b"".join(b"%d\n" % number for number in numbers)
    data = lines + bytes(-len(lines) % 512) + b"x" * stored
    says = {"GNU.sparse.major": "1", "GNU.sparse.realsize": f"{size}"}
    return pack_tar([Entry("file", data=data, pax=says)])


def binary(number, size_bytes):
    """A number of a header that has no room for its digits."""
    return b"\x80" + number.to_bytes(size_bytes - 1, "big")


HOSTILE = {
    "text": (b"no tar" * 200, "not a tar archive"),
    "damaged later": (header() + header()[:200] + b"!" + header()[201:], "checksum"),
    "cut in a header": (header()[:300], "ends within a"),
    "cut in content": (header(size=1000) + b"x" * 600, "ends within"),
    "cut in a block of zeros": (b"\0", "ends within a member"),
    "cut behind an extended header": (pax(b"11 path=ab\n"), "ends within a member"),
    "cut in an extended header": (pax(bytes(512))[:600], "ends within an extended header"),
    "cut in an old map": (header(kind=b"S", at482=b"\1"), "map of a sparse file"),
    "cut in a map": (
        pax(b"22 GNU.sparse.major=1\n27 GNU.sparse.realsize=512\n")
        + header(size=1024)
        + b"1\n0\n5\n",
        "map of a sparse file is damaged",
    ),
    "cut behind a long name": (pax(b"name\0", kind=b"L"), "ends within a member"),
    "unknown type": (header(kind=b"Z"), "unknown type 'Z'"),
    "negative size": (header(at124=b"\xff" * 12), "the size -1"),
    "huge size": (header(at124=b"\x80" + b"\xff" * 11), "the size"),
    "size one too large": (header(at124=binary(1 << 62, 12)), "the size 4611686018427387904"),
    "huge owner": (header(at108=b"\x80" + b"\xff" * 7), "the uid"),
    "owner one too large": (header(at108=binary(1 << 32, 8)), "the uid 4294967296"),
    "group one too large": (header(at116=binary(1 << 32, 8)), "the gid 4294967296"),
    "no number": (header(at100=b"0009999\0"), "is none"),
    "folder with content": (header(name="a/", kind=b"\0", size=1) + bytes(512), "has content"),
    "NUL in a name": (pax(b"12 path=a\0b\n") + header(), "has a NUL"),
    "NUL in a link": (pax(b"16 linkpath=a\0b\n") + header(kind=b"2"), "has a NUL"),
    "negative extended header": (header(kind=b"x", at124=b"\xff" * 12), "header of -1 bytes"),
    "extended header one too large": (pax(b"", tar.MAX_HEADER_BYTES + 1), "of 1048577 bytes"),
    "huge extended header": (pax(b"", 1 << 40), "of 1099511627776 bytes"),
    "huge long name": (pax(b"", 2 << 20, b"L"), "of 2097152 bytes"),
    "many extended headers": (
        pax(b"510000 a=" + b"b" * 509_990 + b"\n") * 3 + header(),
        "of 510000",
    ),
    "many long names": (pax(b"a" * 600_000, kind=b"L") * 2 + header(), "of 600000 bytes"),
    "record too long": (pax(b"99 path=a\n") + header(), "is damaged"),
    "record of nothing": (pax(b"0 path=a\n") + header(), "is damaged"),
    "record goes back": (pax(b"9 path=a\n-9 path=a\n") + header(), "is damaged"),
    "record without a length": (pax(b"ab path=a\n") + header(), "is damaged"),
    "record without an end": (pax(b"11 path=abc") + header(), "is damaged"),
    "record of digits": (pax(b"1" * 1_000_000) + header(), "is damaged"),
    "record without a key": (pax(b"5 ab\n") + header(), "is damaged"),
    "size is no number": (pax(b"12 size=1e9\n") + header(), "not a number"),
    "map goes back": (sparse([(512, 5), (0, 5)], 10, 1000), "sparse file 'file' is damaged"),
    "map of a negative length": (
        sparse([(0, 10), (10, -1)], 9, 1000),
        "sparse file 'file' is damaged",
    ),
    "map of less than there is": (sparse([(0, 5)], 10, 1000), "sparse file 'file' is damaged"),
    "map one byte longer than the file": (
        sparse([(0, 6)], 6, 5),
        "sparse file 'file' is damaged",
    ),
    "file with holes one byte too large": (
        sparse([], 0, tar.MAX_BYTES),
        "sparse file 'file' is damaged",
    ),
    "old map far behind the file": (
        header(kind=b"S", size=512, at386=b"2" + b"0" * 10 + b"\0" + b"777\0", at483=b"7777\0"),
        "sparse file 'file' is damaged",
    ),
    "map is longer than the file": (
        header(kind=b"S", size=512, at386=b"0" * 11 + b"\0" + b"00000001000\0", at483=b"0000\0"),
        "sparse file 'file' is damaged",
    ),
    "file without end": (
        header(kind=b"S", size=0, at483=b"\x80" + b"\xff" * 11),
        "sparse file 'file' is damaged",
    ),
    "endless map": (
        header(kind=b"S", at482=b"\1") + (bytes(504) + b"\1" + bytes(7)) * 6000,
        "map of a sparse file",
    ),
    "map of too many": (
        pax(b"22 GNU.sparse.major=1\n27 GNU.sparse.realsize=512\n")
        + header(size=1024)
        + b"9999999999\n"
        + bytes(1013),
        "too long",
    ),
    "map without lines": (
        pax(b"22 GNU.sparse.major=1\n27 GNU.sparse.realsize=512\n")
        + header(size=4096)
        + b"1" * 4096,
        "is damaged",
    ),
}


def test_a_file_whose_name_ends_like_a_folder_has_its_content():
    """Go's reader, which container runtimes have, takes it so; what follows is no header."""
    ((member, content),) = read(header(name="a/", size=1024) + header(name="no member") * 2)
    assert (member.kind, member.size_bytes) == (tar.FILE, 1024)
    assert content == header(name="no member") * 2


def test_content_that_nobody_reads_is_passed_over():
    entries = [Entry("a", data=b"x" * 1300), Entry("b", data=header()), Entry("c")]
    reader = tar.TarReader(stream_of(pack_tar(entries)), "archive")
    assert [member.name for member in reader] == ["a", "b", "c"]


def test_an_extended_header_may_be_empty():
    [(member, _)] = read(pax(b"") + header() + bytes(1024))
    assert (member.name, member.size_bytes) == ("file", 0)


def test_extended_headers_may_take_so_much_for_each_member():
    length = tar.MAX_HEADER_BYTES
    full = pax(b"%d a=" % length + b"b" * (length - 11) + b"\n") + header()
    assert [member.name for member, _ in read(full + full)] == ["file", "file"]


def test_an_archive_may_end_without_blocks_of_zeros():
    assert [member.name for member, _ in read(header())] == ["file"]


def test_what_is_said_of_all_members_is_passed_over():
    comments = pax(b"510000 a=" + b"b" * 509_990 + b"\n", kind=b"g") * 3
    [(member, _)] = read(pax(b"14 path=other\n", kind=b"g") + comments + header())
    assert member.name == "file"


def test_an_extended_header_of_solaris_is_one():
    [(member, _)] = read(pax(b"14 path=other\n", kind=b"X") + header())
    assert member.name == "other"


def test_an_empty_value_takes_a_name_back_and_is_one_of_an_attribute():
    says = {"path": "", "SCHILY.xattr.user.a": ""}
    [(member, _)] = read(pack_tar([Entry("file", pax=says)]))
    assert (member.name, member.xattrs) == ("file", {"user.a": b""})


def test_headers_may_leave_numbers_out_or_say_them_in_binary():
    [(member, _)] = read(header(at108=bytes(8), at116=b" " * 8))
    assert (member.uid, member.gid) == (0, 0)
    [(member, _)] = read(header(at108=binary(2**32 - 1, 8), at116=binary(2**32 - 1, 8)))
    assert (member.uid, member.gid) == (2**32 - 1, 2**32 - 1)


def test_a_file_that_is_to_lie_in_one_piece_is_a_file():
    [(member, content)] = read(header(kind=b"7", size=3) + b"abc" + bytes(509))
    assert (member.kind, content) == (tar.FILE, b"abc")


def test_gnu_has_times_where_others_have_the_first_half_of_a_name():
    [(member, _)] = read(header(at345=b"12345670123\0"))
    assert member.name == "file"


def test_who_is_not_described_is_roots_and_as_old_as_can_be():
    unknown = tar.Member("a", tar.FOLDER)
    assert unknown == tar.Member("a", tar.FOLDER, 0o755, 0, 0, 0, 0, "", {}, 0, None, 0)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_damaged_or_meant_to_harm_is_refused(name):
    data, message = HOSTILE[name]
    with pytest.raises(Corrupt, match=message):
        read(data + bytes(0 if name.startswith("cut") else 1024))


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_damage_is_an_error_of_ours_or_harmless(data):
    wanted = [
        Entry("a" * 150, data=b"x" * 700, pax={"SCHILY.xattr.user.a": "b"}),
        Entry("b", tarfile.SYMTYPE, link="c" * 150),
    ]
    archive = bytearray(pack_tar(wanted, data.draw(st.sampled_from([1, 2]))))
    for _ in range(data.draw(st.integers(1, 4))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    # Damaged as it was written: the checksums are right.
    for at in range(0, len(archive), 512):
        block = archive[at : at + 512]
        if block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            archive[at + 148 : at + 156] = b"%06o\0 " % sum(block)
    with suppress(Corrupt):
        for member in tar.TarReader(stream_of(bytes(archive)), "archive"):
            assert 0 <= member.stored_bytes < tar.MAX_BYTES
