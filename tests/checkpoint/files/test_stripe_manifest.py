"""Manifests of striped files: what is written is read back, what is damaged is refused."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.checkpoint.files import stripe_manifest
from bootseer.checkpoint.files.stripe_manifest import StripeManifest, UnitPlace
from bootseer.core import table
from bootseer.errors import Corrupt, UnknownVersion
from bootseer.testing import strategies as bst

UNIT = 4096
ID = "0123456789abcdef" * 2
NAME = "run/step-100/model.pt"
LAYOUT = StripeManifest(
    size_bytes=3 * UNIT - 1,
    unit_bytes=UNIT,
    parts_id=ID,
    parts=2,
    units=(UnitPlace(0, 0, 2**127 + 7), UnitPlace(1, 0, 2), UnitPlace(0, UNIT, 3)),
)
WIDE = replace(
    LAYOUT,
    size_bytes=200 * UNIT,
    units=tuple(UnitPlace(i % 2, i // 2 * UNIT, i * 2**120) for i in range(200)),
)


def refused(data):
    with pytest.raises(Corrupt, match=f"^{re.escape(NAME)}: ") as caught:
        stripe_manifest.decode(data, NAME)
    return caught


# What is written


@given(bst.layouts())
def test_a_layout_is_read_back(layout):
    data = layout.encode()
    assert stripe_manifest.decode(data, NAME) == layout
    assert stripe_manifest.may_be_manifest(len(data)) and stripe_manifest.is_manifest(data)


@given(bst.layouts())
def test_every_byte_of_a_file_is_in_one_place(layout):
    read_back = stripe_manifest.decode(layout.encode(), NAME)
    ranges = [read_back.unit_range(index) for index in range(len(read_back.units))]
    assert [0, *(r.stop for r in ranges)] == [*(r.start for r in ranges), layout.size_bytes]
    assert all(r.size_bytes == layout.unit_bytes for r in ranges[:-1])
    assert all(0 < r.size_bytes <= layout.unit_bytes for r in ranges)
    places = sorted(
        (unit.part, unit.offset, unit.offset + r.size_bytes)
        for unit, r in zip(read_back.units, ranges, strict=True)
    )
    assert all(a[0] < b[0] or a[2] <= b[1] for a, b in pairwise(places))
    ends = [max((stop for p, _, stop in places if p == part), default=0) for part in range(6)]
    assert read_back.part_bytes() == ends[: layout.parts]


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.sampled_from([4096, 65536, 2**30]))
def test_units_between_are_those_that_hold_the_bytes(start, size, unit_bytes):
    stop = start + size
    units = stripe_manifest.units_between(start, stop, unit_bytes)
    if not size:
        assert not units
    else:
        assert units[0] * unit_bytes <= start < (units[0] + 1) * unit_bytes
        assert units[-1] * unit_bytes < stop <= (units[-1] + 1) * unit_bytes
        assert len(units) == units[-1] - units[0] + 1


def test_one_length_in_4096_is_that_of_a_manifest():
    lengths = [size for size in range(1_000_000) if stripe_manifest.may_be_manifest(size)]
    assert lengths == list(range(1847, 1_000_000, 4096))
    beyond = stripe_manifest.MAX_BYTES - stripe_manifest.MAX_BYTES % 4096 + 1847
    assert stripe_manifest.may_be_manifest(beyond - 4096) and not stripe_manifest.may_be_manifest(
        beyond
    )


def test_a_manifest_of_the_greatest_length_is_one(monkeypatch):
    monkeypatch.setattr(stripe_manifest, "MAX_BYTES", 1847 + 4096)
    assert stripe_manifest.may_be_manifest(1847 + 4096) and not stripe_manifest.may_be_manifest(
        1847 + 2 * 4096
    )


@given(bst.layouts(), st.data())
def test_the_digest_is_that_of_the_content(layout, data):
    moved = replace(layout, parts_id=ID, parts=layout.parts + 1)
    assert moved.digest == layout.digest
    if not layout.units:
        return
    index = data.draw(st.integers(0, len(layout.units) - 1))
    unit = layout.units[index]
    other = unit._replace(checksum=unit.checksum ^ 1 << data.draw(st.integers(0, 127)))
    changed = replace(layout, units=(*layout.units[:index], other, *layout.units[index + 1 :]))
    assert changed.digest != layout.digest
    assert replace(layout, size_bytes=layout.size_bytes + 1).digest != layout.digest


def test_a_manifest_has_room_for_all_units(monkeypatch):
    rows_bytes = stripe_manifest.MAX_UNITS * stripe_manifest._ROW.size
    assert rows_bytes + table.MAX_HEADER_BYTES + 2 * 4096 <= stripe_manifest.MAX_BYTES
    monkeypatch.setattr(stripe_manifest, "MAX_UNITS", 3)
    assert stripe_manifest.decode(LAYOUT.encode(), NAME) == LAYOUT
    monkeypatch.setattr(stripe_manifest, "MAX_UNITS", 2)
    with pytest.raises(ValueError, match="3 units"):
        LAYOUT.encode()


def test_a_manifest_that_nobody_would_read_is_not_written():
    most = replace(LAYOUT, parts=stripe_manifest.MAX_PARTS)
    assert stripe_manifest.decode(most.encode(), NAME) == most
    with pytest.raises(ValueError, match="4097 parts"):
        replace(LAYOUT, parts=stripe_manifest.MAX_PARTS + 1).encode()


# What is damaged


def test_a_manifest_cut_anywhere_is_refused():
    data = LAYOUT.encode()
    for length in range(len(data)):
        refused(data[:length])


def test_a_manifest_with_one_byte_changed_is_refused():
    data = WIDE.encode()
    for at in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            refused(data[:at] + bytes([data[at] ^ change]) + data[at + 1 :])


@given(st.binary(min_size=1, max_size=100))
def test_what_is_added_or_something_else_is_refused(data):
    refused(LAYOUT.encode() + data)
    refused(data)
    refused(stripe_manifest.MAGIC + data)


def test_another_version_is_said_to_be_one():
    data = bytearray(LAYOUT.encode())
    data[8] = stripe_manifest.VERSION + 1
    assert isinstance(refused(bytes(data)).value, UnknownVersion)
    assert stripe_manifest.is_manifest(bytes(data))


# What cannot be


def hostile(rows=None, **fields):
    """A manifest that is whole, and says what the arguments say."""
    header = {
        "size_bytes": LAYOUT.size_bytes,
        "unit_bytes": UNIT,
        "parts_id": ID,
        "parts": 2,
        "digest": LAYOUT.digest,
        "pad": "",
    }
    header |= fields
    header = {key: value for key, value in header.items() if value is not ...}
    if rows is None:
        rows = [(u.part, u.offset, u.checksum % 2**64, u.checksum >> 64) for u in LAYOUT.units]
    return table.encode(
        stripe_manifest.MAGIC, stripe_manifest.VERSION, header, stripe_manifest._ROW, rows
    )


def test_what_hostile_makes_is_otherwise_a_manifest():
    assert stripe_manifest.decode(hostile(), NAME) == LAYOUT


@pytest.mark.parametrize("field", ["size_bytes", "unit_bytes", "parts"])
@pytest.mark.parametrize(
    "value", [..., -1, True, 1.5, 4096.0, "4096", None, [], {}, 2**63, 10**400]
)
def test_a_number_that_is_none_is_refused(field, value):
    assert field in str(refused(hostile(**{field: value})).value)


@pytest.mark.parametrize("field", ["parts_id", "digest"])
@pytest.mark.parametrize("value", [..., 1, None, ["a"], "a\nb", "a\0b", "a" * 5000])
def test_a_text_that_is_none_is_refused(field, value):
    assert field in str(refused(hostile(**{field: value})).value)


@pytest.mark.parametrize("value", [0, 1, 2048, UNIT - 1, UNIT + 1, 3 * UNIT, 2**30 + 1, 2**31])
def test_a_unit_is_a_power_of_two_within_limits(value):
    assert "unit_bytes" in str(refused(hostile(unit_bytes=value)).value)


@pytest.mark.parametrize(
    "value",
    ["", "../" * 10 + "ab", "a/b" + "0" * 29, ID.upper(), ID[:-1], ID + "0", "g" * 32, "٣" * 32],
)
def test_the_name_of_a_folder_of_parts_leads_nowhere_else(value):
    assert "parts_id" in str(refused(hostile(parts_id=value)).value)


@pytest.mark.parametrize("value", [0, 1, 2 * UNIT, 3 * UNIT + 1, 2**62, 2**63 - 1])
def test_units_that_do_not_make_the_length_are_refused(value):
    assert "do not make" in str(refused(hostile(size_bytes=value)).value)


@pytest.mark.parametrize("parts", [0, 1])
def test_a_unit_in_a_part_that_there_is_not_is_refused(parts):
    assert "which there is not" in str(refused(hostile(parts=parts)).value)
    refused(hostile(parts=stripe_manifest.MAX_PARTS + 1))


@pytest.mark.parametrize("offset", [2**62, 2**63, 2**64 - 1])
def test_a_unit_at_an_offset_that_no_file_has_is_refused(offset):
    refused(hostile(rows=[(0, 0, 7, 2**63), (1, offset, 2, 0), (0, UNIT, 3, 0)]))


def test_a_unit_at_the_last_offset_that_a_file_may_have_is_read():
    rows = [(0, 0, 7, 2**63), (1, 2**62 - 1, 2, 0), (0, UNIT, 3, 0)]
    assert stripe_manifest.decode(hostile(rows=rows), NAME).part_bytes() == [
        2 * UNIT - 1,
        2**62 - 1 + UNIT,
    ]


def test_parts_are_named_so_that_they_sort():
    names = [
        stripe_manifest.part_name(index) for index in (0, 7, 42, stripe_manifest.MAX_PARTS - 1)
    ]
    assert names == ["0000", "0007", "0042", "4095"]


@pytest.mark.parametrize("third", [(0, 0), (1, 0), (0, 1), (0, UNIT - 1), (1, UNIT - 1)], ids=str)
def test_units_that_share_a_place_are_refused(third):
    rows = [(0, 0, 7, 2**63), (1, 0, 2, 0), (*third, 3, 0)]
    assert "same place" in str(refused(hostile(rows=rows)).value)


def test_the_last_unit_is_as_long_as_the_rest_of_the_file():
    """One byte short of a unit: what follows it in its part begins there."""
    rows = [(0, UNIT - 1, 7, 2**63), (1, 0, 2, 0), (0, 0, 3, 0)]
    assert stripe_manifest.decode(hostile(rows=rows), NAME).units[2] == UnitPlace(0, 0, 3)


@pytest.mark.parametrize("digest", ["", "0" * 64, LAYOUT.digest.upper(), LAYOUT.digest[:-1]])
def test_a_digest_of_something_else_is_refused(digest):
    assert "digest" in str(refused(hostile(digest=digest)).value)


@pytest.mark.parametrize("value", [-UNIT, 0, 1, UNIT - 1, UNIT + 1, 2**31])
def test_what_cannot_be_a_unit_is_a_value_error(value):
    with pytest.raises(ValueError, match="power of two"):
        stripe_manifest.check_unit_bytes(value)
    assert [stripe_manifest.check_unit_bytes(2**n) for n in range(12, 31)] == [
        2**n for n in range(12, 31)
    ]
