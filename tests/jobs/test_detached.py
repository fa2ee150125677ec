"""Jobs that outlive the connection, really started, listed, followed and ended on this machine."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import re
import shlex
import shutil
import signal
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.cli.following import print_end
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    CommandTimeout,
    ConnectionLost,
    HostUnreachable,
    NotFound,
    UsageError,
)
from clusterctl.domain.files import ClusterFolder
from clusterctl.domain.timeouts import Timeouts
from clusterctl.jobs import detached
from clusterctl.jobs.detached import (
    JobRunning,
    LogFollower,
    end_job,
    find_job,
    follow_job,
    list_jobs,
    spec_of,
)
from clusterctl.jobs.horovod import AUTOTUNE, STEPS
from clusterctl.jobs.mpirun import Variable
from clusterctl.jobs.plan import JobPlan, check_job_id, new_job_id
from clusterctl.node.jobs.spec import JobState
from clusterctl.node.jobs.written import CHECKPOINTS, FILES, OutputFiles, OutputFolder
from clusterctl.operations import fetch as fetching
from clusterctl.operations import logs
from clusterctl.operations.fetch import Output, Scope, check_place, fetch
from clusterctl.operations.logs import RunningWork
from clusterctl.operations.losses import FetchedCopy, lost_copies, note_copy
from clusterctl.operations.tuning import fetch_tuning
from tests.clock import FakeClock
from tests.job_records import job_record
from tests.lab.running import wait_until
from tests.local_node import HEAD
from tests.variants import usual

pytestmark = pytest.mark.slow

# Jobs run on this machine here, beside those of other workers and test runs: an ID is a mark by
# which a job's processes are found and ended.
JOB, OTHER, QUEUED = (f"20261120-15450{number}-{os.getpid() % 65536:04x}" for number in (1, 2, 3))


def plan(home, script, job_id=JOB):
    return JobPlan(
        job_id=job_id,
        ranks=2,
        preset="cpu",
        synthetic=True,
        workdir=str(home),
        argv=("/bin/sh", "-c", script),
    )


def start_job(connections, head, job, cluster, how="refuse", files=None, **more):
    """Start a planned job, with further files in its folder."""
    request = detached.submission_of(job, spec_of(job, **more), how)
    request = replace(request, files={**request.files, **(files or {})})
    return detached.start_job(connections, head, request, cluster)


def eventually(reached, timeout_s=240.0):
    wait_until(reached, "the job", timeout_s)


def folder(node, job_id=JOB):
    return node.home / ".clusterctl" / "jobs" / job_id


@pytest.mark.parametrize(("status", "state"), [(0, JobState.SUCCEEDED), (3, JobState.FAILED)])
def test_a_job_runs_to_its_end(node, status, state):
    words = f"echo 'out é'; echo err >&2; env | grep ^CLUSTERCTL_JOB; pwd; exit {status}"
    start_job(node, HEAD, plan(node.home, words), "demo")
    chunks = []
    job = follow_job(node, HEAD, JOB, LogFollower(chunks.append))
    assert (job.state, job.exit_status, job.spec.ranks, job.spec.preset) == (
        state,
        status,
        2,
        "cpu",
    )
    ours = f"clusterctl: the command ended with exit status {status}\n" if status else ""
    assert b"".join(chunks).decode() == f"out é\nerr\nCLUSTERCTL_JOB={JOB}\n{node.home}\n{ours}"
    assert job.spec.line == shlex.join(plan(node.home, words).argv)
    assert (folder(node) / "command").read_text() == job.spec.line + "\n"
    [listed] = list_jobs(node, HEAD)
    assert replace(listed, now=0.0) == replace(find_job(node, HEAD, JOB), now=0.0)


def test_an_unknown_job_is_answered_with_the_clusters_own_list(node):
    with pytest.raises(NotFound, match="there is no job 20010101-000000-abcd") as raised:
        logs.find(access_to(node), "20010101-000000-abcd")
    assert raised.value.hint == "see `clusterctl jobs demo`"


def test_a_job_that_was_just_looked_at_is_not_looked_at_again_before_its_log(node, monkeypatch):
    start_job(node, HEAD, plan(node.home, "echo out"), "demo")
    ended = follow_job(node, HEAD, JOB, LogFollower(lambda _: None))
    asked, run = [], node.run
    monkeypatch.setattr(node, "run", lambda *a, **k: asked.append(a[1]) or run(*a, **k))
    chunks = []
    assert follow_job(node, HEAD, JOB, LogFollower(chunks.append), last_read=ended) is ended
    assert (b"".join(chunks), len(asked)) == (b"out\n", 1), asked
    # It ended after the poll.
    running = replace(ended.status, state=JobState.RUNNING, exit_status=None)
    before = replace(ended, status=running)
    chunks.clear()
    assert (
        follow_job(node, HEAD, JOB, LogFollower(chunks.append), last_read=before).state
        is JobState.SUCCEEDED
    )
    assert b"".join(chunks) == b"out\n"


def test_copies_and_trainings_are_in_nobodys_way_but_their_own_kinds(node):
    def start(number, destination=""):
        job = plan(node.home, "while [ ! -e go ]; do sleep 0.1; done", f"{JOB[:-1]}{number}")
        more = {"destination": destination, "claims": (f"copy:{destination}",)}
        more = {**(more if destination else {}), "files": {"names": "a\0\udcff"}}
        return start_job(node, HEAD, job, "demo", **more)

    start(0, "~/set")
    with pytest.raises(JobRunning, match="copies to ~/set on demo already"):
        start(1, "~/set")
    start(2, "/data/set")
    start(3)
    with pytest.raises(JobRunning, match="is running on demo"):
        start(4)
    jobs = list_jobs(node, HEAD)
    assert [job.spec.destination for job in jobs] == ["~/set", "/data/set", ""]
    assert RunningWork(tuple(jobs), ()).trainings == RunningWork((jobs[2],), ())
    assert (folder(node, jobs[0].job_id) / "names").read_bytes() == b"a\0\xff"
    (node.home / "go").touch()
    for job in jobs:
        follow_job(node, HEAD, job.job_id, LogFollower(lambda chunk: None))


LOOP = "echo ready; while :; do sleep 0.05; done"


def two_lines(node, train, evaluate):
    return replace(plan(node.home, train), evaluation=("/bin/sh", "-c", evaluate))


@pytest.mark.parametrize(
    ("train", "evaluate", "log"),
    [
        # A launcher may exit with 0 after SIGTERM.
        (
            f"trap 'echo cleaned up; exit {status}' TERM; {LOOP}",
            "echo evaluated",
            "ready\ncleaned up\n",
        )
        for status in (0, 143)
    ]
    + [("true", f"trap 'exit 143' TERM; {LOOP}", "+ {line}\nready\n")],
)
def test_a_cancelled_job_ends_by_itself_and_is_not_evaluated(node, train, evaluate, log):
    job = two_lines(node, train, evaluate)
    start_job(node, HEAD, job, "demo")
    there = folder(node) / "log"
    eventually(lambda: "ready\n" in there.read_text().splitlines(True))
    assert find_job(node, HEAD, JOB).is_active
    assert end_job(node, HEAD, JOB)
    seen = find_job(node, HEAD, JOB)
    assert (seen.state, seen.exit_status) == (JobState.CANCELLED, 143)
    assert there.read_text().endswith(log.format(line=job.evaluation_line))
    assert end_job(node, HEAD, JOB), "ending it again is no error"


def test_a_second_job_waits_for_leave(node):
    start_job(node, HEAD, plan(node.home, "sleep 60"), "demo")
    with pytest.raises(JobRunning, match=f"job {JOB} is running on demo") as refused:
        start_job(node, HEAD, plan(node.home, "true", OTHER), "demo")
    assert "--force" in refused.value.hint
    start_job(node, HEAD, plan(node.home, "true", QUEUED), "demo", "queue")
    with pytest.raises(JobRunning, match=f"job {JOB} is running on demo"):  # not the queued job
        start_job(node, HEAD, plan(node.home, "true", OTHER), "demo")
    assert not folder(node, OTHER).exists()
    start_job(node, HEAD, plan(node.home, "true", OTHER), "demo", "force")
    assert follow_job(node, HEAD, OTHER, LogFollower(lambda _: None)).state is JobState.SUCCEEDED
    assert end_job(node, HEAD, JOB)


def test_ctrl_c_while_a_job_is_started_says_that_it_may_run(node):
    node.trouble = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt, match=f"job {JOB} may run .* `clusterctl jobs demo`"):
        start_job(node, HEAD, plan(node.home, "true"), "demo")


def access_to(node):
    cluster = SimpleNamespace(name="demo", nodes=())
    targets = {"head": HEAD, "head_name": HEAD.host, "all_targets": (HEAD,)}
    folder = ClusterFolder(node.home / "demo")
    return SimpleNamespace(connections=node, cluster=cluster, folder=folder, **targets)


def test_the_log_is_brought_also_if_what_the_job_wrote_cannot_be(node, tmp_path, monkeypatch):
    def fail(*_):
        raise CommandFailed("demo-0", "no space")

    start_job(node, HEAD, plan(node.home, "echo said"), "demo")
    follow_job(node, HEAD, JOB, LogFollower(lambda _: None))
    found = OutputFiles(JOB, "/home/ubuntu/out", FILES, 1, 1, "d", ("a",))
    monkeypatch.setattr(fetching, "_outputs", lambda *_: [Output(HEAD, "out", found)])
    monkeypatch.setattr(fetching, "_copy_part", fail)
    access = access_to(node)
    access.folder.path.mkdir()
    note_copy(access.folder, FetchedCopy(str(tmp_path), ("d", "other")))
    with pytest.raises(CommandFailed, match="no space"):
        fetch(access, JOB, tmp_path)
    assert lost_copies(access.folder) == {"d": str(tmp_path)}, "only a part of it may be there"
    assert (tmp_path / "log").read_text() == "said\n"
    assert not (tmp_path / "record.json").exists(), "it says that all is here"


@pytest.mark.parametrize("begins", ["before", "meanwhile"])
def test_what_a_later_training_writes_into_the_log_folder_is_not_brought_as_this_jobs(
    node, tmp_path, monkeypatch, begins
):
    start_job(node, HEAD, plan(node.home, "echo said"), "demo")
    follow_job(node, HEAD, JOB, LogFollower(lambda _: None))
    found = OutputFiles(JOB, "/run", CHECKPOINTS, 1, 1, "", ("model.ckpt-1.index",))
    owners, noted = ([OTHER] if begins == "before" else [JOB, OTHER]), []
    trees = ((OutputFolder(one, "/run", CHECKPOINTS),) for one in owners)
    monkeypatch.setattr(fetching, "_trees", lambda *_: next(trees))
    monkeypatch.setattr(fetching, "_call", lambda *_: (found,))
    monkeypatch.setattr(fetching, "_copy_part", lambda *_: None)
    monkeypatch.setattr(fetching, "_note", lambda *it: noted.extend(it[-1]))
    if begins == "before":
        got = fetch(access_to(node), JOB, tmp_path)
        assert (got.files, got.taken) == (0, {"/run": OTHER})
    else:
        with pytest.raises(ClusterctlError, match=f"job {OTHER} writes into /run: "):
            fetch(access_to(node), JOB, tmp_path)
    assert noted == [], "what came does not count as fetched"
    assert (tmp_path / "log").read_text() == "said\n"


def test_a_fetch_that_a_full_head_node_cannot_record_is_whole_all_the_same(
    node, tmp_path, monkeypatch
):
    start_job(node, HEAD, plan(node.home, "echo said"), "demo")
    follow_job(node, HEAD, JOB, LogFollower(lambda _: None))
    found = OutputFiles(JOB, "/out", FILES, 1, 1, "", ("a",))

    def refuse(access, target, function, request):
        raise CommandFailed("demo-0", "No space left on device")

    monkeypatch.setattr(fetching, "_outputs", lambda *_: [Output(HEAD, "out", found)])
    monkeypatch.setattr(fetching, "_copy_part", lambda *_: None)
    monkeypatch.setattr(fetching, "note_copy", lambda *_: None)
    monkeypatch.setattr(fetching, "_call", refuse)
    access = access_to(node)
    access.folder = None
    assert fetch(access, JOB, tmp_path).unrecorded == "No space left on device"
    assert (tmp_path / "record.json").exists()
    checkpoints = [Output(HEAD, "out", replace(found, kind=CHECKPOINTS))]
    monkeypatch.setattr(fetching, "_outputs", lambda *_: checkpoints)
    with pytest.raises(ClusterctlError, match="not all of job .* No space left") as caught:
        fetch(access, JOB, tmp_path)
    left = tmp_path / f".fetch-{JOB}-fetching"
    assert caught.value.hint.startswith("if `clusterctl jobs demo` has it, run it again")
    assert f"{left} has its record" in caught.value.hint
    assert (left / "record.json").exists()


def test_a_second_fetch_is_whole_only_at_its_end_and_names_what_is_no_longer_there(
    node, tmp_path, monkeypatch
):
    """Of the head node's working folder, too, whose files are next to those of the user."""
    start_job(node, HEAD, plan(node.home, "echo said"), "demo")
    follow_job(node, HEAD, JOB, LogFollower(lambda _: None))
    access, place, ends, sums = access_to(node), tmp_path / "run", [], []

    def bring(access, part, watch, checksum, verify):
        assert not (place / "record.json").exists(), "it says that all is here"
        sums.append(checksum)
        for path in part.here:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("brought")
        return ends.pop() if ends else None

    def fetch_files(*names):
        found = OutputFiles(JOB, "/code", FILES, len(names), 1, "", names)
        with monkeypatch.context() as patched:
            patched.setattr(fetching, "_outputs", lambda *_: [Output(HEAD, "", found)])
            patched.setattr(fetching, "_copy_part", bring)
            patched.setattr(fetching, "_note", lambda *_: "")
            return fetch(access, JOB, place).gone

    assert fetch_files("r0", "kept/0", "kept/1") == ()
    (place / "mine").write_text("of the user")
    ends.append(CommandFailed("demo-0", "cannot read u"))
    with pytest.raises(ClusterctlError, match="not all of job .* cannot read u"):
        fetch_files("r1", "kept/1", "u")
    assert not (place / "record.json").exists()
    # As if that had been killed: what it and the one before it have brought is still known.
    (place / "kept" / ".clusterctl-copy").mkdir()
    (place / "kept" / ".clusterctl-copy" / "lock").touch()  # the job did not write it
    assert fetch_files("kept/1", "u") == ("kept/0", "r0", "r1")
    assert json.loads((place / "record.json").read_text())["fetched"] == ["kept", "r0", "r1", "u"]
    assert not [*place.glob(".*")]
    (place / "r0").unlink()
    assert fetch_files("kept/1") == ("kept/0", "r1", "u")
    assert sums == [False, True, True, True], "a file that was written over may have its time"


def test_a_folder_with_a_part_of_another_job_is_refused(tmp_path):
    """As one is that holds all of it: a fetch that was interrupted leaves no record.json."""
    (tmp_path / f".fetch-{JOB}-fetching").mkdir()
    check_place(tmp_path, JOB)
    for other in ("", "20261121-154501-3f2b"):
        with pytest.raises(UsageError, match=f"holds a part of job {JOB}"):
            check_place(tmp_path, other)


def test_a_url_is_no_folder_to_fetch_into():
    with pytest.raises(UsageError, match="^gs:/bucket/x is a URL, not a folder here$"):
        check_place(Path("gs://bucket/x"), JOB)


def test_a_dangling_link_is_no_folder_to_fetch_into(node, tmp_path):
    (tmp_path / "dl").symlink_to("nowhere")
    for place in (tmp_path / "dl", tmp_path / "dl" / "below"):
        with pytest.raises(UsageError, match="cannot write to "):
            check_place(place, JOB)


@pytest.mark.parametrize("locks", usual(1, [True, False]))
def test_a_fetch_goes_on_after_one_that_was_killed_and_removes_what_that_left(
    node, tmp_path, monkeypatch, locks
):
    def refuse(*_):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    if not locks:  # as on NFS, where the other process may still be working
        monkeypatch.setattr(fcntl, "flock", refuse)
    start_job(node, HEAD, plan(node.home, "echo said"), "demo")
    follow_job(node, HEAD, JOB, LogFollower(lambda _: None))
    access = access_to(node)
    place = tmp_path / "run"
    (place / f".fetch-{JOB}-killed").mkdir(parents=True)
    (place / f".fetch-{JOB}-killed" / "log").write_text("sa")
    (place / "spec.json").write_text("{}")
    (place / ".fetch-mine").mkdir()
    access.folder.path.mkdir()
    fetch(access, JOB, place, scope=Scope.RECORD)
    assert not access.folder.fetched.exists(), "it brings nothing that `down` asks for"
    names = {"spec.json", "events.jsonl", "command", "log", "record.json", ".fetch-mine"}
    names |= set() if locks else {f".fetch-{JOB}-killed"}
    assert {path.name for path in place.iterdir()} == names
    assert (place / "log").read_text() == "said\n"
    record = json.loads((place / "record.json").read_text())
    assert (record["job_id"], record["state"]) == (JOB, "succeeded")


def test_a_fetch_goes_on_after_ctrl_c_while_it_moves_its_files(node, tmp_path, monkeypatch):
    start_job(node, HEAD, plan(node.home, "echo said"), "demo")
    follow_job(node, HEAD, JOB, LogFollower(lambda _: None))
    access = access_to(node)
    place, moved, move = tmp_path / "run", [], Path.replace

    def interrupted(path, there):
        moved.append(there)
        if len(moved) == 2:
            raise KeyboardInterrupt
        return move(path, there)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(access, JOB, place, scope=Scope.RECORD)
    assert not (place / "record.json").exists()
    fetch(access, JOB, place, scope=Scope.RECORD)
    names = {path.name for path in place.iterdir()}
    assert names == {"spec.json", "events.jsonl", "command", "log", "record.json"}
    assert moved[-1] == place / "record.json"


def test_traced_steps_are_brought_after_a_kill_and_what_that_left_is_removed(node, tmp_path):
    start_job(node, HEAD, plan(node.home, "true"), "demo", files={STEPS: "steps"})
    (Path(node.environ["PATH"]) / "gzip").symlink_to("/usr/bin/gzip")
    follow_job(node, HEAD, JOB, LogFollower(lambda _: None))
    access = access_to(node)
    place = tmp_path / "run"
    (place / f".fetch-{JOB}-killed").mkdir(parents=True)
    (place / f".fetch-{JOB}-killed" / "steps").write_text("st")
    job = find_job(node, HEAD, JOB)
    assert fetch_tuning(access, job, tmp_path / "a new" / "one").steps_file.exists()
    found = fetch_tuning(access, job, place)
    assert [*place.iterdir()] == [found.steps_file]
    assert found.steps_file.read_text() == "steps"


def test_a_greeting_is_no_part_of_logs_and_files(node, tmp_path):
    start_job(node, HEAD, plan(node.home, "echo out"), "demo", files={STEPS: "steps"})
    (Path(node.environ["PATH"]) / "gzip").symlink_to("/usr/bin/gzip")
    node.greeting = b"Welcome {\n"
    access = access_to(node)
    followed, read = [], []
    job = follow_job(node, HEAD, JOB, LogFollower(followed.append))
    logs.read_log(access, job, read.append)
    assert b"".join(followed) == b"".join(read) == b"out\n"
    fetch(access, JOB, tmp_path / "run", scope=Scope.RECORD)
    assert (tmp_path / "run" / "log").read_text() == "out\n"
    assert fetch_tuning(access, job, tmp_path).steps_file.read_text() == "steps"
    # One file that cannot be read does not hide another. A relative path of the user's counts from
    # the ranks' folder.
    code = node.home / ".clusterctl/code" / JOB
    code.mkdir(parents=True)
    (code / "it's.json").write_text("")
    header = "cycle_time_ms,tensor_fusion_threshold,score\n"
    (node.home / ".clusterctl/jobs" / JOB / AUTOTUNE).write_text(f"{header}5,4,3\n")
    named = replace(job, spec=replace(job.spec, variables={"HOROVOD_TIMELINE": "it's.json"}))
    found = fetch_tuning(access, named, tmp_path)
    assert (found.timeline, found.tuned.tried) == (None, 1)
    assert [one.check for one in found.unread] == ["tuning.timeline"]
    (node.home / ".clusterctl/jobs" / JOB / "log").unlink()
    with pytest.raises(CommandFailed, match="the log of job .* cannot be read: .*No such file"):
        logs.read_log(access, job, read.append)


@pytest.mark.parametrize(
    "trouble", [CommandFailed("demo-0", "no"), tarfile.ReadError("no"), OSError(errno.ENOSPC, "no")]
)
def test_a_fetch_that_fails_leaves_the_status_to_the_job(tmp_path, monkeypatch, capsys, trouble):
    def fail(*_):
        raise trouble

    job = job_record(JobState.FAILED, 3)
    monkeypatch.setattr(fetching, "find_job", lambda *_: job)
    monkeypatch.setattr(fetching, "_unpack", fail)
    cluster = SimpleNamespace(name="demo", nodes=())
    where = {"folder": ClusterFolder(tmp_path / "demo"), "cluster": cluster}
    access = SimpleNamespace(connections=None, head=HEAD, **where)
    assert print_end(access, job) == 3
    err = capsys.readouterr().err
    assert "warning: its logs could not be copied here: " in err
    assert (
        f"try again: clusterctl fetch demo {job.job_id} {tmp_path}/failed_jobs/{job.job_id}\n"
        in err
    )
    shutil.rmtree(tmp_path / "failed_jobs", ignore_errors=True)
    (tmp_path / "failed_jobs").touch()
    assert print_end(access, job) == 3
    assert (
        f"try again: clusterctl fetch demo {job.job_id} {job.job_id}\n" in capsys.readouterr().err
    )


def test_jobs_are_in_the_order_of_the_head_node(node):
    for job_id in (OTHER, JOB):  # the second one is submitted by a laptop whose clock is slow
        start_job(node, HEAD, plan(node.home, "true", job_id), "demo")
        follow_job(node, HEAD, job_id, LogFollower(lambda _: None))
    assert [job.job_id for job in list_jobs(node, HEAD)] == [OTHER, JOB]


IGNORED = """\
while read -r key value; do
    [ "$key" = SigIgn: ] && echo "ignored $value"
done </proc/$$/status
printf '%s\n' "$folder"
"""


def test_private_variables_are_in_the_environment_and_in_no_file(node):
    """This holds for any name: that of a variable of the script, of a shell's variable, or PATH."""
    value = 'it\'s "$HOME"\n`id`\\ é\udcff'
    names = (*("TOKEN", "folder", "line", "status", "ended"), *("PPID", "IFS", "PATH"))
    shows = f"import os; print([os.environb.get(name.encode()) for name in {names}])"
    job = replace(
        plan(node.home, ""),
        argv=(sys.executable, "-ISc", shows),
        evaluation=("/bin/sh", "-c", IGNORED),
        variables=tuple(Variable(name, value + name, private=True) for name in names),
    )
    start_job(node, HEAD, job, "demo")
    chunks = []
    seen = follow_job(node, HEAD, JOB, LogFollower(chunks.append))
    assert (seen.exit_status, seen.spec.variables) == (0, dict.fromkeys(names)), chunks
    values = [(value + name).encode("utf-8", "surrogateescape") for name in names]
    log = b"".join(chunks)
    assert log.startswith(f"{values}\n".encode())
    ignored, _, in_evaluation = log.partition(b"\nignored ")[2].partition(b"\n")
    assert in_evaluation == values[1] + b"\n"
    assert not int(ignored, 16) & 1 << signal.SIGPIPE - 1, "mpirun would ignore it, and its ranks"
    kept = [path.read_bytes() for path in folder(node).iterdir() if path.name != "log"]
    assert not [text for text in kept if b"`id`" in text], "the log has it: the job printed it"


def test_a_start_without_an_answer_says_that_the_job_may_run(node):
    node.trouble = [CommandTimeout("demo-0", "did not end within 1 min")]
    with pytest.raises(ConnectionLost, match=f"job {JOB} may run there all the same") as raised:
        start_job(node, HEAD, plan(node.home, "true"), "demo")
    assert raised.value.hint == "see whether it does: clusterctl jobs demo"


@pytest.mark.parametrize("seed", usual(1, range(2)))
def test_connections_that_break_at_any_byte_lose_and_repeat_nothing(node, monkeypatch, seed):
    """The log has binary garbage and a line of a megabyte, and grows while it is followed."""
    timeouts = Timeouts(FakeClock(), reconnect_after_s=(0.0,) * 1000)
    rng = random.Random(seed)
    written = rng.randbytes(200_000) + b"x" * (1 << 20) + b"\n" + rng.randbytes(5000)
    start_job(node, HEAD, plan(node.home, "true"), "demo")
    eventually(lambda: not find_job(node, HEAD, JOB).is_active)
    log = folder(node) / "log"
    there = [0]
    whole = node.run

    def run(target, command, *, sink=None, **options):
        if sink is None:
            return whole(target, command, **options)
        there[0] = min(len(written), there[0] + rng.choice([1, 4096, 600_000]))
        log.write_bytes(written[: there[0]])
        out = []
        result = whole(target, command, sink=lambda stream, chunk: out.append((stream, chunk)))
        content = b"".join(chunk for stream, chunk in out if stream == "stdout")
        is_last = there[0] == len(written) and rng.random() < 0.5
        rest = content[: None if is_last else rng.randint(0, len(content))]
        while rest:
            size = rng.choice([1, 77, 32768, len(rest)])
            sink("stdout", rest[:size])
            rest = rest[size:]
        if not is_last:
            raise ConnectionLost("demo-0", "the connection was lost")
        return result

    monkeypatch.setattr(node, "run", run)
    chunks = []
    lost = []
    on_lost = lambda why, delay_s: lost.append(delay_s)  # noqa: E731
    follow_job(node, HEAD, JOB, LogFollower(chunks.append, on_lost), timeouts=timeouts)
    assert (b"".join(chunks), set(lost)) == (written, {0.0})


def test_a_head_node_that_stays_away_ends_the_following(node):
    clock = FakeClock()
    node.trouble = [HostUnreachable("demo-0", "did not answer in time")] * 6
    with pytest.raises(HostUnreachable):
        follow_job(node, HEAD, JOB, LogFollower(lambda _: None), timeouts=Timeouts(clock))
    assert (node.trouble, clock.waits) == ([], [1.0, 2.0, 4.0, 8.0, 16.0])


@pytest.mark.parametrize(
    ("is_gone", "now"), [(False, "its current state is unknown"), (True, "it ended with its node")]
)
def test_of_a_head_node_that_is_off_is_said_what_was_last_known_and_at_once(
    node, monkeypatch, is_gone, now
):
    start_job(node, HEAD, plan(node.home, "echo one; exec sleep 600"), "demo")
    whole = node.run

    def run(target, command, *, sink=None, **options):
        if not sink:
            return whole(target, command, **options)
        sink("stdout", b"one\n")
        off = ConnectionLost("demo-0", "its instance is stopped", "switch it on")
        off.is_off, off.is_gone = True, is_gone
        raise off

    monkeypatch.setattr(node, "run", run)
    with pytest.raises(ConnectionLost) as caught:
        follow_job(
            node,
            HEAD,
            JOB,
            LogFollower(lambda _: None, lambda *_: pytest.fail("it was tried again")),
        )
    known = rf"its instance is stopped; job {JOB} wrote its last line that came at [\d:]+ UTC; "
    assert re.fullmatch(known + now, caught.value.message)
    assert (caught.value.hint, caught.value.is_gone) == ("switch it on", is_gone)
    monkeypatch.undo()
    assert end_job(node, HEAD, JOB)


def test_ids_are_checked():
    assert check_job_id(new_job_id())
    for text in ("", "../x", "20261120-154501", f"{JOB}; rm"):
        with pytest.raises(UsageError):
            check_job_id(text)


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.LOST])
def test_what_a_job_has_cost(state):
    job = job_record(state, duration_s=60.0, hourly_usd=90.0)
    assert (round(job.duration_s), round(job.usd, 2)) == (60, 1.5)
    assert (job.report().ended_at is None) == (state is JobState.RUNNING)
