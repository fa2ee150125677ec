from __future__ import annotations

import pytest

from clusterctl.domain.errors import UsageError
from clusterctl.domain.units import (
    count,
    format_bytes,
    format_duration,
    format_link,
    format_rate,
    parse_bytes,
    parse_duration_s,
    parse_rate,
)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30s", 30), ("1.5m", 90), ("2h", 7200), (" 1 d ", 86400)]
)
def test_durations_read(text, seconds):
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "1w", "1h30m", "nan", "1e3", "٣"])
def test_no_durations(text):
    with pytest.raises(UsageError):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.34, "0.3 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (42.4, "42 s"),
        (59.9, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
    ],
)
def test_durations_written(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1023.6, "1.0 KiB"),
        (1536, "1.5 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        ((1 << 30) - 1, "1.0 GiB"),
        (1023.9 * (1 << 20), "1023.9 MiB"),
        ((1 << 40) - 1, "1.0 TiB"),
        (3 << 40, "3.0 TiB"),
    ],
)
def test_sizes(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "file", "0 files"),
        (1, "node", "1 node"),
        (2, "process", "2 processes"),
        (1, "more node", "1 more node"),
    ],
)
def test_counts(number, noun, text):
    assert count(number, noun) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("0", 0),
        ("64K", 65536),
        ("64KiB", 65536),
        ("8MiB", 8 << 20),
        ("8mib", 8 << 20),
        (" 8 MiB ", 8 << 20),
        ("1.5G", 3 << 29),
        ("10MB", 10_000_000),
        ("7b", 7),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "8iB", "8 M B", "1e6", "8MiB/s", "٣", "9" * 400])
def test_no_sizes(text):
    with pytest.raises(UsageError):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("25gbit", 3.125e9),
        ("25Gbit/s", 3.125e9),
        ("25 Gbit / s", 3.125e9),
        ("25Gbps", 3.125e9),
        ("160mbit", 2e7),
        ("160 Mbits", 2e7),
        ("0.5gbit", 6.25e7),
        ("800kbit", 1e5),
        ("8bit", 1),
        ("100MB/s", 1e8),
        ("100MiB/s", 100 << 20),
        ("1B/s", 1),
        ("2kB/s", 2000),
    ],
)
def test_rates_read(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    [
        "",
        "25",
        "fast",
        "25g",
        "100MB",
        "100MBps",
        "100Mb/s",
        "-1mbit",
        "1e3mbit",
        "25 gbit per s",
        "٣bit",
    ],
)
def test_no_rates(text):
    with pytest.raises(UsageError):
        parse_rate(text)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(2e7, "160 Mbit/s"), (3.125e9, "25 Gbit/s"), (1.25e8, "1 Gbit/s"), (5, "40 bit/s")],
)
def test_links(rate, text):
    assert format_link(rate) == text
    assert parse_rate(text) == rate


def test_rates_written():
    assert format_link(999_990_000 / 8) == "1 Gbit/s"
    assert format_rate(37_000_000) == "35.3 MiB/s"
