from __future__ import annotations

import pytest

from clusterctl.domain.errors import UsageError
from clusterctl.domain.units import format_bytes, format_duration, parse_duration_s


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
        (42.4, "42 s"),
        (59.9, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
    ],
)
def test_durations_written(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes(count, text):
    assert format_bytes(count) == text
