"""The output of many hosts, line by line and grouped."""

from __future__ import annotations

import pytest

from clusterctl.cli import hostlines
from clusterctl.cli.hostlines import HostLines, show_grouped
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome

LONG = b"x" * 300_000


@pytest.mark.parametrize(
    ("chunks", "shown"),
    [
        ([b"a\nb", b"c\n", b"\nd"], [b"a", b"bc", b"", b"d"]),
        ([LONG[:70_000], LONG[70_000:], b"\nend\n"], [LONG, b"end"]),
        ([b"\xff\n"], [b"\xff"]),
    ],
)
def test_a_host_s_lines_stay_whole(capfdbinary, chunks, shown):
    lines = HostLines()
    for chunk in chunks:
        lines.take("n0", "stdout", chunk)
        lines.take("n1", "stdout", b"between\n")
    lines.finish("n0")
    out = capfdbinary.readouterr().out.splitlines()
    assert [line for line in out if line != b"n1: between"] == [b"n0: " + one for one in shown]


def test_where_a_line_is_cut_a_warning_says_so(capfdbinary, monkeypatch):
    monkeypatch.setattr(hostlines, "LONGEST_LINE", 1 << 10)
    lines = HostLines()
    lines.take("n0", "stdout", b"x" * 2000)
    lines.take("n0", "stdout", b"y\n")
    out, err = capfdbinary.readouterr()
    assert out == b"n0: " + b"x" * 2000 + b"\nn0: y\n"
    assert err == b"n0: a line of more than 1.0 KiB is cut here\n"


def test_hosts_whose_bytes_differ_are_not_grouped(capfdbinary):
    def result(host, raw):
        text = raw.decode(errors="replace")
        return HostOutcome(host, CommandResult(host, "c", 0, text, "", 0.1, raw=(raw, b"")))

    show_grouped(FanoutResult((result("n0", b"\xff\n"), result("n1", b"\xfe"))))
    assert [line for line in capfdbinary.readouterr().out.split(b"\n") if b"-" not in line] == [
        *(b"n0", b"\xff", b"n1", b"\xfe", b""),
    ]
