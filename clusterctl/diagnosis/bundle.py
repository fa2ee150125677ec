"""A bundle: all that one `diagnose` saw in one file, without secrets, to be shown anywhere."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

from clusterctl.diagnosis.evidence import Evidence, decode
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.domain.units import format_bytes

KIND = "clusterctl diagnose"
FORMAT = 1  # higher, once `decode` cannot give what an older version expects
MOST_BYTES = 1 << 30
GONE = "[redacted]"
_WORD = (
    r"(?:secret|token|passw(?:or)?d|passphrase|credentials?|authorization"
    r"|(?:api|access|private|secret|auth|encryption|signing)[_-]?key(?:[_-]?id)?)"
)
_NAME = rf"[\w.-]*{_WORD}"
# What a name announces, then what is known by its own form.
_ANNOUNCED = re.compile(
    rf"(?P<name>(?:--?)?\b{_NAME}[\"']?)(?P<sign>\s*[=:]\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)",
    re.I,
)
_OPTION_VALUE = re.compile(rf"(?P<name>(?<!\S)--?{_NAME}\s+)(?P<value>[^\s-]\S*)", re.I)
_OPTION = re.compile(rf"--?{_NAME}", re.I)
_VARIABLE = re.compile(rf"{_NAME}(?:[_-]?\w*)?", re.I)
_FORMS = (
    (re.compile(r"(\w[\w+.-]*://)[^\s/@]+@"), rf"\1{GONE}@"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), GONE),
    (re.compile(r"\b(?:gh[pousr]|github_pat|hf|sk|xox[bp]|glpat)[-_][\w-]{16,}"), GONE),
    (re.compile(r"\bey[\w-]{10,}\.ey[\w-]{10,}\.[\w-]*"), GONE),
    (re.compile(r"\b(Bearer|Basic)\s+[\w.+/=-]{8,}"), rf"\1 {GONE}"),
    # As `train -x` takes them for private.
    (re.compile(r"\b([A-Z][A-Z0-9_]*_(?:KEY|PASS|PWD)=)[^\s,;&\"']+"), rf"\1{GONE}"),
    (re.compile(r"(X-Amz-(?:Signature|Credential|Security-Token)=)[^\s&]+", re.I), rf"\1{GONE}"),
)
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_KEY_ENDS = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")


def save(evidence: Evidence, path: Path) -> None:
    """Write the bundle, whole or not at all, readable by its owner. Raises ClusterctlError."""
    data = {
        "kind": KIND,
        "show_it": "clusterctl diagnose --from THIS_FILE",
        "format": FORMAT,
        "version": evidence.version,
        "evidence": redacted(evidence.as_data()),
    }
    content = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 6)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise ClusterctlError(f"cannot write the bundle {path}: {error.strerror}") from None


def load(path: Path) -> Evidence:
    """The evidence in a bundle. Raises UsageError for what is none."""
    made_by = "a bundle is what `clusterctl diagnose NAME --save FILE` writes"
    try:
        with path.open("rb") as raw:
            is_packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if is_packed else path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise UsageError(f"{path} holds more than {format_bytes(MOST_BYTES)}", made_by)
        data = json.loads(content)
    except (EOFError, zlib.error) as error:
        raise UsageError(
            f"{path} is cut short or damaged: {error}", "copy it again from where it was written"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", made_by) from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is no bundle", made_by) from None
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise UsageError(f"{path} is no bundle", made_by)
    if not isinstance(data.get("format"), int) or data["format"] > FORMAT:
        raise UsageError(
            f"{path} was written by clusterctl {data.get('version')}, whose bundles this one "
            "cannot read",
            "pip install --upgrade clusterctl",
        )
    return decode(Evidence, data.get("evidence"))


def without_secrets(evidence: Evidence) -> Evidence:
    """As a bundle has it: what is shown to others."""
    return decode(Evidence, redacted(evidence.as_data()))


def redacted(value: Any) -> Any:
    """The same without what looks like a secret: in values that a name announces, on command lines,
    in URLs and in log lines."""
    if isinstance(value, str):
        return redacted_text(value)
    if isinstance(value, dict):
        return {
            key: GONE if isinstance(one, str) and _VARIABLE.fullmatch(key) else redacted(one)
            for key, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return _redacted_list(value)
    return value


def _redacted_list(values: Any) -> list[Any]:
    found: list[Any] = []
    in_key, is_secret = False, False
    for value in values:
        if not isinstance(value, str):
            found.append(redacted(value))
            continue
        in_key = in_key or bool(_KEY_BEGINS.search(value))
        found.append(GONE if in_key or is_secret else redacted_text(value))
        in_key = in_key and not _KEY_ENDS.search(value)
        # An argument by itself: its value is the next one.
        is_secret = bool(_OPTION.fullmatch(value))
    return found


def redacted_text(text: str) -> str:
    """One line of a log, or one argument."""
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    text = _ANNOUNCED.sub(rf"\g<name>\g<sign>{GONE}", text)
    return _OPTION_VALUE.sub(rf"\g<name>{GONE}", text)
