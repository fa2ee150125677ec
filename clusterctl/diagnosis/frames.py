"""What a thread is doing, told from the calls on its stack.

KNOWN is a table of the calls of libraries. tests/diagnosis/test_frames.py runs the libraries and
compares. Names are compared without their class: from Python 3.11 on, py-spy reports qualified
names such as `HorovodBasics.init`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from clusterctl.diagnosis.evidence import Frame


class Activity(Enum):
    """What a main thread is doing, as far as it matters to the other ranks."""

    COLLECTIVE = "in a collective"
    INIT = "in the start of its communication"
    GRAPH = "in a compiled step"
    DATA = "waiting for its next batch"
    IMPORT = "importing modules"
    BUILD = "building a compiled step"
    ENDED = "at its end"
    USER = "in its own code"
    LIBRARY = "in a library"
    UNKNOWN = "where no stack shows"


# Activities in which a rank may wait for others. A compiled step may contain a collective.
WAITING = (Activity.COLLECTIVE, Activity.INIT, Activity.GRAPH)
# Long work at the start of a program, for which all other ranks wait.
STARTING = (Activity.IMPORT, Activity.BUILD)


@dataclass(frozen=True)
class KnownCall:
    """Calls of a library: `file` is a part of the path, `function` matches the whole name.

    `library` is its name in a sentence.
    """

    file: str
    function: re.Pattern[str]
    place: Activity
    library: str


def _known(file: str, function: str, place: Activity, library: str) -> KnownCall:
    return KnownCall(file, re.compile(function), place, library)


_KINDS = (
    r"_?(?:all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|broadcast|barrier|reduce|scatter"
    r"|gather|send|recv|isend|irecv|join)\w*"
)
_IN, _INIT, _GRAPH = Activity.COLLECTIVE, Activity.INIT, Activity.GRAPH
_DATA, _ENDED = Activity.DATA, Activity.ENDED
KNOWN = (
    # Horovod. Its TensorFlow operations are made at run time, in the file <string>. The functions
    # of horovod/tensorflow only build them, unlike those of horovod/torch, which wait.
    _known("", r"horovod_\w+", _IN, "Horovod"),
    _known("/horovod/torch/", rf"synchronize|_?grouped_\w+|{_KINDS}", _IN, "Horovod"),
    _known("/horovod/", r"init", _INIT, "Horovod"),
    _known("/horovod/", r"shutdown", _ENDED, "Horovod"),
    # torch.distributed, with gloo, NCCL or MPI below.
    _known(
        "/torch/distributed/distributed_c10d.py",
        r"init_process_group|new_(?:sub)?groups?\w*|split_group|_new_process_group_helper"
        r"|_store_based_barrier",
        _INIT,
        "torch.distributed",
    ),
    _known("/torch/distributed/rendezvous.py", r"\w+", _INIT, "torch.distributed"),
    _known(
        "/torch/distributed/distributed_c10d.py",
        r"destroy_process_group|_shutdown_backend",
        _ENDED,
        "torch.distributed",
    ),
    _known(
        "/torch/distributed/distributed_c10d.py",
        rf"monitored_barrier|batch_isend_irecv|{_KINDS}",
        _IN,
        "torch.distributed",
    ),
    _known(
        "/torch/distributed/_functional_collectives.py",
        rf"wait_tensor|{_KINDS}",
        _IN,
        "torch.distributed",
    ),
    # DistributedDataParallel compares and broadcasts the model when it is made, and before a step.
    _known(
        "/torch/distributed/utils.py",
        r"_verify_param\w*|_sync_\w+",
        _IN,
        "DistributedDataParallel",
    ),
    _known(
        "/torch/nn/parallel/distributed.py",
        r"_sync\w*|_check_global_requires_backward_grad_sync|_default_broadcast_coalesced"
        r"|_distributed_broadcast_coalesced",
        _IN,
        "DistributedDataParallel",
    ),
    _known("/torch/distributed/fsdp/", r"_?(?:wait_for_)?unshard\w*", _IN, "FSDP"),
    # The gradients are reduced within the backward pass, in C++.
    _known("/torch/autograd/", r"_engine_run_backward|backward|grad", _GRAPH, "a backward pass"),
    _known("/torch/cuda/", r"synchronize|wait\w*", _GRAPH, "a CUDA stream"),
    _known("/torch/utils/data/dataloader.py", r"\w+", _DATA, "a DataLoader"),
    # TensorFlow.
    _known("/gen_collective_ops.py", r"collective_\w+", _IN, "TensorFlow"),
    _known(
        "/tensorflow/",
        r"quick_execute|_call_tf_sessionrun|_?numpy|TF_SessionRun_wrapper|async_wait",
        _GRAPH,
        "a compiled step",
    ),
    _known("/tensorflow/", r"iterator_get_next\w*|_next_internal", _DATA, "tf.data"),
    # mpi4py's own calls are in C, but for these.
    _known("/mpi4py/", r"\w+", _IN, "mpi4py"),
)
_COLLECTIVE_NAME = re.compile(
    r"(?:horovod_|_?grouped_|_)?(all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|broadcast"
    r"|barrier|join|reduce|scatter|gather|send|recv)\w*"
)
# TensorFlow makes a graph of the user's function below it. Collectives are only put into that.
_BUILDS = "func_graph_from_py_func"
# How many calls a library may make below the call that tells what it is doing.
_DEEPEST = 24


def name_of(frame: Frame) -> str:
    """Return the name of a function without its class and the function that it is in."""
    return frame.function.rpartition(".")[2]


def is_user(frame: Frame) -> bool:
    """Return whether a call is in the user's own code, not in a library."""
    return not frame.native and _user_file(frame.file)


@functools.lru_cache(maxsize=4096)
def _user_file(path: str) -> bool:
    installed = ("/site-packages/", "/dist-packages/", "/lib/python")
    if not path or path[0] == "<" or any(part in path for part in installed):
        return False
    # TensorFlow writes what it makes of the user's functions into files of its own.
    return not path.rpartition("/")[2].startswith("__autograph_generated_file")


@functools.lru_cache(maxsize=16384)
def known_call(frame: Frame) -> KnownCall | None:
    """Return the row of KNOWN for a call; None without one."""
    name = name_of(frame)
    for one in KNOWN:
        if one.file in frame.file and one.function.fullmatch(name):
            return one
    return None


def _library_calls(frames: Sequence[Frame]) -> Iterator[Frame]:
    """Yield the calls below the user's innermost one, the innermost first."""
    for frame in reversed(frames[-_DEEPEST:]):
        if frame.native:
            continue
        if is_user(frame):
            return
        yield frame


def deciding_call(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost call that is in KNOWN, below the user's own; None without one.

    An operation that contains a collective wins over the call that runs any operation.
    """
    found = [one for one in _library_calls(frames) if known_call(one)]
    for one in found[:4]:
        row = known_call(one)
        if row and row.place is Activity.COLLECTIVE:
            return one
    return found[0] if found else None


@functools.lru_cache(maxsize=16384)
def place_of(frames: tuple[Frame, ...]) -> Activity:
    """Return what a main thread with these calls is doing."""
    python = [frame for frame in frames if not frame.native]
    if not python:
        return Activity.UNKNOWN
    inner = python[-1]
    if any("importlib" in frame.file for frame in python[-12:]):
        return Activity.IMPORT
    # At the end of a program, Python waits for the other threads and runs the exit functions.
    if name_of(python[0]) in ("_shutdown", "_python_exit", "_run_exitfuncs"):
        return Activity.ENDED
    builds = any("/tensorflow/" in one.file and name_of(one) == _BUILDS for one in python)
    if builds and not is_user(inner) and not known_call(inner):
        return Activity.BUILD
    deciding = deciding_call(python)
    row = deciding and known_call(deciding)
    if row:
        return row.place
    return Activity.USER if is_user(inner) else Activity.LIBRARY


def collective_of(frames: Sequence[Frame]) -> str:
    """Return the collective that the calls are in, such as `Horovod's allreduce`; else empty."""
    deciding = deciding_call(frames)
    row = deciding and known_call(deciding)
    if not deciding or not row or row.place is not Activity.COLLECTIVE:
        return ""
    found = _COLLECTIVE_NAME.fullmatch(name_of(deciding))
    kind = found[1] if found else name_of(deciding)
    return f"{row.library}'s {kind}"
