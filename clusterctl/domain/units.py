"""Parsing and formatting of sizes, rates and durations."""

from __future__ import annotations

import re

from clusterctl.domain.errors import UsageError

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# The number of digits is limited, since longer numbers fail later: int() refuses more than 4,300
# digits, and a float becomes infinite at about 309.
_NUMBER = r"\s*(\d{1,18}(?:\.\d{1,40})?)"
# What parse_duration_s takes, for JSON Schema: any duration, and one that is longer than nothing.
DURATION_PATTERN = rf"^{_NUMBER}\s*(ms|[smhd])\s*$|^\s*0+(\.0+)?\s*$"
LASTING_PATTERN = rf"^(?=.*[1-9]){_NUMBER}\s*(ms|[smhd])\s*$"
# Examples of durations, for messages.
DURATIONS = "30s, 5m or 2h"
# From this number on, a duration without a unit is more probably one in seconds.
MANY_MINUTES = 300
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def as_utf8(text: str) -> str:
    """Return a word of the command line as UTF-8: in an 8-bit locale Python keeps the bytes of `ü`
    as surrogates, which no other program reads."""
    return text.encode(errors="surrogateescape").decode(errors="surrogateescape")


def parse_duration_s(text: str, usual: str = "s") -> float:
    """Return the seconds of `90s`, `5ms`, `1.5m`, `2h` or `1d`.

    A number without a unit is refused, since minutes may be meant as well as seconds; 0 needs
    none. `usual` is the unit in which most people think of this duration: the hint proposes it.
    Raises UsageError.
    """
    match = re.fullmatch(_NUMBER + r"\s*(ms|[smhd]?)\s*", text, re.ASCII)
    if not match:
        raise UsageError(f"not a duration: {text[:80]!r}", f"write it as {DURATIONS}")
    number, unit = match[1], match[2]
    if unit:
        return float(number) * _SECONDS[unit]
    if float(number):
        # Hours are not written as minutes: 600 is a time in seconds.
        meant = "s" if usual == "m" and float(number) >= MANY_MINUTES else usual
        raise UsageError(
            f"{text.strip()[:80]} has no unit",
            f"did you mean {number}{meant}? Durations are written as {DURATIONS}",
        )
    return 0.0


def format_duration(seconds: float) -> str:
    """Return a duration as `0.3 s`, `42 s`, `3 min 05 s` or `2 h 07 min`."""
    if round(seconds, 1) < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 file`, `2 files`, `3 processes`."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def parse_bytes(text: str) -> int:
    """Return the bytes of `8MiB`, `64K` (binary, as in head and rsync), `10MB` (decimal) or `4096`.

    Raises UsageError.
    """
    match = re.fullmatch(_NUMBER + r"\s*([kmgt]?)(i?b)?\s*", text.lower(), re.ASCII)
    if not match or (match[3] == "ib" and not match[2]):
        raise UsageError(f"not a size: {text!r}", "write it as 64KiB, 8MiB or 4096")
    base = 1000 if match[3] == "b" else 1024
    return int(float(match[1]) * base ** _POWERS[match[2]])


def parse_rate(text: str) -> float:
    """Return the bytes a second of `160mbit`, `25 Gbit/s`, `25Gbps` (bits), `100MiB/s`, `100MB/s`.

    Raises UsageError, also for `MBps` and `Mb/s`: some people mean bits by them, others bytes.
    """
    match = re.fullmatch(_NUMBER + r"\s*(\S+(?: ?/ ?s)?)\s*", text, re.ASCII)
    unit = match[2].replace(" ", "") if match else ""
    bits = re.fullmatch(r"([kmgt]?)(bit|bits|bit/s|bits/s|bps)", unit.lower())
    octets = re.fullmatch(r"([kKmMgGtT]?)(i?)B/s", unit)
    if match and bits and "Bp" not in unit:
        return float(match[1]) * 1000.0 ** _POWERS[bits[1]] / 8
    if match and octets:
        base = 1024.0 if octets[2] else 1000.0
        return float(match[1]) * base ** _POWERS[octets[1].lower()]
    raise UsageError(f"not a rate: {text!r}", "write it as 25gbit, 160mbit or 100MiB/s")


def format_bytes(size: float) -> str:
    """Return a size in bytes as `512 B`, `1.5 KiB` or `23.0 GiB`."""
    for unit, decimals in (("B", 0), ("KiB", 1), ("MiB", 1), ("GiB", 1)):
        if round(size, decimals) < 1024:
            return f"{size:.{decimals}f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_rate(rate: float) -> str:
    """Return a rate in bytes a second as `35.3 MiB/s`."""
    return f"{format_bytes(rate)}/s"


def format_link(rate: float) -> str:
    """Return a network link's rate, given in bytes a second, as `160 Mbit/s` or `25 Gbit/s`."""
    bits = rate * 8
    for unit in ("bit/s", "kbit/s", "Mbit/s"):
        if float(f"{bits:.4g}") < 1000:
            return f"{bits:.4g} {unit}"
        bits /= 1000
    return f"{bits:.4g} Gbit/s"
