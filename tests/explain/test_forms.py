"""The forms of lines of failures and of lines in which nothing failed, by their samples."""

from __future__ import annotations

import pytest

from clusterctl.domain.findings import Severity
from clusterctl.explain.engine import explain
from clusterctl.explain.failing import LineKind, forms, kind_of, message_of

FAILURES = [
    (one, sample)
    for kind in LineKind
    for one in forms().get(kind.value, ())
    for sample in one.samples
]
NOTHING = [sample for one in forms()["nothing"] for sample in one.samples]
# What stands before a line: tags of launchers, time stamps, names of hosts and containers, colours.
BEFORE = (
    *("[1,3]<stderr>:", "[1,3]<stderr>: ", "[rank3]: ", "(quux pid=7, ip=10.0.0.5) ", "demo-1: "),
    *("2026-01-01 10:00:00,123 ", "Nov  1 10:00:00 demo-1 quux[7]: ", "[10:00:00] ", "\x1b[31m"),
    *("10:00:00.123 ", "2026-01-01T10:00:00Z ", "[demo-1:07]  ", "| ", "quux-0  | ", "        "),
)


@pytest.mark.parametrize(
    "one", {id(one): one for one, _ in FAILURES}.values(), ids=lambda o: o.name
)
def test_a_sample_of_a_failure_has_its_form_and_a_text_and_no_other_form_hides_it(one):
    assert one.samples
    for text in one.samples:
        assert any(plain in text.lower() for plain in one.texts), text
        assert one.pattern.search(message_of(text)) or one.pattern.search(text), text
        assert kind_of(text) is not None, text
    for text in one.others:
        assert kind_of(text) is None, text


@pytest.mark.parametrize("one", [*forms()["harmless"], *forms()["nothing"]], ids=lambda o: o.name)
def test_a_sample_of_nothing_is_no_failure_and_what_is_similar_is_one(one):
    assert one.samples and one.others
    for text in one.samples:
        assert kind_of(text) is None, text
    for text in one.others:
        assert not one.pattern.fullmatch(message_of(text)), text


def test_a_failure_is_none_the_less_beside_a_part_that_says_that_nothing_failed():
    for _, failure in FAILURES:
        for form in ("{0}, {1}", "{1}, {0}", "{0} {1}"):
            if kind_of(form.format("step 1", failure)):
                lines = (form.format(nothing, failure) for nothing in NOTHING)
                assert not [line for line in lines if not kind_of(line)]


@pytest.mark.parametrize("before", BEFORE)
def test_what_stands_before_a_failure_does_not_hide_it(before):
    for _, failure in FAILURES:
        found = explain([f"step 1\n{before}{failure}\n"])
        assert found.severity is not Severity.INFO, f"{before}{failure}"


def test_a_form_that_does_not_say_so_ignores_case():
    for one, failure in FAILURES:
        if "(?-i:" not in one.pattern.pattern:
            for text in (failure.upper(), failure.lower()):
                assert kind_of(text), text
                assert explain([f"{text}\n"]).severity is not Severity.INFO, text


@pytest.mark.parametrize("form", ["{0} quux: {1}", "{1} {0}", "{0} quux: {1}, {0}"])
def test_a_failure_in_any_part_of_a_long_line_is_found(form):
    """Only parts of it are matched: its begin, its end, and what is around words of failures."""
    text = form.format("widget " * 300, "unable to find the handle")
    assert kind_of(text) is LineKind.DOUBTFUL
    assert explain([f"{text}\n"]).failing
