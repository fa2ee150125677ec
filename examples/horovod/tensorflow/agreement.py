"""What all processes must know the same, and how they fail together: one that fails alone leaves
the others waiting for it."""

from __future__ import annotations

import re
import socket
import sys
from typing import Callable, NoReturn, TypeVar

import horovod.tensorflow as hvd
import tensorflow as tf
from data import DataError

Value = TypeVar("Value")


class Problem(Exception):
    """What went wrong on this process, in one line for the user."""


class CommonProblem(Problem):
    """What went wrong on all processes: rank 0 tells."""


EXPECTED = (Problem, DataError, OSError, ValueError, tf.errors.OpError)


def same_everywhere(compute: Callable[[], Value]) -> Value:
    """The result of `compute`, when it reads the same (`str`) on every process.

    Raises CommonProblem when it differs, or fails on any of them.
    """
    value, failure = _outcome(compute)
    # Horovod: everyone learns what the others found.
    found = hvd.allgather_object((socket.gethostname(), failure, str(value)))
    failures = {host: failure for host, failure, _ in found if failure}
    if failures:
        alone = len({host for host, _, _ in found}) == 1
        raise CommonProblem(("" if alone else f"{', '.join(failures)}: ") + failures.popitem()[1])
    values = {host: text for host, _, text in found}
    if len(set(values.values())) > 1:
        told = ", ".join(f"{host}: {text}" for host, text in values.items())
        raise CommonProblem(f"the nodes differ: {told}")
    return value


def from_rank_0(compute: Callable[[], Value]) -> Value:
    """The result of `compute` on rank 0, for everyone. Raises CommonProblem when it fails."""
    outcome = _outcome(compute) if hvd.rank() == 0 else None
    value, failure = hvd.broadcast_object(outcome)  # Horovod: from rank 0 to everyone.
    if failure:
        raise CommonProblem(failure)
    return value


def _outcome(compute: Callable[[], Value]) -> tuple[Value, str]:
    try:
        return compute(), ""
    except EXPECTED as error:
        return None, one_line(error)


def end(error: BaseException) -> NoReturn:
    """Tell the user in one line what was wrong, and end with status 1."""
    text = one_line(error)
    if not hvd.is_initialized() or not isinstance(error, CommonProblem):
        # Who only heard that another process has ended leaves the telling to that one.
        sys.exit(1 if "Horovod has been shut down" in text else f"error: {text}")
    if hvd.rank() == 0:
        print(f"error: {text}", file=sys.stderr, flush=True)
    # Horovod: mpirun ends everyone at the first exit, so nobody goes before rank 0 has told.
    hvd.allreduce(tf.constant(0.0), name="told")
    sys.exit(1)


def one_line(error: BaseException) -> str:
    """The error's message without TensorFlow's names of graph nodes."""
    text = re.sub(r"\{\{.*?\}\}|\[\[.*?\]\]|\[Op:\w+\].*", "", str(error), flags=re.DOTALL)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
