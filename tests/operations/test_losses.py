"""What `down` finds on two hosts of the lab that would be lost with their disks."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.cli import cluster as commands
from clusterctl.cli import disk
from clusterctl.domain.errors import CommandFailed, CommandTimeout, HostUnreachable, UsageError
from clusterctl.domain.files import ClusterFolder
from clusterctl.domain.results import FanoutResult, HostOutcome
from clusterctl.domain.timeouts import Timeouts
from clusterctl.node.jobs import written
from clusterctl.node.jobs.processes import NodeProcess
from clusterctl.node.jobs.spec import JobSpec, JobStep
from clusterctl.node.jobs.written import Going, OutputFiles, OutputFolder, Overview
from clusterctl.node.record import to_json
from clusterctl.operations import logs
from clusterctl.operations import losses as module
from clusterctl.operations.access import Access
from clusterctl.operations.fetch import fetch
from clusterctl.operations.losses import (
    FetchedCopy,
    Losses,
    Written,
    find_losses,
    is_by_hand,
    lost_copies,
    note_copy,
    trees_on,
)
from clusterctl.transport.connections import Connections
from clusterctl.transport.dial import Target
from clusterctl.transport.keys import KnownHostKeys
from clusterctl.transport.session import Identity
from tests.cli.running import CommandLine
from tests.operations.clusters import ED25519, cluster, node
from tests.pair import eventually

pytestmark = [pytest.mark.lab, pytest.mark.train]

WRITES = """\
import os, pathlib, time
rank = os.environ["OMPI_COMM_WORLD_RANK"]
pathlib.Path("epochs").mkdir(exist_ok=True)
pathlib.Path(f"epochs/{rank}.h5").write_bytes(bytes(1 << 20))
pathlib.Path("table.csv").write_text("written over")
if rank == "0":
    pathlib.Path("pair-1").write_text("not a folder")
while not os.path.exists("/data/go"):
    time.sleep(0.1)
"""


def losses(cluster, within_s=10.0):
    with cluster.access() as access:
        return find_losses(access, within_s)


def test_down_refuses_while_something_would_be_lost(quiet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "writes.py").write_text(WRITES)
    (tmp_path / "table.csv").write_text("shipped")
    (tmp_path / "unchanged.csv").write_text("shipped")
    assert losses(quiet) == Losses()
    quiet.ok("train", "2", "--detach", "--script", "writes.py")
    [job] = [one["job_id"] for one in quiet.jobs()]
    eventually(lambda: len(losses(quiet).written) == 2, "the files of both ranks")
    quiet.ends(1, f"job {job} has not ended, and ends with the nodes", "down", "--yes")
    for index in (0, 1):
        quiet.on(index, "touch /data/go")
    assert quiet.ctl("wait", job)[0] == 0
    status, _, err = quiet.ctl("down", "--yes")
    assert (status, "has not ended" in err) == (1, False), err
    folder = f"/home/ubuntu/.clusterctl/code/{job}"
    said = f"pair-[0-1]: job {job} left 5 files of 2.0 MiB in {folder}, not fetched"
    assert (said in err, err.count("save them")) == (True, 1), err
    assert f"save them: clusterctl fetch pair {job} runs/{job}" in err
    # What fetch has brought is not lost, until it changes.
    home = tmp_path / "home"
    for _ in range(2):
        status, out, err = quiet.ctl("fetch", str(home), job)
        assert (status, "(5 files, 2.0 MiB that it wrote)" in out) == (0, True), (out, err)
        assert ("record.json" in out, "notes" in out) == (True, False), out
        (home / "notes").write_text("the user's own")
    assert (home / "epochs" / "0.h5").stat().st_size == 1 << 20
    assert (home / "pair-1" / "epochs" / "1.h5").stat().st_size == 1 << 20
    assert (home / "pair-1" / "table.csv").read_text() == "written over"
    assert (home / "pair-0" / "pair-1").read_text() == "not a folder"
    assert not (home / "unchanged.csv").exists(), "it was shipped from here"
    assert (home / "record.json").exists()
    assert losses(quiet) == Losses()
    # Nor is a change that hides itself: as many bytes, and the time of before.
    hide = "touch -r table.csv ../t && printf 'written anew' > table.csv && touch -r ../t table.csv"
    quiet.on(1, f"cd {folder} && {hide}")
    assert [one.host for one in losses(quiet).written] == ["pair-1"]
    status, out, err = quiet.ctl("fetch", str(tmp_path / "home"), job, "--verify")
    assert (status, "and equal to what is on the nodes" in out) == (0, True), (out, err)
    assert (home / "pair-1" / "table.csv").read_text() == "written anew"
    assert losses(quiet) == Losses()
    quiet.on(1, f"echo more >> {folder}/table.csv")
    [changed] = losses(quiet).written
    assert (changed.host, changed.path) == ("pair-1", folder)
    quiet.ends(2, "no terminal to answer this question: Terminate the 2 nodes", "down")
    assert len(quiet.jobs()) == 1, "nothing was removed"
    # Where a job has written is not known without its specification, and that is no "nothing".
    quiet.on(0, f"truncate -s 100 .clusterctl/jobs/{job}/spec.json")
    assert list(losses(quiet).unread) == [job]
    status, _, err = quiet.ctl("fetch", str(tmp_path / "other"), job)
    assert (status, f"where job {job} wrote is not known: spec.json: " in err) == (1, True), err


ENDS = """\
import os, pathlib
pathlib.Path(f"best-{os.environ['OMPI_COMM_WORLD_RANK']}.ckpt").write_bytes(bytes(1 << 20))
"""


def test_what_goes_with_a_node_is_named_before_it_goes(quiet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ends.py").write_text(ENDS)
    # A script-mode program's own files count like any other's.
    script = ("--script", "ends.py", "--hyperparameter", "epochs=1")
    quiet.ok("train", "2", *script)
    [job] = [one["job_id"] for one in quiet.jobs()]
    left = f"job {job} left 1 file of 1.0 MiB in /home/ubuntu/.clusterctl/code/{job}/code"
    for command, save in (
        (("remove", "1", "--yes"), "clusterctl remove pair 1 --yes --force"),
        (("replace", "1", "--yes"), "clusterctl replace pair 1 --yes --force"),
    ):
        status, _, err = quiet.ctl(*command)
        said = (f"pair-1: {left}, not fetched" in err, "pair-0: job" in err, save in err)
        assert (status, said) == (1, (True, False, True)), err
    # The records of all jobs go with the head node.
    quiet.ends(1, f"pair-[0-1]: job {job} left 2 files", "replace", "0", "--yes")
    status, _, err = quiet.ctl("clean-logs", "--jobs")
    question = "Remove what 1 job wrote and was not fetched?"
    assert (status, f"pair-[0-1]: job {job}" in err, question in err) == (2, True, True), err
    # Another machine has the node's name and address now.
    with quiet.access() as access:
        machine = access.cluster.nodes[1].instance_id
    quiet.on(0, f"sed -i s/{machine}/i-09876543/ .clusterctl/jobs/{job}/spec.json")
    status, _, err = quiet.ctl("fetch", job, str(tmp_path / "home"))
    assert (status, "machines of pair-1 that the cluster no longer has" in err) == (0, True), err
    assert (tmp_path / "home" / "best-0.ckpt").exists()
    assert (tmp_path / "home" / "pair-1" / "best-1.ckpt").exists()
    assert losses(quiet) == Losses()
    status, out, err = quiet.ctl("clean-logs", "--jobs", "--dry-run")
    assert (status, "results." in err) == (0, False), err
    # A new head node knows no job, and each node still has what its ranks wrote.
    quiet.on(0, "rm -r .clusterctl/jobs/*")
    status, _, err = quiet.ctl("down", "--yes")
    assert status == 1
    for host in ("pair-0", "pair-1"):
        assert f"{host}: job {job}, of which the head node has no record, left 1 file" in err
        assert f"{host}:/home/ubuntu/.clusterctl/code/{job}/code ." in err
    # What clusterctl itself has written there is no result.
    quiet.on_all(f"rm .clusterctl/code/{job}/code/best-*.ckpt")
    assert losses(quiet) == Losses()
    quiet.on(1, "mkdir imagenet_resnet; cd imagenet_resnet; touch model.ckpt-9.index")
    [by_hand] = losses(quiet).written
    assert (by_hand.host, by_hand.job_id, by_hand.kind) == ("pair-1", "", "checkpoints")
    quiet.on_all("rm -rf .clusterctl/code imagenet_resnet")


def test_a_program_that_was_started_by_hand_is_no_all_clear(quiet):
    started = quiet.on(
        1, "nohup python3 -I -c 'import time; time.sleep(600)' >/dev/null 2>&1 & echo $!"
    )
    try:
        [(host, line)] = losses(quiet).runs
        assert (host, line.startswith("python3 -I -c")) == ("pair-1", True)
    finally:
        quiet.on(1, f"kill {started}")


@pytest.mark.parametrize(
    ("role", "argv", "counts"),
    [
        ("python", ("python3", "train.py"), True),
        ("python", ("python3", "-I", "train.py"), True),
        ("python", ("python3",), True),
        ("python", ("python3", "-ISu", "-c", "program of a command"), False),
        ("python", ("python3", "-I", "/home/u/.local/share/clusterctl/bin/runclust"), False),
        ("python", ("[python3]",), False),  # it is ending: the kernel has taken its memory
        ("launcher", ("mpirun", "-np", "2", "a.out"), True),
        ("launcher", ("[mpirun]",), False),
        ("child", ("sh",), False),
    ],
)
def test_whose_a_process_is(role, argv, counts):
    assert is_by_hand(NodeProcess("pair-1", 7, None, role, None, 1.0, argv)) is counts


def test_checkpoints_count_whoever_started_the_training(quiet):
    """The logs of a training without a checkpoint are no loss, nor is what was shipped."""
    folder = "examples/horovod/tensorflow/imagenet_resnet"
    quiet.on(0, f"mkdir -p {folder} && touch {folder}/hvd_train.log")
    assert losses(quiet) == Losses()
    quiet.on(0, f"cd {folder} && touch model.ckpt-40.index && head -c 4096 /dev/zero > model")
    [found] = losses(quiet).written
    assert (found.host, found.job_id, found.kind) == ("pair-0", "", "checkpoints")
    assert (found.files, found.size_bytes) == (3, 4096)
    status, _, err = quiet.ctl("down", "--yes")
    assert status == 1, err
    assert f"left checkpoints, 3 files of 4.0 KiB in /home/ubuntu/{folder}, not fetched" in err, err
    quiet.on(0, f"rm -r {folder}")
    # A folder that cannot be read may hold anything.
    job = ".clusterctl/jobs/20261120-154501-3f2a"
    steps = (JobStep(("mpirun",)),)
    spec = JobSpec("20261120-154501-3f2a", steps=steps, workdir="/home/ubuntu", log_dir="closed")
    quiet.on(0, f"mkdir -p {job} closed && cat > {job}/spec.json", to_json(spec).encode())
    quiet.on(0, "chmod 0 closed")
    [found] = losses(quiet).written
    assert (found.files, found.unread) == (0, ("/home/ubuntu/closed: Permission denied",))


def test_a_head_node_that_does_not_answer_is_asked_for_no_longer_than_the_limit(quiet):
    with quiet.fault(0, "freeze"):
        found = losses(quiet, 1.0)
        assert (list(found.unknown), found.off) == (["pair-0"], {"pair-0"})


def test_what_a_job_left_is_one_finding_whatever_the_number_of_nodes_and_folders(tmp_path):
    left = [Written(f"demo-{index}", "J", "/code/J", "files", 2, 1 << 20) for index in range(3)]
    left += [Written("demo-0", "J", "/home/u/resnet", "checkpoints", 1, 1024)]
    left += [Written(f"demo-{index}", "", "/home/u/hand", "files", 1, 1) for index in range(2)]
    found = Losses(written=tuple(left)).findings(ClusterFolder(tmp_path / "demo"))
    hand = "a run that was started by hand left 1 file of 1 B in /home/u/hand"
    since = "not fetched since they changed"
    assert [(one.host, one.message) for one in found] == [
        ("demo-[0-2]", "job J left 6 files of 3.0 MiB in /code/J; checkpoints, 1 file of 1.0 KiB "
         f"in /home/u/resnet, {since}"),
        ("demo-0", f"{hand}, {since}"),
        ("demo-1", f"{hand}, {since}"),
    ]  # fmt: skip
    assert found[0].hint == "save them: clusterctl fetch demo J runs/J"
    assert f"{tmp_path}/demo/ssh_config demo-1:/home/u/hand ." in found[2].hint
    left = [Written("demo-0", "J", "/out", "files", 1, 1, ("/out/a: b",), "/here")]
    found = Losses(written=tuple(left)).findings(ClusterFolder(tmp_path / "demo"))
    assert [one.message for one in found] == [
        "job J left 1 file of 1 B in /out, and the copy in /here is gone or not whole",
        "not known what job J left there: /out/a: b",
    ]


DIGESTS, PLACES = st.sampled_from("abc"), st.sampled_from(["x", "y", "z"])
FETCHES = st.lists(st.tuples(PLACES, st.lists(DIGESTS, max_size=3), st.booleans()), max_size=6)


@given(FETCHES, st.sets(PLACES), st.sets(PLACES))
def test_a_copy_counts_as_long_as_one_folder_has_all_of_it(fetches, full, empty):
    """Each fetch begins; one that broke off has no end."""
    with tempfile.TemporaryDirectory() as made:
        folder = ClusterFolder(Path(made))
        for place in full | empty:
            (folder.path / place).mkdir()
        for place in full:
            (folder.path / place / "log").touch()
        for place, digests, ended in fetches:
            for started in (True, False)[: 1 + ended]:
                note_copy(folder, FetchedCopy(f"{made}/{place}", tuple(digests), started))
        lost = lost_copies(folder)
    for digest in "abc":
        last = {place: ended for place, digests, ended in fetches if digest in digests}
        places = [place for place, digests, _ in fetches if digest in digests]
        is_lost = bool(places) and not any(last[place] for place in full & last.keys())
        assert lost.get(digest) == (f"{made}/{places[-1]}" if is_lost else None)


def made_up(tmp_path, nodes: int):
    """Return access to a cluster of which no node answers by itself."""
    targets = tuple(Target(f"demo-{n}", f"198.51.100.{n}", "ubuntu") for n in range(nodes))
    return SimpleNamespace(
        connections=SimpleNamespace(),
        head=targets[0],
        all_targets=targets,
        cluster=cluster(*map(node, range(nodes))),
        folder=ClusterFolder(tmp_path),
    )


def test_a_head_node_whose_processes_cannot_be_listed_may_run_a_training(tmp_path, monkeypatch):
    refused = CommandFailed("demo-0", "looking at the processes failed")
    answers = FanoutResult((HostOutcome("demo-0", error=refused),))
    monkeypatch.setattr(module, "call", lambda *_, **__: Overview((), (), {}, ()))
    monkeypatch.setattr(module, "list_processes", lambda *_: answers)
    assert find_losses(made_up(tmp_path, 1), 10.0) == Losses(unknown={"demo-0": refused.message})


@pytest.mark.parametrize(("hosts", "jobs"), [(None, ("j1",)), (["demo-0"], ()), (["demo-1"], ())])
def test_a_job_ends_with_the_whole_cluster_only(tmp_path, monkeypatch, hosts, jobs):
    """Where some nodes go, the check for running jobs names it."""
    going = Overview((Going("j1", serves=False),), (), (), {})
    answers = {"overview": going, "find_output": ()}
    monkeypatch.setattr(module, "call", lambda c, t, it: answers[it.function.__name__])
    monkeypatch.setattr(module, "list_processes", lambda *_: FanoutResult(()))
    assert find_losses(made_up(tmp_path, 2), 10.0, hosts) == Losses(jobs=jobs)


def test_a_folder_of_two_jobs_is_searched_wherever_one_of_them_ran(monkeypatch):
    """By the latest job there, whose ID `fetch` needs."""
    trees = {
        job: [OutputFolder(job, "/data/out", "files", hosts=hosts)]
        for job, hosts in (("a", ("d-1", "d-2", "d-3")), ("b", ("d-1",)))
    }
    jobs = [SimpleNamespace(job_id=job, path=job, has_written=lambda: True) for job in trees]
    monkeypatch.setattr(written, "all_jobs", lambda: jobs)
    monkeypatch.setattr(written, "trees_of", trees.get)
    latest, earlier, _ = written.all_trees()
    assert [(one.job, one.hosts) for one in latest] == [("b", ("d-1",))]
    assert [(one.job, one.hosts) for one in earlier] == [("a", ("d-2", "d-3"))]


def test_a_machine_that_took_over_a_lost_nodes_ranks_has_what_they_wrote(tmp_path):
    """The job did not begin on it, and knows it by its address only."""
    access = made_up(tmp_path, 3)
    trees = [OutputFolder("a", "/code", "files", hosts=("demo-1", "10.0.0.6"))]
    on = [one.host for one in access.all_targets if trees_on(access, one, trees)]
    assert on == ["demo-1", "demo-2"]


@pytest.mark.parametrize("is_reached", [True, False])
def test_what_a_node_that_answers_does_not_say_in_time_is_at_risk(
    tmp_path, monkeypatch, is_reached
):
    late = (CommandTimeout if is_reached else HostUnreachable)("demo-1", "no answer")

    def look(connections, target, node_call):
        if target.host == "demo-1":
            raise late
        return Overview((), (), (), {})

    monkeypatch.setattr(module, "call", look)
    monkeypatch.setattr(module, "list_processes", lambda *_: FanoutResult(()))
    found = find_losses(made_up(tmp_path, 2), 10.0, ["demo-1"])
    assert found.unknown == {"demo-1": "no answer"}
    assert found.off == (frozenset() if is_reached else {"demo-1"})


@pytest.mark.parametrize(
    ("joined", "known", "is_asked"),
    [(("10.0.0.4",), "", False), (("10.0.0.4", "10.0.0.5"), "", True), ((), "", True)]
    + [(("10.0.0.4",), f"10.0.0.5,demo-1 {ED25519} i-1\n", True)],
)
def test_a_machine_that_never_joined_the_cluster_holds_nothing(
    tmp_path, monkeypatch, joined, known, is_asked
):
    """As the new machine of a `replace` or an `add` that was interrupted while it started."""
    (tmp_path / "known_hosts").write_text(known)

    def look(connections, target, node_call):
        if target.host == "demo-1":
            raise HostUnreachable("demo-1", "no answer")
        return Overview((), (), (), {}, joined=joined)

    monkeypatch.setattr(module, "call", look)
    monkeypatch.setattr(module, "list_processes", lambda *_: FanoutResult(()))
    found = find_losses(made_up(tmp_path, 2), 10.0, ["demo-1"])
    assert list(found.unknown) == ["demo-1"] * is_asked


@pytest.mark.parametrize("lines", ["i-0", "i-0 i-9"])
def test_of_two_head_nodes_the_one_that_is_replaced_has_the_records(tmp_path, monkeypatch, lines):
    """After an interrupted `replace NAME 0`, whether or not the new head node was ready."""
    folder = ClusterFolder(tmp_path / "demo")
    folder.path.mkdir()
    folder.launch.touch()
    folder.known_hosts.write_text("".join(f"demo-0 {ED25519} {one}\n" for one in lines.split()))
    new = node(0, instance_id="i-9", private_ip="10.0.0.9")
    machines = [(new, False), (node(0), True), (node(1), False)]
    nothing = logs.RunningWork((), ())
    instances = [
        SimpleNamespace(node=one, retired=retired, wanted=(0, 1), ssh_user="ubuntu")
        for one, retired in machines
    ]
    asked = []
    app = SimpleNamespace(
        ec2=SimpleNamespace(meta=SimpleNamespace(region_name="us-east-1")),
        folder=lambda name: folder,
        access=contextlib.nullcontext,
        timeouts=Timeouts(),
    )
    monkeypatch.setattr(module, "find_losses", lambda there, *_: asked.append(there) or Losses())
    for indices in (None, (0,), (1,)):
        commands._losses(app, "demo", instances, indices=indices)
    for there in asked:
        assert [one.instance_id for one in there.nodes] == ["i-0", "i-9", "i-1"]
    assert len(asked) == 3
    asked.clear()
    app.access = lambda there: Access(there, folder, Connections(Identity(()), KnownHostKeys([])))
    monkeypatch.setattr(logs, "running_work", lambda there, more: asked.append(there) or nothing)
    commands._refuse_while_job_needs(app, "demo", instances, (0,), "it may end")
    [there] = asked
    assert [one.address for one in there.all_targets] == ["10.0.0.4", "10.0.0.5"]
    # The old machine is gone, and no job has run on the one that never became ready.
    folder.known_hosts.write_text("")
    commands._refuse_while_job_needs(app, "demo", [instances[0], instances[2]], (0,), "it may end")
    assert asked == [there]


def test_two_machines_of_one_name_are_both_asked(tmp_path, monkeypatch):
    """A node and the one that it replaces, or two that were launched at once."""
    access = made_up(tmp_path, 4)
    first, second = (replace(one, host="demo-1") for one in access.all_targets[1:3])
    access.all_targets = (access.head, first, second)
    left = OutputFiles("j1", "/data/out", "files", 1, 10, "digest")
    says = {first: (left,), second: CommandTimeout("demo-1", "its host key is unknown")}

    def look(connections, target, node_call):
        if target == access.head:
            return Overview((), (), (), {})
        if isinstance(says[target], CommandTimeout):
            raise says[target]
        return says[target]

    monkeypatch.setattr(module, "call", look)
    monkeypatch.setattr(module, "list_processes", lambda *_: FanoutResult(()))
    for _ in range(2):
        found = find_losses(access, 10.0, ["demo-1"])
        assert [one.path for one in found.written] == ["/data/out"]
        assert found.unknown == {"demo-1": "its host key is unknown"}
        says = {first: says[second], second: says[first]}
    says = {one: CommandTimeout("demo-1", f"unknown: {one.address}") for one in (first, second)}
    found = find_losses(access, 10.0, ["demo-1"])
    assert found.unknown == {"demo-1": "unknown: 198.51.100.1; unknown: 198.51.100.2"}


def test_results_that_are_not_known_are_asked_about_before_they_go():
    losses = Losses(unknown={"demo-0": "no answer"}).of_jobs({"j1"}, {"demo-0"})
    with pytest.raises(UsageError, match="what jobs wrote on demo-0, which is not known"):
        disk._confirm(FanoutResult(()), losses, False)


def test_fetch_brings_the_folder_that_output_names_and_the_checkpoints(quiet, tmp_path):
    """A name that the record has itself does not take its place."""
    writes = "import os; os.makedirs(os.path.expanduser('~/out/a'), exist_ok=True); "
    writes += "open(os.path.expanduser('~/out/a/log'), 'w').write('mine')"
    quiet.on(0, f'echo "{writes}" > writes.py')
    run = ("train", "1", "--script", "~/writes.py", "--output", "~/out")
    assert quiet.ctl(*run)[0] == 0
    [job] = [one["job_id"] for one in quiet.jobs()]
    [found] = losses(quiet).written
    assert (found.job_id, found.path, found.files) == (job, "/home/ubuntu/out", 1)
    # A line of bookkeeping that cannot be written makes no fetch fail.
    noted = quiet.lab.home / "pair" / "fetched.jsonl"
    noted.touch()
    noted.rename(tmp_path / "noted")
    noted.mkdir()
    status, out, err = quiet.ctl("fetch", str(tmp_path / "run"))
    noted.rmdir()
    (tmp_path / "noted").rename(noted)
    assert status == 0, err
    assert (tmp_path / "run" / "out" / "a" / "log").read_text() == "mine"
    assert losses(quiet) == Losses()
    folder = "examples/horovod/tensorflow/imagenet_resnet"
    spec = JobSpec(
        job,
        steps=(JobStep(("mpirun",)),),
        workdir="/home/ubuntu/examples/horovod/tensorflow",
        log_dir="imagenet_resnet",
    )
    quiet.on(0, f"cat > .clusterctl/jobs/{job}/spec.json", to_json(spec).encode())
    quiet.on(0, f"mkdir -p {folder} && cd {folder} && echo 1 > model.ckpt-40.index")
    assert [one.kind for one in losses(quiet).written] == ["checkpoints"]
    assert quiet.ctl("fetch", job, str(tmp_path / "run"))[0] == 0
    assert (tmp_path / "run" / "imagenet_resnet" / "model.ckpt-40.index").read_text() == "1\n"
    assert losses(quiet) == Losses()
    quiet.on(0, f"rm -r {folder} out")
    quiet.ends(2, "clusterctl fetch pair", "copy", "--from", "0", "~/out", ".")
    assert quiet.ctl("train", "1", "--script", "~/writes.py")[0] == 0  # the same, without --output
    quiet.ends(0, "what it wrote elsewhere is not known", "fetch", str(tmp_path / "without"))


def test_what_cannot_be_read_hides_nothing_else_and_is_not_saved(quiet, tmp_path):
    quiet.on(0, "mkdir -p out/closed out/__pycache__ && cd out && touch a closed/b __pycache__/p")
    quiet.on(0, "cd out && chmod 0 a closed")
    writes = "import os, time; open('/home/ubuntu/out/c', 'w')\n"
    writes += "while not os.path.exists('/data/go'): time.sleep(0.1)\n"
    quiet.on(0, "cat > writes.py", writes.encode())
    run = ("train", "1", "--detach", "--script", "~/writes.py", "--output", "~/out")
    assert quiet.ctl(*run)[0] == 0
    [job] = [one["job_id"] for one in quiet.jobs()]
    eventually(lambda: [one.files for one in losses(quiet).written] == [2], "the job's file")
    err = quiet.ends(1, f"job {job} has not ended", "down", "--yes")
    assert f"job {job} left 2 files of 0 B in /home/ubuntu/out, not fetched" in err
    reasons = "/home/ubuntu/out/a: Permission denied; /home/ubuntu/out/closed: Permission denied"
    assert f"job {job} left there: {reasons}" in err
    place = tmp_path / "run"
    err = quiet.ends(1, "/out/closed: Permission denied", "fetch", job, str(place), "--verify")
    assert "/home/ubuntu/out/a: Permission denied" in err
    assert {"log", "out"} < {one.name for one in place.iterdir()}
    assert (place / "out" / "c").exists()
    assert not (place / "record.json").exists(), "it says that all is here"
    [found] = losses(quiet).written
    unread = "/home/ubuntu/out/a: Permission denied", "/home/ubuntu/out/closed: Permission denied"
    assert (found.files, {*found.unread}) == (0, {*unread})
    quiet.on(0, "chmod 700 out/a out/closed; touch /data/go")
    status, out, err = quiet.ctl("fetch", job, str(place), "--verify")
    assert (status, "what it wrote, and all of /home/ubuntu/out" in out) == (0, True), (out, err)
    assert (place / "out" / "closed" / "b").exists()
    assert losses(quiet).written == ()
    # Nor is what was saved here, and is here no longer.
    shutil.rmtree(place)
    [found] = losses(quiet).written
    assert (found.files, found.lost_copy) == (4, str(place))
    quiet.on(0, "rm -r out")
    quiet.ends(0, ", the job's folder for its output", "fetch", job, str(place))


def test_a_job_does_not_start_without_a_file_of_its_channel(quiet, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "program.py").write_text("")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("a")
    os.mkfifo(tmp_path / "data" / "pipe")
    channel = ("--channel", f"x=file://{tmp_path}/data")
    run = ("train", "2", "--script", "code/program.py", *channel, "--model-dir", "my model")
    err = quiet.ends(1, "channel x is not whole on pair-[0-1]: left out: ", *run)
    assert ("data/pipe: not a file" in err, quiet.jobs()) == (True, []), err
    # Ctrl-C ends the waiting for the job, and names the command that brings its model.
    (tmp_path / "data" / "pipe").unlink()

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("clusterctl.operations.logs.follow", interrupt)
        patched.setenv("CLUSTERCTL_HOME", str(quiet.lab.home))
        ran = CommandLine(quiet.lab.home, capsys, [*quiet.words, "--lab"])(*run)
    [job] = [one["job_id"] for one in quiet.jobs()]
    fetch_it = f"its model: clusterctl fetch pair --lab {job} 'my model'\n"
    assert (ran.status, fetch_it in ran.err) == (130, True), ran.err
    assert quiet.ctl("wait", job)[0] == 0
    log = quiet.ctl("logs", job)[1]
    assert "collected 0 files of model" in log
    assert not re.search("@[0-9a-f]{9}", log), "a word of the protocol"


def test_a_fetch_of_a_model_goes_on_where_it_was_interrupted(quiet, tmp_path):
    quiet.on(0, "echo 'print(1)' > one.py")
    assert quiet.ctl("train", "1", "--script", "~/one.py")[0] == 0
    [job] = [one["job_id"] for one in quiet.jobs()]
    # As script mode leaves it: without a program for it, which would load TensorFlow.
    folder = f".clusterctl/jobs/{job}"
    as_model = "import json, sys; d = json.load(open(sys.argv[1])); d['model_dir'] = ''; "
    as_model += "json.dump(d, open(sys.argv[1], 'w'))"
    quiet.on(0, f"""python3 -c "{as_model}" {folder}/spec.json""")
    quiet.on(0, f"cd {folder} && mkdir -p model/1 && head -c 24M /dev/urandom > model/1/weights")
    quiet.on(0, f"cd {folder} && echo small > model/a && echo '{{}}' > manifest.json")
    place, needed = tmp_path / "run", []

    def interrupt(progress):
        if progress.nodes and progress.nodes[0].bytes > 4 << 20:
            raise KeyboardInterrupt

    def note(progress):
        needed.extend(node.needed_bytes for node in progress.nodes)

    with quiet.access() as access:
        shaped = quiet.fault(0, "shape", "--rate", "80mbit")
        with shaped, pytest.raises(KeyboardInterrupt):
            fetch(access, job, place, interrupt)
        # The log comes first, and what says that all is there comes last.
        assert (place / "log").exists()
        assert not (place / "record.json").exists()
        fetched = fetch(access, job, place, note)
    assert (fetched.files, fetched.size_bytes) == (2, (24 << 20) + 6)
    assert 0 < max(needed) < 24 << 20, "the whole was copied again"
    assert (place / "model" / "1" / "weights").stat().st_size == 24 << 20
    assert {"record.json", "manifest.json"} < {path.name for path in place.iterdir()}
    assert not [*place.glob(".*")]
    # What the job has removed since stays here, and is named.
    quiet.on(0, f"rm {folder}/model/a")
    gone = "here, but no longer this job's on the nodes: model/a\n"
    quiet.ends(0, gone, "fetch", job, str(place), "--verify")
    assert (place / "model" / "a").read_text() == "small\n"
    # A folder of the user's that has such a file is left as it is.
    (tmp_path / "own" / "model" / "1").mkdir(parents=True)
    (tmp_path / "own" / "model" / "1" / "weights").write_text("mine")
    quiet.ends(2, "has its own file model", "fetch", job, str(tmp_path / "own"))
    assert (tmp_path / "own" / "model" / "1" / "weights").read_text() == "mine"
