"""The merged tree, and verdicts over thousands of ranks."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.cli.diagnose import tree_of
from clusterctl.diagnosis.evidence import Frame, ProcessEvidence
from clusterctl.diagnosis.frames import Activity, place_of
from clusterctl.diagnosis.page import page
from clusterctl.diagnosis.tree import Branch, merge, path_of, tree_lines
from clusterctl.diagnosis.verdict import diagnose
from tests.diagnosis.made_up import (
    ALLREDUCE,
    IMPORTS,
    INIT,
    INNER,
    MAIN,
    NEXT,
    SHUTDOWN,
    STEP,
    facts,
    job_of,
    own,
    samples,
    with_host,
    with_processes,
    with_rank,
)

TORCH = "/opt/env/lib/python3.12/site-packages/horovod/torch/mpi_ops.py"
PLACES = {
    ALLREDUCE: Activity.COLLECTIVE,
    STEP: Activity.GRAPH,
    INIT: Activity.INIT,
    IMPORTS: Activity.IMPORT,
    NEXT: Activity.DATA,
    SHUTDOWN: Activity.ENDED,
    own("load"): Activity.USER,
    (*MAIN, INNER[0]): Activity.LIBRARY,
    (*MAIN, Frame("synchronize", TORCH, 1)): Activity.COLLECTIVE,
    (*ALLREDUCE, Frame("futex_wait", "libc.so.6", 0, native=True)): Activity.COLLECTIVE,
    # Horovod's Python code around an operation that is only being built.
    (
        *MAIN,
        Frame("allreduce", TORCH.replace("torch", "tensorflow"), 1),
        INNER[0],
    ): Activity.LIBRARY,
    (): Activity.UNKNOWN,
}


@pytest.mark.parametrize("frames", PLACES, ids=lambda frames: frames[-1].function if frames else "")
def test_where_a_stack_is(frames):
    assert place_of(frames) is PLACES[frames]


def test_equal_waits_are_one_branch_whatever_line_and_address():
    waits = (*ALLREDUCE, Frame("__futex_wait+0x1f3@@GLIBC_2.34", "/lib/libc.so.6", native=True))
    moved = tuple(Frame(f.function, f.file, f.line + 1) if f in INNER else f for f in ALLREDUCE)
    assert path_of(waits) == path_of(ALLREDUCE) == path_of(moved)
    assert path_of(own("load", 3)) != path_of(own("load", 4))


def test_the_odd_one_out_and_who_moved():
    evidence = with_rank(job_of(4, 8), 17, samples=samples(own("load")))
    evidence = with_rank(evidence, 3, samples=samples(STEP, ALLREDUCE, STEP))
    tree = merge(rank for host in evidence.hosts for rank in host.ranks)
    lines = tree_lines(tree, frozenset({17}))
    shown = [line.strip() for line in lines if line.strip().startswith(("ranks", "+"))]
    assert shown == [
        "ranks 0-31 (32)",
        "+ ranks 0-16,18-31 (31); moved: 3",
        "+ ranks 0-16,18-31 (31); moved: 3",
        "+ ranks 3; moved: 3",
        "+ ranks 17; <- differs",
    ]


FRAMES = st.lists(
    st.builds(Frame, st.sampled_from("abc"), st.sampled_from(["/x.py", "/lib/python3/y.py"])),
    max_size=5,
).map(tuple)


@given(st.lists(st.tuples(FRAMES, FRAMES, FRAMES), max_size=8))
def test_no_rank_is_lost_and_none_is_made_up(stacks):
    ranks = [
        ProcessEvidence(rank=number, role="rank", samples=samples(*looks))
        for number, looks in enumerate(stacks)
    ]
    tree = merge(ranks)
    assert tree.ranks == set(range(len(stacks)))

    def check(branch: Branch) -> None:
        below = set().union(branch.ends, *(one.ranks for one in branch.children.values()))
        assert below == branch.ranks
        assert branch.moved <= branch.ranks
        for one in branch.children.values():
            check(one)

    check(tree)


def apart(looks):
    return tuple(
        replace(
            look,
            stacks=tuple(
                replace(stack, frames=tuple(Frame(**vars(frame)) for frame in stack.frames))
                for stack in look.stacks
            ),
        )
        for look in looks
    )


@pytest.mark.all
def test_four_thousand_ranks_on_five_hundred_hosts():
    """One rank is named, and the tree stays short."""
    evidence = with_rank(
        job_of(512, 8), 2717, samples=samples(own("load"), syscall="openat /data/fifo")
    )
    # As when read from JSON: ranks do not share frame objects.
    evidence = with_processes(evidence, lambda one: replace(one, samples=apart(one.samples)))
    found = diagnose(evidence)
    tree = merge(rank for host in evidence.hosts for rank in host.ranks)
    assert (found.check, found.findings[0].host) == ("rank.io", "demo-339")
    assert found.findings[0].ranks == (2717,)
    assert len(tree.ranks) == 4096
    assert len(tree_lines(tree)) < 60


HOSTILE = '<script>alert("x")</script>\x1b[31m&'


class Tags(HTMLParser):
    """An HTML parser that records tags, and tags not closed in order."""

    VOID = ("meta", "br", "!doctype")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_is_whole_and_says_hostile_names_harmlessly():
    evidence = job_of(3, 4, log=("step 7", HOSTILE))
    stack = (*MAIN, Frame(HOSTILE, f"/{HOSTILE}", 3))
    looks = samples(stack, state="R")
    evidence = with_rank(evidence, 5, samples=looks, argv=(HOSTILE,), gpus=(0, 1))
    cards = {"gpus": [{}, {"processes": [{"pid": 1005}]}]}  # it may use both, and uses one
    evidence = with_host(evidence, 1, facts=facts("demo-1", gpus=cards))
    text = page(evidence, diagnose(evidence))
    tags = Tags()
    tags.feed(text)
    assert not tags.open
    assert not tags.seen & {"script", "link", "img", "iframe"}
    assert "\x1b" not in text
    assert text.count("&lt;script&gt;") >= 4
    assert "4 min 00 s old, GPUs 1\n" in text


def test_the_tree_has_no_ranks_of_another_job():
    evidence = job_of()
    head, *rest = evidence.hosts
    others = (replace(one, pid=7, job_id="77") for one in job_of(stack=own("other")).hosts[0].ranks)
    head = replace(head, processes=(*head.processes, *others))
    both = replace(evidence, hosts=(head, *rest))
    assert tree_of(both, diagnose(both)) == tree_of(evidence, diagnose(evidence))
