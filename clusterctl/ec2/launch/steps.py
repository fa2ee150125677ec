"""One step of a plan: an EC2 operation, its arguments, and a line that says what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ResultOf:
    """An argument that is known only once an earlier step has answered: a key of its answer."""

    key: str

    def __str__(self) -> str:
        return f"<{self.key} of an earlier step>"


@dataclass(frozen=True)
class Step:
    """`operation` is boto3's method. `done_if` are error codes that say it was done before.

    `hourly_usd` is what its result costs from then on; None where that is nothing, or not known.
    """

    operation: str
    arguments: Mapping[str, Any]
    summary: str
    gives: tuple[str, ...] = ()
    done_if: tuple[str, ...] = ()
    hourly_usd: float | None = None

    def describe(self) -> str:
        """`RunInstances: 4 x p3.16xlarge ...`, on one line."""
        return f"{operation_name(self.operation)}: {self.summary}"

    def resolved(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with the results of earlier steps filled in."""
        filled: dict[str, Any] = _fill(self.arguments, results)
        return filled


def operation_name(method: str) -> str:
    """`RunInstances` for `run_instances`."""
    return "".join(word.capitalize() for word in method.split("_"))


def _fill(value: Any, results: Mapping[str, Any]) -> Any:
    if isinstance(value, ResultOf):
        return results[value.key]
    if isinstance(value, Mapping):
        return {key: _fill(part, results) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fill(part, results) for part in value]
    return value
