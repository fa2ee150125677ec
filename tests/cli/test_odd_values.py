"""Every option and argument of every command, with values that nobody should type."""

from __future__ import annotations

import math
from collections.abc import Iterator

import click
import pytest

from clusterctl.cli.copyclust import copyclust, place_of
from clusterctl.cli.main import cli
from clusterctl.cli.runclust import runclust
from clusterctl.cli.verify import copyclust_verify
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.operations.hosts_access import hosts_in

DIGITS = "9" * 5000  # more than Python's int() takes
ODD = ["", " ", "nan", "inf", "-1", "0", "1e400", DIGITS, f"1-{DIGITS}", f"demo-[{DIGITS}]"]
ODD += ["é∞", "٣", "\udcff", "a\nb", "..", "-x", "x" * 300, "1,5", "$5", "~", "[", "{", "%s"]


def parameters(command: click.Command) -> Iterator[tuple[click.Context, click.Parameter]]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner
            yield from parameters(inner)
    else:
        yield from ((context, one) for one in command.params)


@pytest.mark.parametrize("program", [cli, runclust, copyclust, copyclust_verify])
def test_an_odd_value_is_taken_or_refused_in_words(program, monkeypatch, tmp_path):
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    checked = 0
    for context, one in parameters(program):
        for value in ODD:
            checked += 1
            try:
                found = one.type.convert(value, one, context)
            except (click.UsageError, ClusterctlError) as refused:
                assert str(refused)
                continue
            assert not isinstance(found, float) or math.isfinite(found), (one.name, value)
    assert checked > 20


@pytest.mark.parametrize("value", [DIGITS, f"n{DIGITS}", f"n[{DIGITS}]", f"n[1-{DIGITS}]"])
def test_hosts_with_endless_numbers_are_refused_in_short(value):
    with pytest.raises(UsageError, match="cannot read the hosts ") as refused:
        hosts_in(value)
    assert len(refused.value.message) < 500


def test_a_place_in_the_hosts_file_with_endless_digits():
    with pytest.raises(UsageError, match="the hosts file has no such host"):
        place_of(DIGITS, ["one", "two"])


def test_free_texts_in_an_8_bit_locale():
    """Python decodes them as ASCII there."""
    typed = "team=grün".encode().decode("ascii", "surrogateescape")
    texts = {"--reason", "--message", "--tag"}
    found = {
        one.opts[0]: one.type.convert(typed, one, context)
        for context, one in parameters(cli)
        if one.opts[0] in texts
    }
    assert found == {**dict.fromkeys(texts, "team=grün"), "--tag": ("team", "grün")}
