"""Typed fields of decoded JSON: what is acceptable is returned, and everything else refused."""

import json

import pytest

from bootseer.core.fields import Fields, open_document
from bootseer.core.ranges import ByteRange
from bootseer.errors import Corrupt, UnknownVersion


def fields(value):
    return Fields({"it": value}, "the document")


def refused(read):
    with pytest.raises(Corrupt, match=r"the document.*it") as caught:
        read()
    return str(caught.value)


@pytest.mark.parametrize("value", [[], "text", 1, None, True])
def test_a_value_that_is_no_object_is_refused(value):
    with pytest.raises(Corrupt, match="the document: not a JSON object"):
        Fields(value, "the document")


def test_null_is_as_good_as_no_field():
    assert fields(0).has("it") and fields("").has("it") and fields(False).has("it")
    assert not fields(None).has("it") and not fields(1).has("another")


def test_a_text_has_a_greatest_length_and_one_line():
    assert fields("").text("it") == ""
    assert fields("abc").text("it", 3) == "abc"
    assert fields("x" * 4096).text("it") == "x" * 4096
    for wrong in ("abcd", "a\n", "\ra", "a\0"):
        refused(lambda wrong=wrong: fields(wrong).text("it", 3))
    for wrong in (None, 5, ["a"], "x" * 4097):
        refused(lambda wrong=wrong: fields(wrong).text("it"))


def test_each_of_several_texts_is_checked():
    assert fields(["a", "bcd"]).texts("it", 2, 3) == ["a", "bcd"]
    assert fields([]).texts("it") == []
    for wrong in (["a", "bcde"], ["a", "b\n"], ["a", 1], ["a", ["b"]], ["a", None], "ab"):
        refused(lambda wrong=wrong: fields(wrong).texts("it", 2, 3))
    assert "more than 2" in refused(lambda: fields(["a"] * 3).texts("it", 2, 3))


@pytest.mark.parametrize(
    ("read", "least", "most"),
    [
        (lambda f: f.count("it"), 0, 2**63 - 1),
        (lambda f: f.count("it", 7), 0, 7),
        (lambda f: f.rank("it"), -1, 2**31 - 1),
    ],
    ids=["count", "count to 7", "rank"],
)
def test_a_number_is_whole_and_in_its_range(read, least, most):
    for right in (least, 0, 1, most):
        assert read(fields(right)) == right
    for wrong in (least - 1, most + 1):
        assert "out of its range" in refused(lambda wrong=wrong: read(fields(wrong)))
    for wrong in (True, False, 1.0, "1", None, [1]):
        refused(lambda wrong=wrong: read(fields(wrong)))


def test_a_part_says_where_it_is():
    assert fields({"a": 5}).part("it").count("a") == 5
    assert fields({"a": 5}).unread("it") == {"a": 5}
    with pytest.raises(Corrupt, match="the document: it: field 'b'"):
        fields({"a": 5}).part("it").count("b")
    for wrong in ([], "{}", None):
        refused(lambda wrong=wrong: fields(wrong).part("it"))
        refused(lambda wrong=wrong: fields(wrong).unread("it"))


def test_a_list_has_a_greatest_length():
    assert fields([1, "a", None]).items("it", 3) == [1, "a", None]
    assert "more than 2" in refused(lambda: fields([1, 2, 3]).items("it", 2))
    refused(lambda: fields({}).items("it"))
    found = fields([{"a": 1}, {"a": 2}]).objects("it", 2)
    assert [one.count("a") for one in found] == [1, 2]
    assert "more than 1" in refused(lambda: fields([{}, {}]).objects("it", 1))
    refused(lambda: fields([{}, []]).objects("it"))


def test_a_range_has_a_first_byte_and_one_behind_it():
    most = 2**63 - 1
    right = [[0, 1], [5, 6], [0, most]]
    assert fields(right).ranges("it", 3) == [ByteRange(*row) for row in right]
    assert "more than 2" in refused(lambda: fields(right).ranges("it", 2))
    for wrong in ([5, 5], [6, 5], [-1, 5], [0, most + 1]):
        assert "not a range" in refused(lambda wrong=wrong: fields([[0, 1], wrong]).ranges("it", 2))


def test_rows_are_lists_of_whole_numbers_of_one_length():
    right = [[1, -2, 3], [4, 5, 6]]
    assert fields(right).rows("it", 2, 3) == right
    assert fields([]).rows("it", 2, 3) == []
    for wrong in ([4, 5], [4, 5, 6, 7], [4, 5, True], [4, 5, 6.0], [4, None, 6], "456", None, 5):
        assert "not a row" in refused(
            lambda wrong=wrong: fields([[1, 2, 3], wrong]).rows("it", 2, 3)
        )


def document(**change):
    return json.dumps({"format": "bootseer test", "version": 3, "a": 1} | change).encode()


def test_a_document_has_a_format_and_a_version():
    opened = open_document(document(), "x", "bootseer test", 3)
    assert opened.count("a") == 1
    with pytest.raises(Corrupt, match="x: its format is not 'bootseer test'"):
        open_document(document(format="bootseer tests"), "x", "bootseer test", 3)
    for version in (2, 4):
        with pytest.raises(UnknownVersion, match="x: only version 3"):
            open_document(document(version=version), "x", "bootseer test", 3)
    for wrong in ({"format": None}, {"version": None}, {"version": "3"}):
        with pytest.raises(Corrupt, match="x: field"):
            open_document(document(**wrong), "x", "bootseer test", 3)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000])
def test_invalid_json_is_refused(data):
    with pytest.raises(Corrupt, match="x: not JSON"):
        open_document(data, "x", "bootseer test", 3)
