"""Bundles: files with all the evidence of one `diagnose`, without secrets, to be shown anywhere."""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

from clusterctl.diagnosis.evidence import Evidence, evidence_in
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.domain.units import format_bytes
from clusterctl.node.record import RecordError, from_json, to_data

KIND = "clusterctl diagnose"
FORMAT = 1  # to be increased when an older version could not read new bundles correctly
MOST_BYTES = 1 << 30  # uncompressed
GONE = "[redacted]"
_WORD = (
    r"(?:secret|token|passw(?:or)?d|passphrase|credentials?|authorization"
    r"|(?:api|access|private|secret|auth|encryption|signing)[_-]?key(?:[_-]?id)?)"
)
_NAME = rf"[\w.-]*{_WORD}"
# _ANNOUNCED and _OPTION_VALUE are secrets that follow a name, as in `password=...` or
# `--api-key ...`. _FORMS are secrets that have a form of their own. None may begin to match at each
# character of a long word: a line of 4 kB without spaces would then take as many times longer.
_ANNOUNCED = re.compile(
    rf"(?P<name>(?<![\w.-]){_NAME}[\"']?)(?P<sign>\s*[=:]\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)",
    re.I,
)
_OPTION_VALUE = re.compile(rf"(?P<name>(?<!\S)--?{_NAME}\s+)(?P<value>[^\s-]\S*)", re.I)
_OPTION = re.compile(rf"--?{_NAME}", re.I)
_VARIABLE = re.compile(rf"{_NAME}(?:[_-]?\w*)?", re.I)
_FORMS = (
    (re.compile(r"([\w+.-]://)[^\s/@]+@"), rf"\1{GONE}@"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), GONE),
    (re.compile(r"\b(?:gh[pousr]|github_pat|hf|sk|xox[bp]|glpat)[-_][\w-]{16,}"), GONE),
    (re.compile(r"\bey[\w-]{10,}\.ey[\w-]{10,}\.[\w-]*"), GONE),
    (re.compile(r"\b(Bearer|Basic)\s+[\w.+/=-]{8,}"), rf"\1 {GONE}"),
    # Variables with names that `train -x` treats as private.
    (re.compile(r"\b([A-Z][A-Z0-9_]*_(?:KEY|PASS|PWD)=)[^\s,;&\"']+"), rf"\1{GONE}"),
    (re.compile(r"(X-Amz-(?:Signature|Credential|Security-Token)=)[^\s&]+", re.I), rf"\1{GONE}"),
)
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_KEY_ENDS = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")


def save(evidence: Evidence, path: Path) -> None:
    """Write a bundle, readable by its owner only. Raises ClusterctlError.

    The file is renamed into place, so it is complete or not there. A symbolic link stays.
    """
    data = {
        "kind": KIND,
        "show_it": "clusterctl diagnose --from THIS_FILE",
        "format": FORMAT,
        "version": evidence.version,
        "evidence": redacted(to_data(evidence)),
    }
    content = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 6)
    target = path.resolve()
    draft = target.with_name(f".{target.name[:200]}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        draft.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise ClusterctlError(f"cannot write the bundle {path}: {error.strerror}") from None


def load(path: Path) -> Evidence:
    """Return the evidence in a bundle, compressed or not. Raises UsageError for another file."""
    made_by = "a bundle is what `clusterctl diagnose NAME --save FILE` writes"
    try:
        with path.open("rb") as raw:
            is_packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if is_packed else path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise UsageError(f"{path} holds more than {format_bytes(MOST_BYTES)}", made_by)
        data = from_json(Any, content)
    except (EOFError, zlib.error) as error:
        raise UsageError(
            f"{path} is cut short or damaged: {error}", "copy it again from where it was written"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", made_by) from None
    except RecordError:
        raise UsageError(f"{path} is no bundle", made_by) from None
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise UsageError(f"{path} is no bundle", made_by)
    if not isinstance(data.get("format"), int) or data["format"] > FORMAT:
        raise UsageError(
            f"{path} was written by clusterctl {data.get('version')}, whose bundles this one "
            "cannot read",
            "pip install --upgrade clusterctl",
        )
    evidence = evidence_in(data.get("evidence"))
    if not (evidence.cluster or evidence.source):
        raise UsageError(
            f"{path} is damaged: it has no evidence of a cluster or of hosts",
            "copy it again from where it was written",
        )
    return evidence


def without_secrets(evidence: Evidence) -> Evidence:
    """Return the evidence without secrets, as a bundle has it."""
    return evidence_in(redacted(to_data(evidence)))


def redacted(value: Any) -> Any:
    """Return JSON data with everything replaced that looks like a secret.

    Secrets are recognized by the name before them (of a key, a variable or an option), or by their
    own form, on command lines, in URLs and in log lines.
    """
    if isinstance(value, str):
        return redacted_text(value)
    if isinstance(value, dict):
        # A number below such a name is a count, as in `tokens: 512`.
        counts = (int, float, type(None))
        return {
            key: GONE if _VARIABLE.fullmatch(key) and not isinstance(one, counts) else redacted(one)
            for key, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return _redacted_list(value)
    return value


def _redacted_list(values: Any) -> list[Any]:
    """Redact a list of arguments or log lines, where a secret may span several elements."""
    found: list[Any] = []
    in_key, is_secret = False, False
    for value in values:
        if not isinstance(value, str):
            found.append(redacted(value))
            continue
        in_key = in_key or bool(_KEY_BEGINS.search(value))
        found.append(GONE if in_key or is_secret else redacted_text(value))
        in_key = in_key and not _KEY_ENDS.search(value)
        # An option without a value: the value is the next argument.
        is_secret = bool(_OPTION.fullmatch(value))
    return found


# The names of functions and files are in many stacks.
@functools.lru_cache(maxsize=4096)
def redacted_text(text: str) -> str:
    """Return one log line or one argument with its secrets replaced."""
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    text = _ANNOUNCED.sub(rf"\g<name>\g<sign>{GONE}", text)
    return _OPTION_VALUE.sub(rf"\g<name>{GONE}", text)
