"""train, logs, cancel on two hosts of the lab: real SSH, real mpirun, real Horovod."""

from __future__ import annotations

import gzip
import json
import os
import signal
import time
from pathlib import Path

import pytest

from clusterctl.jobs.plan import JOB_ID
from tests.pair import eventually

pytestmark = [pytest.mark.lab, pytest.mark.train]

SMALL = ("-m", "resnet18", "--image_size", "32", "-b", "2", "--num_batches", "2")
STAY = """\
import os, sys, time
sys.stderr.write("rank " + os.environ["OMPI_COMM_WORLD_RANK"] + " is here\\n")
while not os.path.exists("/data/go"):
    time.sleep(0.1)
sys.stderr.write("rank " + os.environ["OMPI_COMM_WORLD_RANK"] + " goes\\n")
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


@pytest.fixture
def quiet(pair):
    """The cluster with nothing running and no jobs kept."""
    for node in (0, 1):
        pair.on(node, "rm -rf /data/go ~/.clusterctl/jobs/*")
    pair.put("stay.py", STAY)
    yield pair
    pair.ctl("cancel")
    pair.ctl("kill")
    pair.ctl("clean-logs", "--jobs", "--force", "--yes")


def jobs(pair):
    status, out, err = pair.ctl("jobs", "--json")
    assert status == 0, err
    return json.loads(out)


def test_synthetic_training(quiet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    real = "examples/horovod/tensorflow/imagenet_resnet"
    quiet.on(0, f"mkdir -p {real} && touch {real}/model.ckpt-40.index {real}/hvd_train.log")
    steps = ("--num_batches", "3", "--display_every", "1")
    options = ("2", "--synthetic", "--verbose", "--trace-steps", "1:3")
    status, out, err = quiet.ctl("train", *options, "--", *SMALL, *steps)
    assert status == 0, err
    assert "Horovod size: 2\n" in out
    assert "  Step Epoch Speed   Loss  FinLoss   LR\n" in out
    assert "Finished in " in out
    [job] = jobs(quiet)
    assert (job["state"], job["exit_status"], job["gpus"], job["preset"]) == (
        "succeeded",
        0,
        2,
        "cpu",
    )
    short = "2 ranks on pair-[0-1]: train_imagenet_resnet_hvd.py on synthetic data (preset cpu)"
    assert err.splitlines()[-5:-3] == [short, job["line"]], "what runs is printed first"
    assert JOB_ID.fullmatch(job["id"])
    assert f"job {job['id']} succeeded after " in err
    assert quiet.ctl("logs")[1] == out
    assert f"{job['id']}  succeeded  0     2     " in quiet.ctl("jobs")[1]
    # A smoke test leaves the checkpoints of a real run alone, and the results are its own.
    assert quiet.on(0, f"ls {real}") == "hvd_train.log\nmodel.ckpt-40.index\n"
    status, _, err = quiet.ctl("results")
    assert (status, "pair-0:imagenet_resnet_synthetic/hvd_train.log" in err) == (0, True), err
    # The steps that were asked for are traced, and the rows are kept with their times.
    with gzip.open(f"pair-{job['id']}-trace-steps.json.gz") as file:
        names = [event["name"] for event in json.load(file)["traceEvents"]]
    assert [name for name in names if name.startswith("step ")] == ["step 1", "step 2"]
    assert any("Conv2D" in name for name in names)
    assert quiet.ctl("fetch", job["id"], "run")[0] == 0
    for ending in ("json.gz", "xplane.pb"):
        assert Path("run", f"trace-steps-1-3.{ending}").stat().st_size
    pushed = ("CloudWatch Runs: 12 values of 4 metrics\n", "0 metrics; 12 were sent before\n")
    for told in pushed:
        status, out, err = quiet.ctl("results", job["id"], "--json", "--cloudwatch", "Runs")
        assert (status, told in err) == (0, True), err
    assert all(row["time"] for row in json.loads(out)["runs"][0]["rows"])


def test_as_the_tutorial_types_it(quiet):
    folder = "cd ~/examples/horovod/tensorflow"
    out = quiet.on(0, f"{folder} && ./train_synthetic.sh 2 {' '.join(SMALL)} 2>&1")
    first = out.splitlines()[0]
    assert first.startswith("+ /opt/clusterctl/training/bin/mpirun -np 2 --hostfile hosts ")
    assert "Horovod size: 2" in out
    assert "Finished in" in out
    usage = quiet.on(0, f"{folder} && ./train_synthetic.sh; echo $?")
    assert usage == "Usage: ./train_synthetic.sh <num_gpus>\n1\n"


def test_the_jobs_exit_status_is_trains(quiet):
    quiet.on(0, "touch /data/go")
    status, out, err = quiet.ctl("train", "1", "--script", "~/stay.py", "--", "7")
    assert status == 7
    assert "rank 0 goes" in out
    assert err.startswith("1 rank on pair-0: /home/ubuntu/stay.py (preset cpu)\njob ")
    assert "failed with exit status 7" in err


def of_ranks(out):
    """What the ranks wrote: Open MPI may warn that it lost a race for a process group, which harms
    nothing."""
    lines = out.splitlines(keepends=True)
    return "".join(line for line in lines if "plm:ssh: Warning: setpgid" not in line)


def test_a_program_of_here_is_shipped_and_stays_what_it_was(quiet, tmp_path):
    """A job started later, with another version of what both import, changes nothing for it."""
    source = "import os, lib, time\nwhile not os.path.exists('/data/go'): time.sleep(0.1)\n"
    source += "import late\nprint(lib.WHO, late.WHO, open('note').read(), flush=True)\n"
    for name, text in {
        "main.py": source,
        "note": "n",
        "lib.py": "WHO = 1",
        "late.py": "WHO = 1",
    }.items():
        (tmp_path / name).write_text(text)
    run = ("train", "2", "--script", os.path.relpath(tmp_path / "main.py"))
    first = json.loads(quiet.ctl(*run, "--detach", "--json")[1])
    for name in ("lib.py", "late.py"):
        (tmp_path / name).write_text("WHO = 2")
    for node in (0, 1):
        quiet.on(node, "touch /data/go")
    status, out, err = quiet.ctl(*run, "--force")
    assert (status, of_ranks(out)) == (0, 2 * "2 2 n\n"), err
    assert "2 ranks on pair-[0-1]: main.py and 3 other files from here (1" in err
    eventually(lambda: {job["state"] for job in jobs(quiet)} == {"succeeded"}, "the first")
    assert of_ranks(quiet.ctl("logs", "--job", first["id"])[1]) == 2 * "1 1 n\n"
    assert quiet.ctl("clean-logs", "--jobs", "--yes")[0] == 0
    for node in (0, 1):
        assert quiet.on(node, "ls .clusterctl/code") == ""


def test_the_network_that_nccl_takes_is_told(quiet):
    """The log is a true one of NCCL's, of a machine without EFA: here is no GPU."""
    log = Path(__file__).parents[1] / "jobs" / "samples" / "nccl-no-plugin-2.21.txt"
    quiet.put("says.py", f"print({log.read_text()!r}, end='')\n")
    status, out, err = quiet.ctl("train", "1", "--preset", "gpu", "--script", "~/says.py")
    assert (status, of_ranks(out)) == (0, log.read_text()), err
    assert "info: NCCL uses TCP sockets between nodes [nccl.network]" in err.splitlines()


def test_the_line_is_the_same_dry_and_wet(quiet):
    status, dry, _ = quiet.ctl("train", "2", "--synthetic", "--dry-run", "--json")
    assert status == 0
    assert jobs(quiet) == []
    quiet.on(0, "touch /data/go")
    wet = json.loads(quiet.ctl("train", "1", "--detach", "--synthetic", "--json")[1])
    same = json.loads(dry)["line"].replace("-np 2", "-np 1")
    assert JOB_ID.sub("ID", same) == JOB_ID.sub("ID", wet["line"])


KNOBS = """\
import tensorflow as tf, horovod.tensorflow as hvd
hvd.init()
for step in range(40):
    for number, size in enumerate((100, 50_000, 500_000)):
        hvd.allreduce(tf.ones([size]), name=f"t{number}")
"""


def test_the_timeline_and_the_autotuner_of_four_ranks_are_fetched(quiet, tmp_path, monkeypatch):
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "steps.py").write_text(KNOBS)
    hosts = Path(quiet.lab.home, "pair", "hosts")
    kept = hosts.read_text()
    short = [("WARMUP_SAMPLES", 1), ("STEPS_PER_SAMPLE", 1), ("BAYES_OPT_MAX_SAMPLES", 2)]
    faster = [word for name, n in short for word in ("-x", f"HOROVOD_AUTOTUNE_{name}={n}")]
    monkeypatch.chdir(tmp_path)
    try:
        hosts.write_text(kept.replace("slots=1", "slots=2"))
        knobs = ("--timeline", "--autotune", "--cycle-time", "2ms", *faster)
        status, out, err = quiet.ctl("train", "4", *knobs, "--script", "steps/steps.py")
    finally:
        hosts.write_text(kept)
    assert (status, "for the next run: --fusion-threshold " in out) == (0, True), err
    assert " --cycle-time 2ms " in out, "what is given is not tuned"
    assert "open it in https://ui.perfetto.dev" in err

    said = json.loads(quiet.ctl("tuning", "--json")[1])
    trace = json.loads(Path(said["files"][0]).read_text())
    assert {one["name"] for one in trace if one.get("ph") == "X"} == {"0", "1", "2", "3"}
    # Of the last step Horovod may not write the end before the program has ended.
    rows = {one["below"]: one["tensors"] in (39, 40) for one in said["timeline"]["sizes"]}
    assert rows == {1 << 10: True, 1 << 20: True, 1 << 23: True}
    phases = said["timeline"]["phases"]
    assert min(phases["negotiate"], phases["allreduce"]) > 0
    assert max(phases.values()) < said["timeline"]["span_s"]


# Debian's PyTorch, 1.13 on Python 3.11, takes its own defaults for these as no value.
TORCHRUN = ("--launcher", "torchrun", "-x", "PET_REDIRECTS=9:0", "-x", "PET_TEE=9:0")


def test_pytorchs_resnet_trains_and_its_rows_are_read(quiet):
    run = (*TORCHRUN, "--script", "~/examples/horovod/pytorch/resnet50_ddp.py")
    small = ("-m", "resnet18", "-b", "2", "--image_size", "32", "--num_batches", "3")
    status, out, err = quiet.ctl("train", "2", *run, "--", *small, "--log_dir", "/tmp/ddp")
    assert (status, "2 ranks, 4 images a step" in out) == (0, True), (out, err)
    found = json.loads(quiet.ctl("results", "--json")[1])["runs"]
    assert [row["step"] for row in found[0]["rows"]] == [0, 1, 2]
    kept = [json.loads(line) for line in quiet.on(0, "cat /tmp/ddp/metrics.jsonl").splitlines()]
    assert [row["loss"] for row in kept] == pytest.approx(
        [row["loss"] for row in found[0]["rows"]], abs=1e-3
    )
    assert kept[0]["loss"] > 0, "rank 0 is on the head node"


# A rank of the second node fails; those of the first do not listen to TERM.
UNEVEN = """\
import os, signal, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() < 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("rank", dist.get_rank(), "is here", flush=True)
dist.barrier()
if sys.argv[1:] == ["fail"] and dist.get_rank() == 3:
    sys.exit(5)
while True:
    time.sleep(0.2)
    dist.barrier()
"""


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_torchruns_end_together_and_leave_nothing(quiet, tmp_path, end):
    hosts = Path(quiet.lab.home, "pair", "hosts")
    kept = hosts.read_text()
    try:
        hosts.write_text(kept.replace("slots=1", "slots=2"))
        (tmp_path / "ddp.py").write_text(UNEVEN)
        program = ("--script", os.path.relpath(tmp_path / "ddp.py"))
        status, _, err = quiet.ctl("train", "4", "--detach", *TORCHRUN, *program, "--", end)
        assert status == 0, err
        eventually(lambda: quiet.ctl("logs")[1].count("is here") == 4, "four ranks")
        said = [quiet.ctl("logs", "--rank", str(rank))[1] for rank in range(4)]
        assert [text.count(f"rank {rank} is here\n") for rank, text in enumerate(said)] == [1] * 4
        assert [text.count("is here") for text in said] == [1] * 4
        if end == "cancel":
            assert quiet.ctl("cancel")[0] == 0
        else:
            eventually(lambda: jobs(quiet)[0]["state"] == "failed", "its end")
    finally:
        hosts.write_text(kept)
    for node in (0, 1):
        assert quiet.on(node, "pgrep -f 'ddp[.]py|prte[d]|prteru[n]' || echo none") == "none\n"


def test_ctrl_c_leaves_the_job_running(quiet):
    process = quiet.start("train", "2", "--script", "~/stay.py")
    # mpirun may warn of setpgid first: the parent and the child race for it.
    for rank in (0, 1):
        eventually(lambda: "is here" in process.stdout.readline(), f"rank {rank}")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "clusterctl logs pair -f" in err
    assert "clusterctl cancel pair" in err
    assert [job["state"] for job in jobs(quiet)] == ["running"]

    status, _, err = quiet.ctl("train", "1", "--synthetic")
    assert status == 1
    assert "is running on pair" in err
    assert "--force" in err

    follower = quiet.start("logs", "-f")
    eventually(lambda: "is here" in follower.stdout.readline(), "the log")
    quiet.on(0, "touch /data/go")
    quiet.on(1, "touch /data/go")
    out, err = follower.communicate(timeout=240)
    assert follower.returncode == 0, err
    assert "rank 0 goes" in out
    assert [job["state"] for job in jobs(quiet)] == ["succeeded"]


def test_a_lost_connection_is_taken_up_again(quiet):
    process = quiet.start("train", "1", "--script", "~/stay.py")
    eventually(lambda: process.stdout.readline() == "rank 0 is here\n", "rank 0")
    end_sessions = "sleep 0.3; pkill -f ^sshd:.ubuntu"
    quiet.on(0, f"setsid sudo -n sh -c {json.dumps(end_sessions)} </dev/null >/dev/null 2>&1 &")
    line = process.stderr.readline()
    while "the connection was lost" not in line or "Trying again" not in line:
        assert line, "the loss went unnoticed"
        line = process.stderr.readline()
    quiet.on(0, "touch /data/go")
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (0, "rank 0 goes\n"), err


def test_cancel_leaves_nothing_on_any_node(quiet):
    started = json.loads(quiet.ctl("train", "2", "--detach", "--json", "--script", "~/stay.py")[1])
    eventually(lambda: "rank 1 is here" in quiet.ctl("logs")[1], "both ranks")
    status, out, err = quiet.ctl("cancel")
    assert status == 0, err
    assert f"job {started['id']} cancelled after " in out, "its mpirun's own status says nothing"
    for node in (0, 1):
        assert quiet.on(node, "pgrep -f 'stay[.]py|prte[d]|prteru[n]' || echo none") == "none\n"
    assert quiet.ctl("cancel")[:2] == (0, "nothing is running\n")
    assert [job["state"] for job in jobs(quiet)] == ["cancelled"]
    status, out, _ = quiet.ctl("cancel", "--job", started["id"])
    assert (status, "cancelled" in out) == (0, True)


def test_what_was_typed_by_hand_is_found_and_ended(quiet):
    by_hand = f"setsid ./train_synthetic.sh 2 {' '.join(SMALL[:-1])} 1000000"
    quiet.on(0, f"cd examples/horovod/tensorflow; {by_hand} </dev/null >/dev/null 2>&1 &")
    eventually(lambda: "python" in quiet.on(1, "ps -o comm= -u $(id -u)"), "the rank of node 1")
    status, out, err = quiet.ctl("cancel", "--json")
    ended = {(one["host"], one["role"]) for one in json.loads(out)["processes"]}
    assert {("pair-0", "launcher"), ("pair-0", "rank"), ("pair-1", "rank")} <= ended, out
    assert (status, err) == (0, "")
    assert quiet.ctl("cancel")[:2] == (0, "nothing is running\n")


def test_what_a_killed_daemon_left_is_found_and_keeps_a_job_from_starting(quiet):
    run = ("train", "1", "--script", "~/stay.py")
    quiet.ctl("train", "2", "--detach", *run[2:])
    eventually(lambda: "rank 1 is here" in quiet.ctl("logs")[1], "both ranks")
    # Else it would end what the job left.
    quiet.on(0, "rm .clusterctl/jobs/*/after.py")
    quiet.on(1, "pkill -9 -u $(id -u) -f '[p]rted'")
    eventually(lambda: jobs(quiet)[0]["state"] == "failed", "mpirun to notice")
    pid = quiet.on(1, "pgrep -f 'stay[.]py'").strip()
    own = quiet.on(
        1, "exec setsid python3 -c 'import time; time.sleep(600)' >/dev/null 2>&1 & echo $!"
    )

    quiet.on(0, "touch /data/go")
    status, _, err = quiet.ctl(*run)
    said = f"pair-1: process {pid} of an earlier job is still there: "
    assert (status, said in err, "clusterctl kill pair" in err) == (1, True, True), err
    assert "/stay.py" in err.partition(said)[2].partition("\n")[0]
    status, _, err = quiet.ctl(*run, "--force")
    assert (status, f"warning: {said}" in err) == (0, True), err

    with quiet.fault(1, "cut", "mend"):
        for verb, said in (("cancel", "nothing is running"), ("kill", "nothing to end")):
            status, out, err = quiet.ctl(verb)
            assert (status, out) == (255, f"{said} on pair-0\n")
            assert err.startswith("pair-1: ")
    status, out, err = quiet.ctl("kill")
    assert (status, f"pair-1  {pid} " in out, "none left" in out) == (0, True, True), (out, err)
    assert quiet.ctl(*run)[0] == 0
    assert quiet.on(1, f"kill {own}") == "", "a program of the user's own had stayed"


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("3", "--synthetic"), 2, "wanted 3 GPUs, there are 2\n  hint: add nodes: clusterctl up"),
        (("0", "--synthetic"), 2, "0 GPUs make no sense"),
        (("two",), 2, "'two' is not a valid integer"),
        (("2", "--data-dir", "~/none"), 1, "there is no training data in /home/ubuntu/none"),
        (("2", "--data-dir", "/d", "--synthetic"), 2, "--data-dir goes with no --synthetic"),
        (("2", "--epochs", "0"), 2, "0 is not in the range"),
        (("2", "--resume", "--clear"), 2, "--clear and --resume contradict each other"),
        (("2", "--resume", "--", "--clear_log"), 2, "--clear_log says the opposite"),
        (("2", "--synthetic", "--", "--batchsize", "64"), 1, "command line arg: --batchsize"),
        (("2", "--script", "none.py"), 2, "there is no such file here\n  hint: name a Python"),
    ],
)  # fmt: skip
def test_refused(pair, arguments, status, says):
    ended, _, err = pair.ctl("train", *arguments)
    assert ended == status
    assert says in err


def test_what_differs_between_nodes_is_said_at_once_and_nothing_starts(quiet):
    mpirun = "/opt/clusterctl/training/bin/mpirun"
    quiet.on(0, "mkdir small runs && echo x > small/train-00000-of-00001")
    quiet.on(0, "touch runs/model.ckpt-7.index && truncate -s 5M runs/model.ckpt-7.data")
    quiet.on(1, f"sudo -n mount --bind /dev/null {mpirun}")
    run = ("train", "2", "--data-dir", "~/small")
    trainers = ("--", "--log_dir", "/home/ubuntu/runs")
    try:
        status, out, err = quiet.ctl(*run, "--json", "--dry-run", *trainers)
        found = [(one["check"], one["host"]) for one in json.loads(out)["findings"]]
        assert found == [
            ("env.missing", "pair-1"),
            ("data.missing", "pair-1"),
            ("data.cut_short", "pair-0"),
            ("data.validation", "pair-0"),
            ("data.few_shards", None),
            ("log.unfinished", "pair-0"),
        ]
        assert status == 1
        assert "runs holds a run that got to step 7 of 40 (1 checkpoint, 5.0 MiB)" in err
        assert "error: nothing is trained: 6 things to mend first" in err
        status, _, err = quiet.ctl(*run, "--force", *trainers)
        assert (status, "nothing is trained: 1 thing to mend" in err) == (1, True)
        assert jobs(quiet) == []
    finally:
        quiet.on(1, f"sudo -n umount {mpirun}")
        quiet.on(0, "rm -r small runs")


def test_a_program_is_looked_for_on_all_nodes_at_once(quiet):
    run = ("train", "2", "--dry-run", "--script")
    quiet.on(0, "touch only-here.py")
    try:
        status, _, err = quiet.ctl(*run, "~/only-here.py")
        assert status == 1
        text = "cannot run /home/ubuntu/only-here.py: No such file or directory"
        assert f"pair-1: {text}" in err
        status, _, err = quiet.ctl("train", "1", *run[2:], "~/only-here.py")
        assert status == 0, err
    finally:
        quiet.on(0, "rm only-here.py")
    # Of the shipped files none has to be there yet.
    assert quiet.ctl(*run, "~/examples/horovod/mnist/mnist_hvd.py")[0] == 0
    for option, path in (("--script", "none.py"), ("--data-dir", "small")):
        status, _, err = quiet.ctl("train", "2", "--dry-run", option, f"{Path.home()}/{path}")
        assert (
            status,
            f"quote the ~, so that the nodes' is meant: {option} '~/{path}'" in err,
        ) == (
            1,
            True,
        ), err


def test_the_lab_shows_the_line_for_its_gpus_and_says_that_it_has_few_processors(pair):
    """p3.2xlarge: a V100 of 16 GB, and with more slots, more ranks than this machine can run."""
    hosts = Path(pair.lab.home, "pair", "hosts")
    kept = hosts.read_text()
    cpus = len(os.sched_getaffinity(0))
    run = ("--synthetic", "--preset", "gpu", "--dry-run", "--json")
    try:
        hosts.write_text(kept.replace("slots=1", f"slots={cpus}"))
        status, out, err = pair.ctl("train", str(2 * cpus), *run)
    finally:
        hosts.write_text(kept)
    assert status == 0, err
    [finding] = json.loads(out)["findings"]
    assert (finding["check"], finding["severity"]) == ("cpus.crowded", "warning")
    assert finding["message"].startswith(f"{2 * cpus} ranks share {cpus} processor")
    assert " -b 256 " in json.loads(out)["line"]


def test_an_unknown_job(pair):
    assert pair.ctl("logs", "--job", "yesterday's")[0] == 2
    status, _, err = pair.ctl("logs", "--job", "20010101-000000-abcd")
    assert (status, "there is no job 20010101-000000-abcd" in err) == (2, True)


def test_a_users_changes_to_the_trainer_stay(quiet):
    trainer = "examples/horovod/tensorflow/train_imagenet_resnet_hvd.py"
    quiet.on(0, f"cp {trainer} kept && echo '# mine' >> {trainer}")
    try:
        quiet.on(0, "touch /data/go")
        status, _, err = quiet.ctl("train", "1", "--script", "~/stay.py")
        assert status == 0, err
        assert f"note: ~/{trainer} was changed on pair-0 and stays as it is there" in err
        assert quiet.on(0, f"tail -n 1 {trainer}") == "# mine\n"
    finally:
        quiet.on(0, f"mv kept {trainer}")


def test_a_cut_link_ends_the_job_in_seconds_and_kill_finds_what_is_left(quiet):
    # The default's minute is long for a test.
    keep_alives = "--prtemca plm_ssh_args '-o ServerAliveInterval=2 -o ServerAliveCountMax=3'"
    quiet.ctl("train", "2", "--detach", "--script", "~/stay.py", "--mpi-arg", keep_alives)
    eventually(lambda: "rank 1 is here" in quiet.ctl("logs")[1], "both ranks")
    with quiet.cut_off(1):
        eventually(lambda: jobs(quiet)[0]["state"] == "failed", "mpirun to notice")
    # The rank there was alone: nobody could reach it to end it.
    status, out, err = quiet.ctl("kill")
    assert status == 0, err
    assert "none left" in out or out == "nothing to end\n"


@pytest.mark.parametrize("killed", ["prted", "ssh"])
def test_a_job_that_lost_a_node_has_failed(quiet, killed):
    """mpirun's own exit status is 0 then, as a rule."""
    quiet.ctl("train", "2", "--detach", "--script", "~/stay.py")
    eventually(lambda: "rank 1 is here" in quiet.ctl("logs")[1], "both ranks")
    # The node's daemon, or mpirun's way to it; only what the job started.
    node, pattern = (1, "[p]rted") if killed == "prted" else (0, "ssh -x.*[P]RTE_PREFIX")
    quiet.on(node, f"pkill -9 -u $(id -u) -f '{pattern}'")
    eventually(lambda: jobs(quiet)[0]["state"] != "running", "mpirun to notice")
    assert (jobs(quiet)[0]["state"], jobs(quiet)[0]["exit_status"]) == ("failed", 255)
    assert quiet.ctl("kill")[0] == 0


def test_ten_seconds_of_silence_do_not_end_a_job(quiet):
    quiet.ctl("train", "2", "--detach", "--script", "~/stay.py")
    eventually(lambda: "rank 1 is here" in quiet.ctl("logs")[1], "both ranks")
    with quiet.fault(1, "freeze", "thaw"):
        time.sleep(10)
    for node in (0, 1):
        quiet.on(node, "touch /data/go")
    status, out, err = quiet.ctl("logs", "-f")
    assert (status, "rank 1 goes" in out) == (0, True), err


@pytest.fixture
def jobs_on_data(quiet):
    """The folder of jobs on the head node's /data, which can be filled."""
    quiet.on(0, "mkdir -p .clusterctl/jobs && mv .clusterctl/jobs /data/")
    quiet.on(0, "ln -s /data/jobs .clusterctl/jobs")
    yield quiet
    quiet.ctl("cancel")
    quiet.on(0, "rm .clusterctl/jobs && mv /data/jobs .clusterctl/jobs")


def test_a_full_disk_hides_no_job_and_no_end(jobs_on_data):
    pair = jobs_on_data
    run = ("train", "1", "--detach", "--script", "~/stay.py")
    for cancelled, ends in (
        (False, [("failed", 7)]),
        (True, [("cancelled", 1), ("cancelled", 143)]),
    ):
        assert pair.ctl(*run, "--", "7")[0] == 0
        eventually(lambda: "rank 0 is here" in pair.ctl("logs")[1], "the rank")
        with pair.fault(0, "fill", "drain"):
            status, _, err = pair.ctl(*run, "--force")
            assert (status, "its disk is full" in err) == (1, True), err
            assert [job["state"] for job in jobs(pair)][-1] == "running"
            if cancelled:
                assert pair.ctl("cancel")[0] == 0
            else:
                pair.on(0, "touch /data/go")
            eventually(lambda: jobs(pair)[-1]["state"] != "running", "its end")
            last = jobs(pair)[-1]
            assert (last["state"], last["exit_status"]) in ends
        pair.on(0, "rm -f /data/go")
    assert len(jobs(pair)) == 2, "of the jobs that did not start nothing is left"


def test_a_job_is_ended_where_nothing_can_be_written(jobs_on_data):
    pair = jobs_on_data
    pair.ctl("train", "1", "--detach", "--script", "~/stay.py")
    eventually(lambda: "rank 0 is here" in pair.ctl("logs")[1], "the rank")
    with pair.fault(0, "readonly", "writable"):
        status, _, err = pair.ctl("cancel")
        assert (status, pair.on(0, "pgrep -f 'stay[.]py' || echo none")) == (0, "none\n"), err


MEET = """\
import os, sys
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
total = float(hvd.allreduce(tf.ones([1]), op=hvd.Sum)[0])
said = [os.environ.get(name) for name in ("V0", "V1", "V2", "V3", "V4", "HERE")]
sys.stdout.write(ascii((total, said)) + "\\n")
"""
HOSTILE = ["a  b=c;d", 'it\'s "q" \\\\', "two\nlines", "é☃", ""]


def test_bridges_do_not_lead_ranks_astray_and_all_ranks_have_the_variables(quiet, monkeypatch):
    """Docker's bridges have the same address on every host."""
    quiet.put("meet.py", MEET)
    monkeypatch.setenv("HERE", "from 'here'")
    given = [word for i, value in enumerate(HOSTILE) for word in ("-x", f"V{i}={value}")]
    bridge = "sudo -n ip link add br-0123 type bridge"
    address = "sudo -n ip addr add 172.18.0.1/16 dev br-0123 && sudo -n ip link set br-0123 up"
    try:
        for node in (0, 1):
            quiet.on(node, f"{bridge} && {address}")
        status, out, err = quiet.ctl("train", "2", "--script", "~/meet.py", *given, "-x", "HERE")
        assert status == 0, err
        assert out.splitlines()[-2:] == [ascii((2.0, [*HOSTILE, "from 'here'"]))] * 2
        [job] = jobs(quiet)
        assert job["variables"] == {**{f"V{i}": v for i, v in enumerate(HOSTILE)}, "HERE": None}
        assert "from 'here'" not in err
    finally:
        for node in (0, 1):
            quiet.on(node, "sudo -n ip link del br-0123")
