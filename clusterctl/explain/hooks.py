"""Functions for signatures whose values a pattern cannot find. A signature's key `hook` names one.

Each takes the lines that the pattern may extend over, and returns values for the signature's
texts, or None if the signature does not apply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from clusterctl.domain.ranges import format_indices
from clusterctl.explain.stalls import Stall, read_stall

# Environment variables with which pip builds Horovod, by the framework's module name.
_BUILD_FLAGS = {
    "tensorflow": "HOROVOD_WITH_TENSORFLOW=1 HOROVOD_GPU_OPERATIONS=NCCL",
    "torch": "HOROVOD_WITH_PYTORCH=1 HOROVOD_GPU_OPERATIONS=NCCL",
    "mxnet": "HOROVOD_WITH_MXNET=1 HOROVOD_GPU_OPERATIONS=NCCL",
}
_NAMES = {"tensorflow": "TensorFlow", "torch": "PyTorch", "mxnet": "MXNet"}
# The virtual environment in the path of Horovod's package.
_ENV = re.compile(r"(?P<env>/[^\s'\":]+?)/lib/python[\d.]+/(?:site|dist)-packages/horovod")


def horovod_framework(text: str) -> Mapping[str, str] | None:
    """Return `framework`, `flags` and `env` of a message about Horovod's part for one framework.

    `env` is the environment in the message's path, or "ENV" if there is none. Returns None if the
    message is about no such part.
    """
    found = re.search(r"horovod[./](tensorflow|torch|mxnet)", text)
    if not found:
        return None
    env = _ENV.search(text)
    return {
        "framework": _NAMES[found[1]],
        "flags": _BUILD_FLAGS[found[1]],
        "env": env["env"] if env else "ENV",
    }


def horovod_framework_named(text: str) -> Mapping[str, str]:
    """Return the same values, with TensorFlow if the message names no framework."""
    named = re.search(r"Framework (\w+)|for (PyTorch|TensorFlow|MXNet)", text)
    kind = {"pytorch": "torch"}.get((named[1] or named[2]).lower(), "tensorflow") if named else ""
    return horovod_framework(text) or {
        "framework": _NAMES[kind or "tensorflow"],
        "flags": _BUILD_FLAGS[kind or "tensorflow"],
        "env": "ENV",
    }


def _stall(report: str) -> Stall:
    lines = report.splitlines()
    return read_stall(lines, 0, len(lines))


def stall(report: str) -> Mapping[str, str] | None:
    """Return `missing` and `tensor` of a stall in which some ranks are missing and others wait.

    Returns None if the report names no ranks, or if ranks wait for each other.
    """
    found = _stall(report)
    if found.ready and not found.missing:
        # The oldest format names the ranks that have arrived, not those that are missing.
        tensor, arrived = found.ready[0]
        return {"missing": f"all but {format_indices(arrived)}", "tensor": tensor}
    absent = dict(found.missing)
    if not absent or _diverged(absent):
        return None
    return {"missing": format_indices(sorted(absent)), "tensor": next(iter(absent.values()))[0]}


def stall_diverged(report: str) -> Mapping[str, str] | None:
    """Return `groups` of a stall in which ranks wait for each other, else None.

    Four ranks at most are named, each with its first tensor.
    """
    absent = dict(_stall(report).missing)
    if not _diverged(absent):
        return None
    waits = (f"rank {rank} not {tensors[0]}" for rank, tensors in sorted(absent.items()))
    return {"groups": "; ".join(list(waits)[:4])}


def _diverged(absent: Mapping[int, tuple[str, ...]]) -> bool:
    """Return whether two ranks wait for each other, so that no tensor is missing from both.

    `absent` has the tensors that each rank has not submitted.
    """
    sets = [set(tensors) for tensors in absent.values()]
    return any(not one & other for at, one in enumerate(sets) for other in sets[:at])


HOOKS: Mapping[str, Callable[[str], Mapping[str, str] | None]] = {
    one.__name__: one for one in (horovod_framework, horovod_framework_named, stall, stall_diverged)
}
