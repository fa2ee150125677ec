"""What others have written may be anything: a number of 5,000 digits, NaN, lone surrogates, lists
in lists. Every reader gives an answer to it, and reads no more of a line than its beginning."""

from __future__ import annotations

import contextlib
import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.cli.diagnose import screen
from clusterctl.diagnosis import bundle
from clusterctl.diagnosis.evidence import JobEvidence, evidence_in
from clusterctl.diagnosis.flight import compare, of_log
from clusterctl.diagnosis.mapping import placed
from clusterctl.diagnosis.nccl import read_ras
from clusterctl.diagnosis.page import page
from clusterctl.diagnosis.tree import merge
from clusterctl.diagnosis.verdict import diagnose
from clusterctl.node.diagnosis.stacks import read_faulthandler
from clusterctl.node.facts.flight import DumpError, summarize
from clusterctl.node.facts.native import read_eu_stack
from clusterctl.node.jobs.launchers import LAUNCHERS, job_of_daemon, rank_identity
from clusterctl.node.record import RecordError, from_json, to_data, to_json
from clusterctl.node.untrusted import LONGEST_LINE, MOST_RANKS, legible, whole
from tests.diagnosis.made_up import job_of, own, samples, with_job, with_rank

LONG = "9" * 5000
NUMBERS = ("0", "1", "7", "-1", LONG, "9" * 18, "1048577", "²", "٣", "nan", "inf", "1e999", "")
WORDS = (
    *("step ", "epoch ", " images/s", "/100", "loss ", "[rank1]:", "[1,0]<stdout>:", " s", ", "),
    *("[PG ID 0 PG GUID 0(default_pg) Rank ", "]", "work sequence id: ", "last enqueued work: "),
    *("collective operation timeout: WorkNCCL(SeqNum=", ", OpType=ALLREDUCE", "dump signal"),
    *("Last enqueued NCCL work: ", "process rank ", " with PID ", " on node n0", "Process rank: "),
    *("Data for node: n0\n", "Data for proc: [[1,1],", "#0-0 (ab) MISMATCH\n"),
    *("operation counts\n", "Current thread 0x1 (most recent call first)"),
    *(" ranks have launched up to operation ", "\n  Rank ", " has not launched any", "INCOMPLETE"),
    *("#1-0 (cd) INCOMPLETE\n", "The missing ranks: "),
    *('\n  File "x.py", line ', " in f\n", "#0  0x1 main\n", "    /src/x.c:", "mpirun ", " -np "),
    *(" -H a:", " --map-by ppr:", ":node", " python", " -N ", "torchrun --nproc_per_node="),
    *("One or more tensors were submitted to be reduced", "\nMissing ranks:\n", ": [grad]"),
    *("x [missing ranks: ", "for more than ", " seconds", "Killed process ", "\0", "\x1b[31m"),
    *("\ud800", "\udcff", "\r", "\n", " ", "a", "{", '"', "[", "--control-port "),
)
TEXTS = st.lists(st.sampled_from((*WORDS, *NUMBERS)), max_size=12).map("".join)


@settings(max_examples=100)
@given(TEXTS)
def test_no_text_of_others_ends_a_reader(text):
    lines = JobEvidence(log=tuple(text.split("\n"))).log
    placed(text, {"a": 2}, lines, {})
    compare(of_log(lines, 4))
    read_ras(text)
    read_faulthandler(text)
    read_eu_stack(text)
    job_of_daemon(text.split())
    with pytest.raises(DumpError):
        summarize(text.encode(errors="replace"))
    evidence = with_job(job_of(), log=(*lines, "step 7"), line=text)
    for one in (evidence, with_job(evidence, state=None, age_s=0.0, size=0, hosts={"demo-0": 2})):
        assert to_json(diagnose(one).as_data())


@given(st.sampled_from(LAUNCHERS), st.sampled_from(NUMBERS), st.sampled_from(NUMBERS))
def test_a_rank_is_one_of_a_job_that_may_be(row, rank, size):
    environ = dict.fromkeys(row.needs, b"x") | {b"SLURM_STEP_NUM_TASKS": b"2"}
    environ |= dict.fromkeys(row.size, size.encode()) | {row.rank: rank.encode()}
    place = rank_identity(environ)
    known = [place.rank, place.size or 0] if place else []
    assert all(0 <= one < MOST_RANKS for one in known)
    assert place or rank not in ("0", "1", "7") or row.name == "srun"


HOSTILE = (
    *(10**400, -(10**400), 1 << 63, MOST_RANKS + 1, -1, float("inf"), float("nan"), 1e308),
    *("\ud800", "\0\n\x1b[2J", LONG, "x" * 100_000, None, True, [], {}, [[1]], {"a": {"b": []}}),
    *(["\udcff"], {"\ud800": "\ud800"}, {"time": 10**400}, {"time": True, "images_per_s": 1e999}),
)


def places(data, path=()):
    """Yield the paths of all parts of data of JSON."""
    yield path
    pairs = (
        data.items() if isinstance(data, dict) else enumerate(data) if type(data) is list else ()
    )
    for key, one in pairs:
        yield from places(one, (*path, key))


WHOLE = json.loads(
    to_json(
        with_rank(
            with_job(
                job_of(hosts=2, per_host=1, quiet_s=300.0),
                log=("step 1", "step 2"),
                log_writes=((300.0, 1), (301.0, 1)),
                metrics=tuple({"time": 1.0 + n, "step": n, "run": "a"} for n in range(3)),
                rank_logs={"0": ("a",)},
            ),
            0,
            variables={"NCCL_DEBUG": "INFO"},
            argv=("python", "t.py"),
        )
    )
)
PLACES = [path for path in places(WHOLE) if path]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(HOSTILE)), max_size=4))
def test_no_bundle_ends_a_diagnosis(changes):
    data = copy.deepcopy(WHOLE)
    for path, value in changes:
        part = data
        with contextlib.suppress(LookupError, TypeError):  # an earlier change took it away
            for key in path[:-1]:
                part = part[key]
            part[path[-1]] = value
    evidence = evidence_in(data)
    found = diagnose(evidence)
    assert merge([one for host in evidence.hosts for one in host.ranks]).as_data()
    assert screen(evidence, found) and page(evidence, found)
    assert to_json(found.as_data())
    assert json.dumps(to_data(bundle.without_secrets(evidence)))


@pytest.mark.parametrize("text", ["[" * 900 + "]" * 900, '{"a":' * 90 + "1" + "}" * 90])
def test_what_is_nested_too_deeply_to_be_walked_is_refused(text):
    for kind in (dict, JobEvidence):
        with pytest.raises(RecordError):
            from_json(kind, f'{{"metrics": [{{"a": {text}}}]}}')


def test_a_stack_of_any_depth_is_shown():
    evidence = with_rank(job_of(), 0, samples=samples(own("f") * 3000))
    assert merge([one for host in evidence.hosts for one in host.ranks]).as_data()
    assert page(evidence, diagnose(evidence))


def test_so_much_is_read_of_a_line():
    """Whatever a rule does with lines, it is done with no more characters than these."""
    lines = ("x" * 10_000_000, LONG, "a\nb", "\ud800")
    kept = JobEvidence(log=lines, log_first=lines, log_added=lines, rank_logs={"0": lines})
    for several in (kept.log, kept.log_first, kept.log_added, kept.rank_logs["0"]):
        assert [len(one) for one in several] == [LONGEST_LINE, 1, 3, 1]
        assert several[1:] == ("…", "a b", "?")
    assert legible(f"step {'9' * 18}") == f"step {'9' * 18}"
    # Decimals of a loss, as Python prints a float32.
    assert legible("Epoch 1 loss 0.00037501711631193757") == "Epoch 1 loss 0.00037501711631193757"


def test_a_whole_number():
    assert [whole(one) for one in NUMBERS[:5]] == [0, 1, 7, None, None]
    assert [whole(one) for one in ("²", "٣", "+1", " 1", "1_0", b"12", b"")] == [None] * 5 + [
        12,
        None,
    ]


@pytest.mark.parametrize("size", [1 << 40, 10**17])
def test_a_number_of_ranks_that_cannot_be_is_not_known(size):
    """A program may write any number into its environment, or its own record."""
    evidence = with_rank(with_job(job_of(), size=0), *range(8), size=size)
    found = diagnose(evidence)
    assert not any(one.check == "rank.missing" for one in found.findings)
    assert "8 ranks were found" in found.verdict


def test_most_ranks_tell_how_many_there_are():
    evidence = with_rank(with_job(job_of(), size=0), 3, size=64)
    assert "all 8 ranks were found" in diagnose(evidence).verdict
    # Of two that differ it is not known.
    two = with_rank(with_job(job_of(1, 2), size=0, line=""), 0, size=64)
    found = diagnose(two)
    assert found.verdict.endswith("; 2 ranks were found")
