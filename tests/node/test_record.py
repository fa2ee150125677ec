"""The codec: what is written is what is read, and a wrong value names its field."""

from __future__ import annotations

import contextlib
import enum
import math
import string
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.node.record import (
    RecordError,
    from_data,
    from_json,
    read_rows,
    salvage,
    to_data,
    to_json,
)


@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python 3.10 made it a type")
def test_a_union_with_none_in_the_form_of_python_3_10():
    assert from_data(int | None, None) is None
    assert from_data(int | None, 3) == 3
    with pytest.raises(RecordError, match="expected an integer, got 'x'"):
        from_data(int | None, "x")
    found = salvage(tuple[int | None, ...], [1, "x", None])
    assert found == ((1, None), ("[1]: expected an integer, got 'x'",))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_bytes: int = 0


@dataclass(frozen=True)
class Node:
    host: str
    up: bool = True
    load: float = 0.0
    colour: Colour = Colour.RED
    gpus: tuple[Gpu, ...] = ()
    pair: tuple[int, str] = (0, "")
    limits: dict[str, Optional[int]] = field(default_factory=dict)
    parent: Optional[Gpu] = None
    marks: frozenset[str] = frozenset()
    free: Any = None
    labels: Mapping[str, str] = field(default_factory=dict)
    since: datetime = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def __post_init__(self) -> None:
        if "/" in self.host:
            raise ValueError(f"not a host: {self.host!r}")


texts = st.text()
numbers = st.floats(allow_nan=False, allow_infinity=False)
whole = st.integers(1 - (1 << 64), (1 << 64) - 1)
gpus = st.builds(Gpu, texts, whole)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)
nodes = st.builds(
    Node,
    texts.filter(lambda text: "/" not in text),
    st.booleans(),
    numbers,
    st.sampled_from(Colour),
    st.lists(gpus, max_size=3).map(tuple),
    st.tuples(whole, texts),
    st.dictionaries(texts, st.none() | whole, max_size=3),
    st.none() | gpus,
    st.frozensets(texts, max_size=3),
    json_values,
    st.dictionaries(texts, texts, max_size=3),
    st.datetimes(timezones=st.sampled_from([timezone.utc, timezone(timedelta(hours=-3.5))])),
)


@given(nodes)
def test_what_is_written_is_what_is_read(node):
    text = to_json(node)
    assert "\n" not in text
    assert text.isascii()
    assert from_json(Node, text) == node


@given(nodes, st.sampled_from([one.name for one in fields(Node)]), json_values)
def test_any_value_is_read_exactly_or_refused_with_its_field(node, name, value):
    data = {**to_data(node), name: value}
    try:
        read = from_data(Node, data)
    except RecordError as error:
        assert error.keys[:1] == (name,) or "/" in value
        assert str(error).isprintable()
        return
    if name in ("host", "up", "load", "colour", "pair"):
        assert to_data(read)[name] == value


@given(nodes, st.sampled_from([one.name for one in fields(Node)]), json_values)
def test_what_is_wrong_is_left_out_and_told_and_nothing_else(node, name, value):
    data = {**to_data(node), name: value}
    found, problems = salvage(Node, data)
    try:
        assert (found, problems) == (from_data(Node, data), ())
    except RecordError as error:
        assert str(error) in problems
        if found is not None:
            assert replace(found, **{name: getattr(node, name)}) == node
            assert from_data(Node, to_data(found)) == found


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have_is_not_written(number):
    with pytest.raises(RecordError, match=r"^a\.b\[1\]: expected a finite number$"):
        to_json({"x": [1.0], "a": {"b": (0.5, number)}})


@given(st.text(string.printable) | st.binary())
def test_no_text_is_anything_but_a_record_or_a_record_error(text):
    with contextlib.suppress(RecordError):
        assert isinstance(from_json(Node, text), Node)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "host: missing"),
        ({"host": 7}, "host: expected a string, got 7"),
        ({"host": "a", "up": 1}, "up: expected true or false, got 1"),
        ({"host": "a", "load": True}, "load: expected a finite number, got True"),
        ({"host": "a", "load": float("inf")}, "load: expected a finite number, got inf"),
        ({"host": "a", "load": 10**400}, "load: expected a finite number, got 1"),
        ({"host": "a", "colour": "green"}, "colour: expected 'red' or 'blue', got 'green'"),
        ({"host": "a", "gpus": [{"name": "x"}, {"name": 7}]}, "gpus[1].name: expected a string"),
        ({"host": "a", "gpus": [{}]}, "gpus[0].name: missing"),
        ({"host": "a", "pair": [1]}, "pair: expected an array of 2, got 1"),
        ({"host": "a", "limits": {"n": "x"}}, "limits.n: expected an integer, got 'x'"),
        ({"host": "a", "marks": "abc"}, "marks: expected an array, got 'abc'"),
        ({"host": "a", "labels": {"n": 1}}, "labels.n: expected a string, got 1"),
        ({"host": "a", "labels": {"\x1b": 1}}, r"labels.\x1b: expected a string, got 1"),
        ({"host": "a", "since": "2026-01-01"}, "since: expected a time with a time zone, in ISO"),
        ({"host": "a", "since": 7}, "since: expected a time with a time zone, in ISO 8601, got 7"),
        ({"host": "a/b"}, "not a host: 'a/b'"),
        ([], "expected an object, got []"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_field(data, message):
    with pytest.raises(RecordError) as caught:
        from_data(Node, data)
    assert str(caught.value).startswith(message)


def test_unknown_keys_are_ignored_and_missing_ones_are_defaults():
    assert from_data(Node, {"host": "a", "later": 3}) == Node("a")


@pytest.mark.parametrize("text", ["", " \n", "{", "[" * 100_000, b"\xff", "{'a': 1}", "NaN."])
def test_a_text_that_is_not_json_is_a_record_error(text):
    with pytest.raises(RecordError, match="not JSON"):
        from_json(Node, text)


def test_rows_are_read_whole_and_damaged_ones_are_told():
    """A last line that was cut off is neither: its writer is at work, or was interrupted."""
    text = b'{"host": "a"}\n\n{"host": 7}\nx\xff\n{"host": "b"}\n{"host": "'
    found = read_rows(Node, text)
    assert [one.host for one in found.rows] == ["a", "b"]
    assert [one.partition(": ")[0] for one in found.damaged] == ["line 3", "line 4"]
    assert found.damaged[0] == "line 3: host: expected a string, got 7"
    assert len(read_rows(Node, text, is_whole=True).damaged) == 3
    assert read_rows(Node, '{"host": "c"}').rows == (Node("c"),)


def test_an_object_of_any_content():
    assert from_json(dict, '{"a": [1, null]}') == {"a": [1, None]}
    with pytest.raises(RecordError, match=r"expected an object, got \[1\]"):
        from_json(dict, "[1]")


@dataclass(frozen=True)
class Square:
    side: int
    secret: str = "s"
    json_names = ("side", "area")

    @property
    def area(self) -> int:
        return self.side**2


class Boxed(Square):
    def as_record(self) -> Square:
        return Square(self.side)


def test_a_record_may_name_what_is_written_and_what_is_written_in_its_place():
    assert to_data([Square(3), Boxed(2)]) == [{"side": 3, "area": 9}, {"side": 2, "area": 4}]
