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

READ = {
    parse_duration_s: {"0": 0, "0.0": 0, "30s": 30, "1.5m": 90, "2h": 7200, " 1 d ": 86400},
    parse_bytes: {"4096": 4096, "0": 0, "64K": 65536, "64KiB": 65536, "8mib": 8 << 20,
        " 8 MiB ": 8 << 20, "1.5G": 3 << 29, "10MB": 10_000_000, "7b": 7, "2TiB": 2 << 40},
    parse_rate: {"25gbit": 3.125e9, "25Gbit/s": 3.125e9, "25 Gbit / s": 3.125e9, "25Gbps": 3.125e9,
        "160 Mbits": 2e7, "0.5gbit": 6.25e7, "800kbit": 1e5, "8bit": 1, "100MB/s": 1e8,
        "100MiB/s": 100 << 20, "1B/s": 1, "2kB/s": 2000},
}  # fmt: skip
REFUSED = {
    parse_duration_s: ["", "s", "90", " 1.5 ", "0.001", "-1", "1w", "1h30m", "nan", "1e3", "٣"],
    parse_bytes: ["", "MiB", "-1", "8iB", "8 M B", "1e6", "8MiB/s", "٣", "9" * 400],
    parse_rate: [
        *("", "25", "fast", "25g", "100MB", "100MBps", "100Mb/s", "-1mbit", "1e3mbit"),
        *("25 gbit per s", "٣bit"),
    ],
}
WRITTEN = {
    format_duration: {0.34: "0.3 s", 9.94: "9.9 s", 9.96: "10 s", 42.4: "42 s", 59.9: "1 min 00 s",
        185: "3 min 05 s", 7620: "2 h 07 min"},
    format_bytes: {0: "0 B", 1023: "1023 B", 1023.6: "1.0 KiB", 1536: "1.5 KiB",
        (1 << 20) - 1: "1.0 MiB", (1 << 30) - 1: "1.0 GiB", 1023.9 * (1 << 20): "1023.9 MiB",
        (1 << 40) - 1: "1.0 TiB", 3 << 40: "3.0 TiB"},
    format_link: {2e7: "160 Mbit/s", 3.125e9: "25 Gbit/s", 1.25e8: "1 Gbit/s", 5: "40 bit/s",
        999_990_000 / 8: "1 Gbit/s"},
    format_rate: {37_000_000: "35.3 MiB/s"},
}  # fmt: skip


def each(table):
    """Yield (function, its argument, the expected result) row by row."""
    return [(function, *row) for function, rows in table.items() for row in rows.items()]


@pytest.mark.parametrize(("function", "given", "made"), each(READ) + each(WRITTEN))
def test_what_is_read_and_written(function, given, made):
    assert function(given) == made


@pytest.mark.parametrize(("parse", "text"), [(f, text) for f in REFUSED for text in REFUSED[f]])
def test_what_cannot_be_read(parse, text):
    with pytest.raises(UsageError):
        parse(text)


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
