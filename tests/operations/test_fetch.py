"""Where `fetch` puts what a job wrote: no two files share a path, and none lies below another."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.node.jobs.spec import JobRecord, JobSpec, JobStatus
from clusterctl.node.jobs.written import FILES, OutputFiles
from clusterctl.operations.fetch import Output, gone_hosts, plan_parts
from clusterctl.transport.dial import Target
from tests.operations.clusters import cluster, node

PLACE = Path("/place")
HOSTS = ("demo-0", "demo-1", "demo-2")
RECORDS = ("log", "log-0", "demo-2", "record.json")  # of a cluster that is called `log`, too
NAMES = st.sampled_from(["log", "demo-0", "demo-1", "demo-1.2", "demo-0.2", "out", "f"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


def without_nesting(paths):
    """Return the paths that can be files of one folder: none is a folder of another."""
    kept: list[str] = []
    for path in sorted(paths):
        if not any(path.startswith(f"{one}/") for one in kept):
            kept.append(path)
    return tuple(kept)


FILE_NAMES = st.sets(PATHS, min_size=1, max_size=6).map(without_nesting)
WHOLE = st.lists(st.tuples(NAMES, FILE_NAMES), max_size=3)
OUTPUTS = st.fixed_dictionaries({host: st.tuples(FILE_NAMES, WHOLE) for host in HOSTS})


def output(host, name, names, path="/code"):
    found = OutputFiles("job", path, FILES, len(names), 0, "", tuple(names))
    return Output(Target(host, "198.51.100.1", "ubuntu"), name, found)


def plan(*outputs, records=("log", "record.json"), hosts=HOSTS):
    """Return where each file goes, as (host, path there) -> path below the folder here."""
    return {
        (part.target.host, f"{part.source}/{name}"): str(path.relative_to(PLACE))
        for part in plan_parts(PLACE, records, "demo-0", hosts, outputs)
        for name, path in zip(part.names, part.here)
    }


@given(OUTPUTS)
def test_each_file_has_a_path_of_its_own_that_is_no_folder_of_another(written):
    outputs = []
    for host, (names, whole) in written.items():
        outputs.append(output(host, "", names))
        outputs += [output(host, n, some, f"/{at}") for at, (n, some) in enumerate(whole)]
    planned = plan(*outputs, records=RECORDS)
    assert len(planned) == sum(len(one.found.names) for one in outputs), "one is left out"
    paths = sorted([*RECORDS, *planned.values()])
    assert len({*paths}) == len(paths), "two share a path"
    folders = {str(parent) for path in paths for parent in Path(path).parents}
    assert not folders & {*paths}


def test_a_name_that_is_taken_goes_below_the_nodes_name():
    """Of the head node, those of the record and of a node; of any node, the folder of --output."""
    head = output("demo-0", "", ["log", "demo-1", "same", "out"])
    other = output("demo-1", "", ["same", "log", "out/a"])
    folders = [output(host, "out", ["b"], "/home/out") for host in HOSTS[:2]]
    assert plan(head, other, *folders) == {
        ("demo-0", "/code/log"): "demo-0/log",
        ("demo-0", "/code/demo-1"): "demo-0/demo-1",
        ("demo-0", "/code/same"): "same",
        ("demo-0", "/code/out"): "demo-0/out",
        ("demo-0", "/home/out/b"): "out/b",
        ("demo-1", "/code/same"): "demo-1/same",
        ("demo-1", "/code/log"): "demo-1/log",
        ("demo-1", "/code/out/a"): "demo-1/demo-1/out/a",
        ("demo-1", "/home/out/b"): "demo-1/out/b",
    }


def test_a_number_is_added_where_the_nodes_name_is_taken_too():
    head = output("demo-0", "", ["log", "demo-0/log"])
    assert plan(head)["demo-0", "/code/log"] == "demo-0.2/log"
    assert plan(output("demo-0", "log", ["a"], "/home/log")) == {
        ("demo-0", "/home/log/a"): "demo-0/log/a"
    }
    # A cluster may be called `log`: the logs of its ranks are log-0 and log-1.
    second = output("log-1", "", ["a"])
    parts = plan_parts(PLACE, ["log-0", "log-1"], "log-0", ["log-0", "log-1"], [second])
    assert [str(part.place) for part in parts] == ["/place/log-1.2"]


@pytest.mark.parametrize(
    ("more", "gone"),
    [
        ({}, ("demo-1", "demo-2")),
        ({"log_dir": "runs"}, ()),  # the trainer's, which writes on the head node
        ({"claims": ("copy",)}, ()),
    ],
)
def test_another_machine_of_the_same_name_and_address_has_not_what_the_ranks_wrote(more, gone):
    ran = tuple(
        {"name": f"demo-{at}", "address": f"10.0.0.{at}", "instance_id": f"i-{at}"}
        for at in range(3)
    )
    there = cluster(node(0), node(1, instance_id="i-9", private_ip="10.0.0.1"))
    assert gone_hosts(there, JobRecord(JobSpec("j", nodes=ran, **more), JobStatus())) == gone
    went_on = JobStatus(ran_on=("demo-0", "10.0.0.5", "10.0.0.99"))  # the first is the cluster's
    there = cluster(node(0), node(1, private_ip="10.0.0.5"))
    found = gone_hosts(there, JobRecord(JobSpec("j", nodes=ran[:2], **more), went_on))
    assert found == (("10.0.0.99",) if gone else ())
