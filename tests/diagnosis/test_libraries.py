"""Messages of Horovod and NCCL, in the formats of their versions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clusterctl.diagnosis import nccl
from clusterctl.explain.stalls import place_in_model, stalls

BEGIN = (
    "[2026-11-22 10:07:44.5 9715: W /tmp/horovod/common/stall_inspector.cc:107] One or more "
    "tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are "
    "waiting for remainder of ranks for more than 60 seconds. This may indicate that different "
    "ranks are trying to submit different tensors or that only subset of ranks is submitting "
    "tensors, which will cause deadlock. "
)
FORMATS = {
    "0.13.5 and before": (
        [BEGIN.replace("[2026", "WARNING: ["), "Stalled ops: grads/a [ready ranks: 0, 2]"],
        {1: ("grads/a",), 3: ("grads/a",)},
    ),
    "0.13.5, one line, two tensors": (
        [BEGIN + "Stalled ops:grads/a [ready ranks: 0, 1, 2], grads/b [ready ranks: 0, 1, 2]"],
        {3: ("grads/a", "grads/b")},
    ),
    "0.13.6 to 0.16.1": (
        [BEGIN, "Stalled ops:", "grads/a [missing ranks: 1]", "grads/b [missing ranks: 1, 3]"],
        {1: ("grads/a", "grads/b"), 3: ("grads/b",)},
    ),
    "0.16.2 to 0.20.0": (
        [BEGIN, "Stalled ranks:", "3: [grads/a, grads/b]"],
        {3: ("grads/a", "grads/b")},
    ),
    "0.20.1 and later": (
        [BEGIN, "Missing ranks:", "1: [grads/a]", "3: [grads/a, grads/b ...]"],
        {1: ("grads/a",), 3: ("grads/a", "grads/b")},
    ),
    "tagged by mpirun": (
        [f"[1,0]<stderr>:{BEGIN}", "[1,0]<stderr>:Missing ranks:", "[1,0]<stderr>:3: [grads/a]"],
        {3: ("grads/a",)},
    ),
    "shuts down": (
        [BEGIN, "Missing ranks:", "1!: [grads/a]", "stalled for longer than 60 s. Will shutdown."],
        {1: ("grads/a",)},
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_who_is_missing_in_every_format(name):
    lines, absent = FORMATS[name]
    [stall] = stalls(["step 7", *lines, "step 8"])
    assert stall.absent(4) == absent
    assert stall.ends == (name == "shuts down")


def test_the_last_report_counts_and_a_tensor_has_a_place():
    lines = [*FORMATS["0.20.1 and later"][0], "step 9", *FORMATS["0.16.2 to 0.20.0"][0]]
    assert [one.at for one in stalls(lines)] == [0, 5]
    name = "DistributedSGD_Allreduce/cond_2/HorovodAllreduce_grads_2_0"
    assert place_in_model(name) == "the gradient of trainable_variables[2]"
    assert not place_in_model("HorovodAllreduce")


TEXT = """\
Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  MISMATCH

Errors
======

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210
"""


def counts(done):
    return {"Broadcast": 1, "AllReduce": done}


JSON = {
    "communicators": [
        {
            "hash": "27a0",
            "size": 4,
            "ranks": [{"rank": n, "collective_counts": counts(9 - (n == 2))} for n in range(3)],
            "missing_ranks": [{"rank": 3, "status": {"unresponsive": True}}],
        }
    ]
}


# Text about a communicator, and the ranks that lag, the silent ranks, and the size.
AT = "GPU 0 managed by process 9 on node n"
LATE = f"""\
Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 64
  Rank 7 has launched up to operation 60 -- {AT}
"""
BROADCAST = f"""
  Communicator ranks have different Broadcast operation counts
  6 ranks have launched up to operation 3
  2 ranks have not launched any operations
  Rank 6 -- {AT}
  Rank 7 -- {AT}
"""
STATUS = f"""\
Communicator ranks have different status
  7 ranks have status RUNNING
  Rank 3 has status INIT -- {AT}
"""
PARTS = {
    "several": (TEXT, (0, 2), (), 32),
    "one": (f"#0-0 (a) MISMATCH\n  {LATE}", (7,), (), 8),
    "two collectives": (f"#0-0 (a) MISMATCH\n  {LATE}{BROADCAST}", (6, 7), (), 8),
    "after an error": (
        f"#0-0 (a) ERROR\n  Rank 3 reported x -- {AT}\n\n#0-0 (a) MISMATCH\n  {STATUS}  {LATE}",
        (7,),
        (),
        8,
    ),
    "one is ahead": (
        f"#0-0 (a) MISMATCH\n  {LATE}".replace("operation 60", "operation 70"),
        (),
        (),
        8,
    ),
    "missing, in 2.24": (
        "#0-0 (a) INCOMPLETE\n  Missing communicator data from 2 ranks\n  The missing ranks: 3,5\n",
        (),
        (3, 5),
        2,
    ),
    "missing, in 2.27": (
        f"#0-0 (a) INCOMPLETE\n  Missing communicator data from 1 rank\n  Rank 3 -- {AT}\n",
        (),
        (3,),
        1,
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_nccls_view_as_text(name):
    said, behind, silent, size = PARTS[name]
    [text] = nccl.read_ras(said)
    assert (text.behind, text.silent, text.size) == (behind, silent, size)


def test_nccls_view_as_json():
    [told] = nccl.read_ras(f"SERVER\n{json.dumps(JSON)}\n")
    assert (told.behind, told.silent, told.size) == ((2,), (3,), 4)
    odd = {"communicators": [{**JSON["communicators"][0], "size": "four"}]}
    assert nccl.read_ras(json.dumps(odd)) == (replace(told, size=4),)
    assert nccl.read_ras("") == nccl.read_ras("{ torn") == ()
