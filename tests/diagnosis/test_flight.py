"""PyTorch's Flight Recorder: dumps, and what follows from those of several ranks.

The dumps are made up: their fields are those of FlightRecorder.hpp of PyTorch (version 2.4), those
of version 1.5 are of PyTorch 2.3. No rule was ever run on a dump that NCCL's ranks have written.
"""

from __future__ import annotations

import json
import os
import pickle
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.diagnosis.bundle import load as load_bundle
from clusterctl.diagnosis.bundle import save
from clusterctl.diagnosis.evidence import Evidence
from clusterctl.diagnosis.flight import Differing, Missing, compare, of_log
from clusterctl.diagnosis.verdict import diagnose
from clusterctl.node.facts import flight
from clusterctl.node.facts.flight import (
    DumpError,
    FlightDump,
    found_dumps,
    load,
    read_dumps,
    summarize,
)
from clusterctl.node.jobs.spec import JobState
from clusterctl.node.record import to_data
from tests.diagnosis.made_up import JOB, facts, job_of

FRAMES = [
    {"name": "all_reduce", "filename": "/x/torch/distributed/distributed_c10d.py", "line": 2696},
    {"name": "step", "filename": "/home/me/train.py", "line": 40},
    {"name": "<module>", "filename": "/home/me/train.py", "line": 60},
]


def entry(
    number, operation="all_reduce", state="completed", size=(8, 4), group=("0", "default_pg")
):
    return {
        "frames": FRAMES,
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{operation}",
        "time_created_ns": 1_700_000_000_000_000_000,
        "input_sizes": [list(size)],
        "input_dtypes": ["Float"],
        "output_sizes": [list(size)],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600000,
        "is_p2p": False,
    }


def dump(entries, ranks="[0, 1, 2, 3]", version="2.4"):
    return {
        "version": version,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {"0": {"last_enqueued_collective": 11}},
        "entries": entries,
    }


DONE = [entry(number) for number in range(1, 11)]
WAITS = [*DONE, entry(11, state="started")]


def written(folder, dumps, job_id="20261127-070000-abcd", form=lambda one: pickle.dumps(one, 2)):
    for rank, one in dumps.items():
        (folder / f"clusterctl.{job_id}.flight.{rank}").write_bytes(form(one))
    return read_dumps(found_dumps(folder), time.monotonic() + 60)


@pytest.mark.parametrize(
    "form", [lambda one: pickle.dumps(one, 2), lambda one: json.dumps(one).encode()]
)
def test_the_rank_that_has_not_called_a_collective_is_missing(tmp_path, form):
    dumps = written(tmp_path, {**dict.fromkeys((0, 1, 3), dump(WAITS)), 2: dump(DONE)}, form=form)
    [found] = compare(dumps)
    assert isinstance(found, Missing)
    assert (found.group, found.ranks, found.waiting, found.unknown) == (
        "default_pg",
        (2,),
        (0, 1, 3),
        (),
    )
    assert found.collective.sequence == 11
    assert found.collective.inputs == ("Float[8, 4]",)
    assert found.collective.where == "train.py:40 in step"
    assert found.before[2].sequence == 10


@pytest.mark.parametrize(
    "other",
    [entry(11, "broadcast", "started"), entry(11, state="started", size=(8, 5))],
)
def test_ranks_that_call_another_collective_or_with_other_shapes_differ(tmp_path, other):
    dumps = written(tmp_path, {**dict.fromkeys((0, 1, 3), dump(WAITS)), 2: dump([*DONE, other])})
    [found] = compare(dumps)
    assert isinstance(found, Differing)
    assert (found.sequence, found.ranks) == (11, (2,))


def test_what_may_differ_or_is_not_known_is_not_told(tmp_path):
    uneven = {
        rank: dump([entry(1, "all_gather", "started", (rank, 4))], "[0, 1]") for rank in range(2)
    }
    assert not compare(written(tmp_path, uneven))
    # Rank 2 has overwritten its first entries, so it may have called those of another group.
    of_group = [entry(1, state="started", group=("1", "tensor"))]
    config = {"1": {"name": "1", "desc": "tensor", "ranks": "[0, 2]"}}
    dumps = {0: dump(of_group), 2: dump(DONE[5:])}
    for one in dumps.values():
        one["pg_config"] = config
    assert not compare(written(tmp_path, dumps, "20261127-080000-abcd"))
    dumps[2]["entries"] = DONE
    [found] = compare(written(tmp_path, dumps, "20261127-090000-abcd"))
    assert (found.group, found.ranks) == ("tensor", (2,))


def test_a_rank_without_a_dump_is_unknown_and_not_missing(tmp_path):
    [found] = compare(written(tmp_path, {0: dump(WAITS), 2: dump(DONE)}))
    assert (found.ranks, found.unknown) == ((2,), (1, 3))


def test_older_versions_and_coalesced_collectives_are_read():
    old = {"version": "1.5", "entries": [{**entry(3), "seq_id": 3, "frames": []}]}
    for name in ("collective_seq_id", "process_group", "is_p2p"):
        del old["entries"][0][name]
    [group] = summarize(pickle.dumps(old, 2)).groups
    assert (group.name, group.last, group.ranks) == ("0", 3, ())
    parts = [entry(1, state="scheduled"), entry(1, "coalesced", "completed")]
    [one] = summarize(pickle.dumps(dump(parts), 2)).groups[0].collectives
    assert (one.operation, one.state) == ("all_reduce+coalesced", "completed")


def test_few_collectives_are_kept():
    many = [
        *map(entry, range(1, 1001)),
        *(entry(one, state="scheduled") for one in range(1001, 1500)),
    ]
    [group] = summarize(pickle.dumps(dump(many), 2)).groups
    assert [one.sequence for one in group.collectives] == [*range(995, 1005), 1499]
    assert group.last == 1499


RUN = Path(tempfile.gettempdir(), f"a-dump-was-run-{os.getpid()}")


class Calls:
    def __reduce__(self):
        return (os.mkdir, (str(RUN),))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (pickle.dumps({"entries": [Calls()]}), r"it names \w+\.mkdir, which a dump does not"),
        (pickle.dumps(dump(WAITS))[:200], "it is damaged"),
        (b"", "it is damaged"),
        (b"{ torn", "it is damaged"),
        (b"[" * 100_000, "it is damaged"),
        (b'{"a":' * 100_000, "it is damaged"),
        (pickle.dumps([1]), "not one of the Flight Recorder"),
        (pickle.dumps({"entries": 3}), "not one of the Flight Recorder"),
    ],
    # Without names the data would be in them, and with it this process's number.
    ids=["call", "cut", "empty", "torn", "deep", "deep object", "list", "number"],
)
def test_nothing_of_a_dump_is_run_and_damage_is_told(data, reason):
    with pytest.raises(DumpError, match=reason):
        load(data)
    assert not RUN.exists()


def test_odd_values_are_left_out():
    odd = [
        {**entry(1), name: value} for name in entry(1) for value in (None, [[]], {}, -1, "x" * 999)
    ]
    told = summarize(pickle.dumps({**dump([None, 3, *odd]), "pg_config": {1: 2, "0": 3}}, 2))
    assert all(len(one.operation) < 400 for group in told.groups for one in group.collectives)


def test_only_own_files_of_the_latest_job_are_read(tmp_path):
    written(tmp_path, {0: dump(WAITS)}, "20261126-070000-abcd")
    (tmp_path / "clusterctl.20261127-070000-abcd.flight.0").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "clusterctl.20261127-070000-abcd.flight.1")
    paths = found_dumps(tmp_path)
    assert [path.name[-1] for path in paths] == ["0", "1"]
    linked, pipe = read_dumps(paths, time.monotonic() + 60)
    assert "symbolic" in linked.error
    assert pipe.error == "it is not a file of this user"
    assert [one.error for one in read_dumps(found_dumps(tmp_path, "20261126-070000-abcd"), 0)] == [
        "there was no time left to read it"
    ]


def test_a_large_dump_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(flight, "MOST_BYTES", 100)
    [one] = written(tmp_path, {0: dump(WAITS)})
    assert "it has more than" in one.error


GROUP = "[PG ID 0 PG GUID 0(default_pg) Rank {0}]"
LOG = (
    "[rank{0}]:[E709 17:05:38.162 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=1259621, NumelOut=1259621, "
    "Timeout(ms)=600000) ran for 600000 milliseconds before timing out.\n"
    "[rank{0}]:[E709 17:05:38.163 ProcessGroupNCCL.cpp:2271] " + GROUP + "  failure detected by "
    "watchdog at work sequence id: {1} PG status: last enqueued work: {3}, last completed work: 4\n"
)
TOLD = (
    "[rank{0}]:[E709 17:05:38.482 ProcessGroupNCCL.cpp:1746] " + GROUP + " Received a dump signal "
    "due to a collective timeout from  rank 0 and we will try our best to dump the debug info. "
    "Last enqueued NCCL work: {1}, last completed NCCL work: {1}."
)


def test_the_watchdogs_messages_tell_the_same():
    waits = "".join(LOG.format(rank, 5, "ALLREDUCE", 9) for rank in (0, 1))
    [found] = compare(of_log([*waits.splitlines(), TOLD.format(2, 4)], 4))
    assert (found.ranks, found.waiting, found.unknown) == ((2,), (0, 1), (3,))
    assert (found.collective.operation, found.collective.sequence) == ("ALLREDUCE", 5)
    assert not compare(of_log(waits.splitlines(), 4))
    other = waits + LOG.format(3, 5, "_ALLGATHER_BASE", 5)
    [found] = compare(of_log(other.splitlines(), 4))
    assert found.ranks == (3,)
    assert not of_log(["x", *LOG.format(7, 5, "ALLREDUCE", 9).splitlines()], 4)


def with_dumps(dumps, **job: object) -> Evidence:
    """Return a job of four ranks on four hosts, each of which has a dump."""
    evidence = job_of(4, 1, **job)
    hosts = [
        replace(
            host,
            facts=facts(host.host, flight_dumps=[to_data(one) for one in dumps if one.rank == at]),
        )
        for at, host in enumerate(evidence.hosts)
    ]
    return replace(evidence, hosts=tuple(hosts))


FAILED = {"state": JobState.FAILED, "exit_status": 1}


def test_diagnose_says_which_rank_is_missing_and_where_the_others_wait(tmp_path):
    dumps = {**dict.fromkeys((0, 1, 3), dump(WAITS)), 2: dump(DONE)}
    evidence = with_dumps(written(tmp_path, dumps, JOB), **FAILED)
    save(evidence, tmp_path / "bundle")
    found = diagnose(load_bundle(tmp_path / "bundle"))
    [one] = [one for one in found.findings if one.check == "torch.missing"]
    assert found.check == "torch.missing"
    assert (one.host, one.ranks) == ("demo-2", (2,))
    assert one.message == (
        "rank 2 on demo-2 has not called collective 11 of process group default_pg, all_reduce of "
        "Float[8, 4] (train.py:40 in step), in which ranks 0-1,3 wait; its last: 10, all_reduce of "
        "Float[8, 4] (train.py:40 in step)"
    )


def test_diagnose_says_where_shapes_differ_and_which_dump_is_damaged(tmp_path):
    other = [*DONE, entry(11, state="started", size=(8, 5))]
    dumps = {0: dump(WAITS), 1: dump(WAITS), 2: dump(other), 3: dump(WAITS)}
    dumps = [
        *written(tmp_path, dumps, JOB)[:3],
        FlightDump(3, "/tmp/x", 0, JOB, error="it is damaged"),
    ]
    found = {one.check: one for one in diagnose(with_dumps(dumps, **FAILED)).findings}
    assert found["torch.mismatch"].ranks == (2,)
    assert found["torch.mismatch"].message == (
        "ranks differ in collective 11 of process group default_pg: ranks 0-1 on demo-[0-1]: "
        "all_reduce of Float[8, 4] (train.py:40 in step); rank 2 on demo-2: all_reduce of "
        "Float[8, 5] (train.py:40 in step); of rank 3 nothing is recorded"
    )
    assert "dumps of rank 3 cannot be read: it is damaged" in found["torch.dump"].message


def test_dumps_of_another_job_or_from_before_the_job_went_on_do_not_count(tmp_path):
    told = written(tmp_path, {0: dump(WAITS), 2: dump(DONE)}, JOB)
    others = [replace(one, job_id="20200101-000000-abcd") for one in told]
    old = [replace(one, age_s=500.0) for one in told]
    for dumps in (others, old):
        checks = {one.check for one in diagnose(with_dumps(dumps)).findings}
        assert not checks & {"torch.missing", "torch.mismatch", "torch.dump"}
    assert "torch.missing" in {one.check for one in diagnose(with_dumps(told)).findings}


def test_diagnose_uses_the_watchdogs_messages_without_dumps():
    waits = "".join(LOG.format(rank, 5, "ALLREDUCE", 9) for rank in (0, 1, 3))
    log = (*waits.splitlines(), TOLD.format(2, 4))
    found = diagnose(job_of(4, 1, log=log, **FAILED))
    assert (found.check, found.findings[0].ranks) == ("torch.missing", (2,)), found.verdict
