"""Cases of one promise: the usual ones run always, the others with `./scripts/test --all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def usual(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases for parametrize. Only the first `count` run without --all."""
    listed = list(cases)
    more = [case if isinstance(case, tuple) else (case,) for case in listed[count:]]
    return [*listed[:count], *(pytest.param(*case, marks=pytest.mark.all) for case in more)]
