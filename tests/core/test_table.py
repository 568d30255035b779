"""The container of lists: what is written is read back, and what does not fit is refused whole."""

import hashlib
import json
import struct

import pytest

from bootseer.core import table
from bootseer.errors import Corrupt, UnknownVersion

MAGIC = b"BSTEST\0\0"
ROW = struct.Struct("<HI")
HEADER = {"b": [1, None], "a": "ü"}
ROWS = [(1, 2), (3, 4)]


def encode(header=HEADER, rows=ROWS):
    return table.encode(MAGIC, 3, header, ROW, rows)


def sealed(body):
    return body + hashlib.sha256(body).digest()


def made(text, rows=b"", *, magic=MAGIC, version=3, row_bytes=ROW.size, header_bytes=None):
    """A table of any header, sealed as it should be."""
    header_bytes = len(text) if header_bytes is None else header_bytes
    return sealed(struct.pack("<8sHHI", magic, version, row_bytes, header_bytes) + text + rows)


def decode(data):
    return table.decode(MAGIC, 3, ROW, data, "the table")


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS])
@pytest.mark.parametrize("header", [{}, HEADER])
def test_a_table_is_read_back(header, rows):
    data = encode(header, rows)
    assert decode(data) == (header, rows)
    packed = b"".join(ROW.pack(*row) for row in rows)
    assert table.close_table(MAGIC, 3, header, ROW.size, packed) == data
    opened, left = table.open_table(MAGIC, 3, ROW.size, data, "the table")
    assert (opened, left) == (header, packed)
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    assert made(text, packed) == data


def test_equal_headers_give_equal_bytes():
    assert encode({"a": 1, "b": 2}) == encode({"b": 2, "a": 1})


def test_the_digest_is_that_of_all_before_it():
    data = encode()
    assert table.digest_of(data) == hashlib.sha256(data[:-32]).digest()


def test_a_header_has_a_greatest_length():
    most = table.MAX_HEADER_BYTES - len('{"a":""}')
    assert decode(encode({"a": "x" * most})) == ({"a": "x" * most}, ROWS)
    with pytest.raises(Corrupt, match="the lengths in its header"):
        decode(encode({"a": "x" * (most + 1)}))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "too few"),
        (encode()[:47], "too few"),
        (made(b"{}", magic=b"BSTEST\0\1"), "not a BSTEST"),
        (made(b"{}", row_bytes=ROW.size + 1), "the lengths in its header"),
        (made(b"{}", row_bytes=0), "the lengths in its header"),
        (made(b"{}", header_bytes=3), "the lengths in its header"),
        (made(b"{}", b"x"), "a whole number of 6 bytes"),
        (made(b"{}", bytes(ROW.size + 1)), "a whole number of 6 bytes"),
        (made(b""), "not JSON"),
        (made(b"{", bytes(ROW.size)), "not JSON"),
        (made(b"\xff\xff"), "not JSON"),
        (made(b"[" * 60_000), "not JSON"),
        (made(b"[]"), "not a JSON object"),
        (made(b"null"), "not a JSON object"),
    ],
)
def test_other_kinds_of_files_are_refused(data, said):
    with pytest.raises(Corrupt, match=f"^the table: .*{said}") as refused:
        decode(data)
    assert not isinstance(refused.value, UnknownVersion)


@pytest.mark.parametrize("version", [2, 4])
def test_another_version_is_distinguished_from_damage(version):
    with pytest.raises(UnknownVersion, match=f"version {version} is not understood, only 3 is"):
        decode(made(b"{}", version=version))


def test_a_wrong_digest_is_damage():
    data = bytearray(encode())
    data[-1] ^= 1
    with pytest.raises(Corrupt, match="checksum does not match"):
        decode(bytes(data))
