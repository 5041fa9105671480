"""Records of the launcher's own files: read back as they were, and nothing else is."""

import json
import tracemalloc
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Literal

import pytest

from launcher.contract.records import (
    dump_record,
    parse_object,
    parse_record,
    parse_text,
    read_limited,
    read_object,
)


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Fixed:
    address: str


@dataclass(frozen=True, kw_only=True)
class Moving:
    endpoint: str
    is_host: bool = False


@dataclass(frozen=True, kw_only=True)
class Everything:
    text: str
    whole: int = 0
    number: float = 0.5
    truth: bool = False
    maybe: int | None = None
    words: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    place: tuple[int, str] = (0, "")
    counts: Mapping[str, int] = field(default_factory=dict)
    start: Literal["fresh", "fork"] = "fresh"
    colour: Colour | None = None
    meeting: Fixed | Moving | None = None
    metrics: Mapping[str, object] = field(default_factory=dict)


ALL: dict[str, Any] = {
    "text": "a",
    "whole": 3,
    "number": 2.5,
    "truth": True,
    "maybe": 7,
    "words": ("b", "c"),
    "pairs": (("d", "e"), ("f", "g")),
    "place": (4, "h"),
    "counts": {"exit": 2},
    "start": "fork",
    "meeting": Moving(endpoint="i", is_host=True),
    "metrics": {"loss": [1, None, {"x": "y"}]},
}


@pytest.mark.parametrize("values", [{"text": "a"}, ALL, {**ALL, "meeting": Fixed(address="j")}])
def test_a_record_is_read_back_as_it_was(values):
    record = Everything(**values)
    whole, short = json.dumps(asdict(record)), dump_record(record)
    assert parse_record(Everything, json.loads(whole)) == record
    assert parse_record(Everything, json.loads(short)) == record
    # A default that is made anew for each record is written all the same.
    assert {*json.loads(short)} == {*values, "counts", "metrics"}


def test_a_text_is_a_record_of_one_schema():
    assert parse_text(Fixed, '{"schema": 3, "address": "a"}', 3) == Fixed(address="a")
    for text in ('{"schema": 2, "address": "a"}', '{"address": "a"}'):
        with pytest.raises(ValueError, match="it is not a Fixed of schema 3"):
            parse_text(Fixed, text, 3)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", '"a"', "null", pytest.param("[" * 100_000, id="deep")]
)
def test_what_is_no_object_is_refused_and_read_as_an_empty_one(text, tmp_path):
    with pytest.raises(ValueError):  # noqa: PT011
        parse_object(text)
    (tmp_path / "a.json").write_text(text)
    assert read_object(tmp_path / "a.json") == read_object(tmp_path / "none") == {}
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert read_object(tmp_path / "a.json") == {"a": 1}


def test_a_file_is_read_up_to_its_limit(tmp_path):
    path = tmp_path / "a.json"
    for size in (2**26, 2**26 + 1):
        with path.open("wb") as file:
            file.truncate(size)
        if size == 2**26:
            assert len(read_limited(path)) == size
        else:
            with pytest.raises(ValueError, match="larger than 64 MiB"):
                read_limited(path)


def test_a_small_file_takes_little_memory(tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1}')
    tracemalloc.start()
    read_object(tmp_path / "a.json")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_a_whole_number_is_a_number_of_the_kind_that_the_field_has():
    number = parse_record(Everything, {"text": "a", "number": 3}).number
    assert (number, type(number)) == (3.0, float)


def test_an_enum_is_written_by_its_value():
    assert parse_record(Everything, {"text": "a", "colour": "red"}).colour is Colour.RED


def test_names_of_a_later_version_are_passed_over():
    assert parse_record(Everything, {"text": "a", "later": 1}) == Everything(text="a")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("text", 1, "text: found 1; accepted: str"),
        ("text", None, "text: found None; accepted: str"),
        ("whole", True, "whole: found True; accepted: int"),
        ("whole", "3", "whole: found '3'; accepted: int"),
        ("whole", 3.5, "whole: found 3.5; accepted: int"),
        ("number", "x", "number: found 'x'; accepted: float"),
        ("truth", 1, "truth: found 1; accepted: bool"),
        ("maybe", "x", "maybe: found 'x'; accepted: int; found 'x'; accepted: null"),
        ("words", "bc", "words: found 'bc'; accepted: a list"),
        ("words", [1], "words: found 1; accepted: str"),
        ("pairs", [["d"]], "pairs: found ['d']; accepted: a list of 2"),
        ("place", ["h", 4], "place: found 'h'; accepted: int"),
        ("counts", [], "counts: found []; accepted: a mapping"),
        ("counts", {"exit": "2"}, "counts: found '2'; accepted: int"),
        ("start", "warm", "start: found 'warm'; accepted: 'fresh' or 'fork'"),
        ("colour", "blue", "colour: 'blue' is not a valid Colour"),
        (
            "meeting",
            {},
            "meeting: field address of Fixed is missing; field endpoint of Moving is missing",
        ),
        ("meeting", 5, "meeting: found 5; accepted: the fields of Fixed"),
    ],
)
def test_anything_else_is_refused_with_its_place(key, value, told):
    with pytest.raises(ValueError, match=r"^" + key) as refused:
        parse_record(Everything, {"text": "a", key: value})
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_what_is_no_mapping_is_no_record(data):
    with pytest.raises(ValueError, match="accepted: the fields of Everything"):
        parse_record(Everything, data)


def test_a_field_without_a_default_must_be_there():
    with pytest.raises(ValueError, match="field text of Everything is missing"):
        parse_record(Everything, {})
