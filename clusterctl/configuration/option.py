"""What one setting is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ValueKind(Enum):
    """What a value has to be, as a message names it."""

    FLAG = "true or false"
    WHOLE = "a whole number, 1 to 999999999"
    NUMBER = "a number such as 8 or 0.5, above 0 and below 1000000000"
    TEXT = "text"
    DURATION = "a duration such as 90, 30s, 5m or 2h"
    PATH = "the path of a file"
    LIST = "text or a list of texts"
    TAGS = "a mapping of keys to values"


@dataclass(frozen=True)
class Option:
    """One setting: `--key` on the command line, `key:` in the file, CLUSTERCTL_KEY.

    `field` is where it goes in a ClusterSpec, empty where it goes elsewhere; `per` divides it on
    the way. `pattern` is what a text has to look like, `example` one that does. `builtin` says
    what holds when nobody says anything.
    """

    key: str
    kind: ValueKind
    help: str
    field: str = ""
    metavar: str = ""
    builtin: str = ""
    pattern: str = ""
    example: str = ""
    per: float = 1
    zero: bool = False

    @property
    def flag(self) -> str:
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return "CLUSTERCTL_" + self.key.upper().replace("-", "_")

    @property
    def parameter(self) -> str:
        """Its name as a Python argument."""
        return self.key.replace("-", "_")
