"""Values of options: parsed, checked, and read from the environment."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusterctl.configuration.options import ACCOUNT, LAUNCH, OPTIONS, Option, ValueKind
from clusterctl.domain.errors import UsageError
from clusterctl.domain.units import parse_duration_s

TAG = "tag."
_FLAGS = {"true": True, "yes": True, "on": True, "1": True}
_FLAGS.update({"false": False, "no": False, "off": False, "0": False})


@dataclass(frozen=True)
class Value:
    """A value and where it was said. None: to hold what is built in, whatever was said before."""

    value: Any
    origin: str


# By key. Each tag has a key of its own, `tag.team`, so that it is inherited on its own.
Values = Mapping[str, Value]


def merged(*layers: Values) -> Values:
    """One value per key: the last layer that has the key says it. A null stays, as None."""
    found: dict[str, Value] = {}
    for layer in layers:
        if "tag" in layer:
            # `tag: null` drops all tags that were said before.
            found = {key: value for key, value in found.items() if not key.startswith(TAG)}
        found.update(layer)
    return found


def parse_value(option: Option, text: str) -> Any:
    """The value that `text` stands for; an item of it, for lists and tags. Raises UsageError."""
    try:
        return _PARSERS[option.kind](option, text)
    except ValueError:
        raise UsageError(f"not {option.kind.value}: {text[:80]!r}") from None


def parse_tag(text: str) -> tuple[str, str]:
    """`team`, `nlp` of `team=nlp`. Raises UsageError."""
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"not KEY=VALUE: {text!r}")
    return check_tag(key, value)


def check_tag(key: str, value: str) -> tuple[str, str]:
    """EC2's rules for tags, and the names that are ours. Raises UsageError."""
    if not key or len(key) > 128 or len(value) > 256 or not (key + value).isprintable():
        raise UsageError(
            f"not a tag: {key[:130]!r}: {value[:260]!r}; a key has 1 to 128 characters, "
            "a value up to 256"
        )
    if key.lower().startswith(("clusterctl:", "aws:")) or key == "Name":
        raise UsageError(f"the tag {key!r} is not free: Name, aws:… and clusterctl:… are taken")
    return key, value


def environment_values(environ: Mapping[str, str], keys: tuple[Option, ...] = LAUNCH) -> Values:
    """What the environment says about these options. Raises UsageError."""
    found: dict[str, Value] = {}
    for option in keys:
        text = environ.get(option.variable, "")
        if not text:
            continue
        origin = f"env {option.variable}"
        try:
            found.update(values_of(option, text.split() if _several(option) else text, origin))
        except UsageError as error:
            raise UsageError(f"{option.variable}: {error.message}", error.hint) from None
    return found


def account_values(environ: Mapping[str, str]) -> Values:
    """The same for region, profile and lab."""
    return environment_values(environ, ACCOUNT)


def values_of(option: Option, text: Any, origin: str) -> Values:
    """By key, from one text or, for an option that takes several, all of them."""
    if option.kind is ValueKind.TAGS:
        return {TAG + key: Value(value, origin) for key, value in map(parse_tag, text)}
    if option.kind is ValueKind.LIST:
        return {option.key: Value(tuple(parse_value(option, one) for one in text), origin)}
    return {option.key: Value(parse_value(option, text), origin)}


def _several(option: Option) -> bool:
    return option.kind in (ValueKind.LIST, ValueKind.TAGS)


def _flag(option: Option, text: str) -> bool:
    try:
        return _FLAGS[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _whole(option: Option, text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise ValueError(text)
    return int(text)


def _number(option: Option, text: str) -> float:
    if not re.fullmatch(r"\d{1,9}(\.\d+)?", text, re.ASCII) or not float(text):
        raise ValueError(text)
    return float(text)


def _text(option: Option, text: str) -> str:
    if option.pattern and not re.fullmatch(option.pattern, text, re.ASCII):
        raise UsageError(f"not what {option.key} takes: {text!r}; it is like {option.example}")
    if not text.strip() or not text.isprintable():
        raise ValueError(text)
    return text


def _duration(option: Option, text: str) -> float:
    try:
        duration_s = parse_duration_s(text)
    except UsageError:
        raise ValueError(text) from None
    if not duration_s and not option.zero:
        raise UsageError(f"no time at all: {text!r}; write it as 30, 30s, 5m or 2h")
    return duration_s


_PARSERS: dict[ValueKind, Any] = {
    ValueKind.FLAG: _flag,
    ValueKind.WHOLE: _whole,
    ValueKind.NUMBER: _number,
    ValueKind.TEXT: _text,
    ValueKind.LIST: _text,
    ValueKind.DURATION: _duration,
    ValueKind.PATH: _text,
}


PREFIX = "CLUSTERCTL_"
_OTHERS = ("CLUSTERCTL_HOME", "CLUSTERCTL_CONFIG")
# A letter too many, too few or swapped; not what merely has a part in common.
_NEAR = 0.8


def misspelt(environ: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence on each variable that is nearly one of ours, and so is not heeded."""
    known = [*_OTHERS, *(option.variable for option in OPTIONS.values())]
    short = [name[len(PREFIX) :] for name in known]
    said = []
    for name in sorted(environ):
        # Others may have theirs, such as a shell's completion.
        if name in known or not re.fullmatch(PREFIX + r"\w{1,40}", name, re.ASCII):
            continue
        near = difflib.get_close_matches(name[len(PREFIX) :].upper(), short, 1, _NEAR)
        if near:
            said.append(f"{name} is no setting; did you mean {PREFIX}{near[0]}?")
    return tuple(said)
