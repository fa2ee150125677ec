"""What all faults have, and checks of the values in their fields. Each check raises UsageError.

`what` is how the message calls the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar

from clusterctl.domain.errors import UsageError

# The largest count or rate.
MOST = 1_000_000
MESSAGE_LENGTH = 2000
# Every kind of fault by its name.
KINDS: dict[str, type[Fault]] = {}


@dataclass(frozen=True)
class Fault:
    """A fault. `kind` is the name of its kind, as in `KINDS`, and `text` is for `words`.

    Of faults that are the same in the fields of `subject` there can be only one; None: any number.
    A kind gives these after its base class.
    """

    kind: ClassVar[str] = ""
    text: ClassVar[str] = ""
    subject: ClassVar[tuple[str, ...] | None] = None

    def __init_subclass__(cls, **about: object) -> None:
        for name, value in about.items():
            setattr(cls, name, value)
        if cls.kind:
            KINDS[cls.kind] = cls

    def __post_init__(self) -> None:
        for one in fields(self):
            if "check" in one.metadata:
                one.metadata["check"](getattr(self, one.name))

    @property
    def words(self) -> str:
        """The fault in words, for lists, such as `2 more p3.2xlarge in us-east-1a`."""
        return self.text.format(self)

    def replaces(self, old: Fault) -> bool:
        """Return whether this fault takes the place of the old one."""
        if self.subject is None or self.kind != old.kind:
            return False
        return all(getattr(self, name) == getattr(old, name) for name in self.subject)


def checked(
    check: Callable[..., object], what: str, *more: object, default: object = MISSING, **limits: int
) -> Any:
    """Return a field of a fault, whose value one of the checks below has to accept."""
    metadata = {"check": lambda value: check(what, value, *more, **limits)}
    return field(default=default, metadata=metadata)


def word(what: str, value: object, form: re.Pattern[str]) -> None:
    """Check that the value is a string in this form."""
    if not isinstance(value, str) or not form.fullmatch(value):
        raise UsageError(f"not {what}: {value!r:.80}")


def text(what: str, value: object) -> None:
    """Check that the value is one line of text."""
    if not isinstance(value, str) or len(value) > MESSAGE_LENGTH or not value.isprintable():
        raise UsageError(f"{what} is one line of at most {MESSAGE_LENGTH} characters")


def flag(what: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{what} is true or false, not {value!r:.80}")


def whole(what: str, value: object, least: int = 0, most: int = MOST) -> int:
    """Return the value if it is a whole number in the range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(f"{what}: a whole number from {least} to {most}, not {value!r:.80}")
    return value


def number(what: str, value: object, most: float) -> float:
    """Return the value if it is a number from 0 to `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise UsageError(f"{what}: a number from 0 to {most:g}, not {value!r:.80}")
    return float(value)
