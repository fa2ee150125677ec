"""Scalars of YAML files, against JSON's own parser."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.configuration.yaml_tree import Unreadable, dump, load


def meant(text):
    """Return what a plain scalar stands for: JSON's value, or the text."""
    try:
        value = json.loads(text, parse_constant=str)
    except ValueError:
        return text
    return text if isinstance(value, (str, list, dict)) else value


@given(
    st.text("0123456789eE.+-_x", min_size=1, max_size=12)
    | st.sampled_from(["true", "false", "null", "on", "Yes", "NULL", "~", "nan", "Infinity"])
    | st.floats(allow_nan=False, allow_infinity=False).map(json.dumps)
    | st.integers().map(str)
)
def test_a_plain_scalar_is_what_json_says_or_text(text):
    try:
        [found] = load(f"key: {text}".encode()).values()
    except Unreadable as error:
        # "-" begins a list, "..." ends a document; and 1e999 is a number that nothing can hold.
        assert text.startswith(("-", ".")) or math.isinf(meant(text)), error.problem
        return
    if not isinstance(found, (list, dict)):
        assert (found, type(found)) == (meant(text), type(meant(text)))


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**300), 10**300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
    | st.sampled_from(["1e-5", "0123", "on", "null", "1:30", "", "~", "true", "\x85", "\ufeff"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_what_is_written_is_read_back(value):
    found = load(dump(value).encode())
    assert (found, repr(found)) == (value, repr(value))
