"""Functions for signatures whose values a pattern cannot find. A signature's key `hook` names one.

Each takes the lines that the pattern may extend over, and returns values for the signature's
texts, or None if the signature does not apply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from clusterctl.domain.ranges import format_indices
from clusterctl.explain.failing import LineKind, kind_of
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


# Words of the help messages of Open MPI and its launchers. Others print rules of dashes, too.
_OF_MPI = re.compile(
    r"\b(?:Open ?MPI|MPI|ORTE|PRTE|PRRTE|PMIx|PMI2|PMI2_\w+|OMPI|OPAL|MCA|hwloc|UCX|UCC|CUDA|BTL"
    r"|XHC|mpi(?:run|exec)|prte?run|prte|orted|daemons?|slots?|process(?:es)?|hostname|nodes?"
    r"|hosts?|launcher|hostfile|rankfile|ranks?|allocat(?:ion|or)|binding|mapping|polic(?:y|ies)"
    r"|communicator|transport|sockets?|directives?|qualifier|modifier|cu[A-Z]\w+|mutex|knem)\b",
    re.IGNORECASE,
)
_ADVICE = re.compile(
    r"^(?:Please|Try|Check|Use|Set|Rerun|You|If|Perhaps|Consider|Specify|Either|To \w+)\b"
    r"|\b(?:please|can be (?:set|avoided|changed|fixed|resolved)|you (?:can|may|should|must))\b"
)


def framed_text(block: str) -> Mapping[str, str] | None:
    """Return `problem` and `advice` of a text between two rules of dashes, or None for a table."""
    lines = [line for line in block.splitlines() if line.strip("- ")]
    text = " ".join(" ".join(lines).split())
    if not re.search(r"[a-z]+(?: [\w,:()'\"-]+){3}", text):
        return None
    parts = re.split(r"(?<=[a-z\d)\"'][.!]) (?=[A-Z])", text)
    advice = [part for part in parts[1:] if _ADVICE.search(part)]
    return {
        "problem": " ".join(part for part in parts if part not in advice)[:600].rstrip("."),
        "advice": " ".join(advice)[:600]
        or "what the message names; if it names only a call that failed, the first error of the "
        "other ranks and hosts",
    }


def mpi_message(block: str) -> Mapping[str, str] | None:
    """Return what `framed_text` does, or None if the text neither is Open MPI's nor an error."""
    failing = (LineKind.EXCEPTION, LineKind.FAILING, LineKind.DOUBTFUL)
    is_error = _OF_MPI.search(block) or any(kind_of(line) in failing for line in block.splitlines())
    return framed_text(block) if is_error else None


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:4])


def offered_versions(text: str) -> Mapping[str, str] | None:
    """Return `why` and `do` of a version that pip does not find, by the versions that it names."""
    found = re.search(r"==(\d[\w.+]*).*\(from versions: ([^)\n]*)", text)
    if not found:
        return None
    wanted = _number(found[1])
    offered = [_number(one) for one in found[2].split(", ")]
    if all(one > wanted for one in offered):
        return {
            "why": f"all that it is offered, from {found[2].split(', ')[0]} on, are newer, so that "
            "this Python is newer than what that version was built for",
            "do": "an older Python for it (conda create -n NAME python=3.10), or one of the "
            "versions that it lists",
        }
    if all(one < wanted for one in offered):
        return {
            "why": "all that it is offered are older, so that this Python (or pip, or the system's "
            "glibc) is too old for that version, or the version does not exist",
            "do": "a newer Python, and `python -m pip install -U pip`; or one of the versions that "
            "it lists",
        }
    return {
        "why": "it lists older and newer ones, so that this one has no file for it, was "
        "withdrawn, or does not exist",
        "do": "one of the versions that it lists",
    }


def batch_product(text: str) -> Mapping[str, str]:
    """Return the product `unit` of micro batch and ranks of DeepSpeed's message, and `fits`: how
    the batch size stands to it."""
    batch, micro, _, size = map(int, re.findall(r"\d+", text.partition("world_size")[2])[:4])
    unit = micro * size
    fits = "" if batch % unit == 0 else f"; {batch} is no multiple of {micro} times {size} at all"
    return {"unit": str(unit), "fits": fits}


HOOKS: Mapping[str, Callable[[str], Mapping[str, str] | None]] = {
    one.__name__: one
    for one in (
        batch_product,
        framed_text,
        horovod_framework,
        horovod_framework_named,
        mpi_message,
        offered_versions,
        stall,
        stall_diverged,
    )
}
