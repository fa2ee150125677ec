"""`train` on two hosts of the lab, with real SSH, mpirun, Horovod and torchrun."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
from pathlib import Path

import pytest
from PIL import Image

from clusterctl.jobs.plan import JOB_ID
from tests.examples.conftest import EXAMPLES
from tests.pair import eventually

pytestmark = [pytest.mark.lab, pytest.mark.train]

SMALL = ("-m", "resnet18", "--image_size", "32", "-b", "2", "--num_batches", "2")


@pytest.mark.all
def test_synthetic_training(quiet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    real = "examples/horovod/tensorflow/imagenet_resnet"
    quiet.on(0, f"mkdir -p {real} && touch {real}/model.ckpt-40.index {real}/hvd_train.log")
    steps = ("--num_batches", "3", "--display_every", "1")
    run = ("train", "2", "--synthetic", "--verbose", "--trace-steps", "1:3")
    status, dry, err = quiet.ctl(*run, "--dry-run", "--json", "--", *SMALL, *steps)
    assert (status, quiet.jobs()) == (0, []), err
    status, out, err = quiet.ctl(*run, "--", *SMALL, *steps)
    assert status == 0, err
    assert "Horovod size: 2\n" in out
    assert "  Step Epoch Speed   Loss  FinLoss   LR\n" in out
    assert "Finished in " in out
    [job] = quiet.jobs()
    told = [job[name] for name in ("state", "exit_status", "gpus", "preset")]
    assert told == ["succeeded", 0, 2, "cpu"]
    assert JOB_ID.sub("ID", json.loads(dry)["line"]) == JOB_ID.sub("ID", job["line"])
    short = (
        "2 ranks on pair-[0-1]: train_imagenet_resnet_hvd.py on synthetic data (preset cpu, recipe "
        "tutorial)"
    )
    assert err.splitlines()[-5:-3] == [short, job["line"]], "what runs is printed first"
    assert JOB_ID.fullmatch(job["job_id"])
    assert f"job {job['job_id']} succeeded after " in err
    assert quiet.ctl("logs")[1] == out
    assert f"{job['job_id']}  succeeded  0     2     " in quiet.ctl("jobs")[1]
    # A synthetic training leaves the checkpoints of a real run alone, and has its own results.
    assert quiet.on(0, f"ls {real}") == "hvd_train.log\nmodel.ckpt-40.index\n"
    quiet.ends(0, "pair-0:imagenet_resnet_synthetic/hvd_train.log", "results")
    # The requested steps are traced, and the rows are stored with their times.
    with gzip.open(f"pair-{job['job_id']}-trace-steps.json.gz") as file:
        names = [event["name"] for event in json.load(file)["traceEvents"]]
    assert [name for name in names if name.startswith("step ")] == ["step 1", "step 2"]
    assert any("Conv2D" in name for name in names)
    assert quiet.ctl("fetch", job["job_id"], "run")[0] == 0
    for ending in ("json.gz", "xplane.pb"):
        assert Path("run", f"trace-steps-1-3.{ending}").stat().st_size
    pushed = ("CloudWatch Runs: 12 values of 4 metrics\n", "0 metrics; 12 were sent before\n")
    for told in pushed:
        status, out, err = quiet.ctl("results", job["job_id"], "--json", "--cloudwatch", "Runs")
        assert (status, told in err) == (0, True), err
    assert all(row["time"] for row in json.loads(out)["runs"][0]["rows"])


def test_as_the_tutorial_types_it_and_cancel_finds_it(quiet):
    """tests/test_docs.py runs the real trainer in this way. Here, a fake one replaces it."""
    folder = "~/examples/horovod/tensorflow"
    trainer = f"{folder}/train_imagenet_resnet_hvd.py"
    try:
        for node in (0, 1):
            quiet.on(node, f"cp {trainer} kept && cp stay.py {trainer}")
        by_hand = "setsid ./train_synthetic.sh 2 --num_batches 9 >~/typed 2>&1 </dev/null"
        quiet.on(0, f"cd {folder}; {by_hand} &")
        eventually(lambda: quiet.on(0, "cat typed").count("is here") == 2, "the ranks")
        typed = quiet.on(0, "cat typed")
        assert typed.startswith("+ /opt/clusterctl/training/bin/mpirun -np 2 --hostfile hosts ")
        for how in ((), ("--queue",)):
            status, _, err = quiet.ctl("train", "1", "--script", "~/stay.py", *how)
            assert status == 1, err
            assert "is running on pair-0, and two would share its GPUs" in err
        status, out, err = quiet.ctl("cancel", "--json")
        ended = {(one["host"], one["role"]) for one in json.loads(out)["processes"]}
        # The end of one node's processes makes mpirun end the others, maybe before the check.
        assert {("pair-0", "launcher"), ("pair-1", "rank")} & ended, out
        assert (status, err) == (0, "")
        assert quiet.ctl("cancel")[:2] == (0, "nothing is running\n")
    finally:
        for node in (0, 1):
            quiet.on(node, f"mv kept {trainer}; rm -f typed")
    usage = quiet.on(0, f"cd {folder} && ./train_synthetic.sh; echo $?")
    assert usage == "Usage: ./train_synthetic.sh <num_gpus>\n1\n"


def test_the_jobs_exit_status_is_trains_and_a_users_changes_to_the_trainer_stay(quiet):
    trainer = "examples/horovod/tensorflow/train_imagenet_resnet_hvd.py"
    quiet.on(0, f"touch /data/go && cp {trainer} kept && echo '# mine' >> {trainer}")
    try:
        status, out, err = quiet.ctl("train", "1", "--script", "~/stay.py", "--", "7")
        assert (status, "rank 0 goes" in out) == (7, True), err
        assert f"note: ~/{trainer} was changed on pair-0 and stays as it is there" in err
        assert "1 rank on pair-0: /home/ubuntu/stay.py (preset cpu)\n" in err
        assert "failed with exit status 7" in err
        assert quiet.on(0, f"tail -n 1 {trainer}") == "# mine\n"
    finally:
        quiet.on(0, f"mv kept {trainer}")


def of_ranks(out):
    """Return the ranks' output without Open MPI's harmless warning about a race for a group."""
    lines = out.splitlines(keepends=True)
    return "".join(line for line in lines if "plm:ssh: Warning: setpgid" not in line)


def test_a_program_of_here_is_shipped_and_stays_what_it_was(quiet, tmp_path):
    """A later job with another version of a module that both import does not change it."""
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
    # Of a job that did not start nothing stays.
    quiet.on(
        0, "mkdir -p .clusterctl && mv .clusterctl/jobs .clusterctl/aside; : >.clusterctl/jobs"
    )
    quiet.ends(1, "File exists", *run)
    assert quiet.on_all("ls .clusterctl/code || :") == ["", ""]
    quiet.on(0, "cd .clusterctl; rm jobs; [ ! -e aside ] || mv aside jobs")
    first = json.loads(quiet.ctl(*run, "--detach", "--json")[1])
    for name in ("lib.py", "late.py"):
        (tmp_path / name).write_text("WHO = 2")
    # It runs in the user's own environment, which all nodes have.
    quiet.ctl("run", "touch /data/go; ln -sfn /opt/clusterctl/training ~/my-env")
    status, out, err = quiet.ctl(*run, "--force", "--env", "~/my-env/")
    assert (status, of_ranks(out)) == (0, 2 * "2 2 n\n"), err
    [second] = (one for one in quiet.jobs() if one["job_id"] != first["job_id"])
    assert second["line"].startswith("/home/ubuntu/my-env/bin/mpirun ")
    assert "2 ranks on pair-[0-1]: main.py and 3 other files from here (1" in err
    eventually(lambda: {job["state"] for job in quiet.jobs()} == {"succeeded"}, "the first")
    assert of_ranks(quiet.ctl("logs", first["job_id"])[1]) == 2 * "1 1 n\n"
    assert quiet.ctl("clean-logs", "--jobs", "--yes")[0] == 0
    for node in (0, 1):
        assert quiet.on(node, "ls .clusterctl/code") == ""


@pytest.mark.all
def test_the_network_that_nccl_takes_is_told(quiet):
    """The log is a real one of NCCL on a machine without EFA, since there is no GPU here."""
    log = Path(__file__).parents[1] / "jobs" / "samples" / "nccl-no-plugin-2.21.txt"
    quiet.put("says.py", f"print({log.read_text()!r}, end='')\n")
    status, out, err = quiet.ctl("train", "1", "--preset", "gpu", "--script", "~/says.py")
    assert (status, of_ranks(out)) == (0, log.read_text()), err
    assert "info: NCCL uses TCP sockets between nodes [nccl.network]" in err.splitlines()


KNOBS = """\
import os, sys
import tensorflow as tf, horovod.tensorflow as hvd
hvd.init()
for step in range(40):
    for number, size in enumerate((100, 50_000, 500_000)):
        total = hvd.allreduce(tf.ones([size]), name=f"t{number}", op=hvd.Sum)
said = [os.environ.get(name) for name in ("V0", "V1", "V2", "V3", "V4", "HERE")]
sys.stdout.write(ascii((float(total[0]), said)) + "\\n")
"""
HOSTILE = ["a  b=c;d", 'it\'s "q" \\\\', "two\nlines", "é☃", ""]


@pytest.fixture
def bridged(quiet):
    """Add Docker's bridges, which have the same address on every host."""
    bridge = "sudo -n ip link add br-0123 type bridge && sudo -n ip link set br-0123 up"
    for node in (0, 1):
        quiet.on(node, f"{bridge} && sudo -n ip addr add 172.18.0.1/16 dev br-0123")
    yield quiet
    for node in (0, 1):
        quiet.on(node, "sudo -n ip link del br-0123")


@pytest.mark.all
def test_ranks_meet_have_the_variables_and_leave_a_timeline_and_what_was_tuned(
    bridged, tmp_path, monkeypatch
):
    pair = bridged
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "steps.py").write_text(KNOBS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERE", "from 'here'")
    short = [("WARMUP_SAMPLES", 1), ("STEPS_PER_SAMPLE", 1), ("BAYES_OPT_MAX_SAMPLES", 2)]
    given = {f"V{i}": value for i, value in enumerate(HOSTILE)}
    given |= {f"HOROVOD_AUTOTUNE_{name}": str(n) for name, n in short}
    words = ["HERE", *("=".join(pair) for pair in given.items())]
    tuning = ["--timeline", "--autotune", "--cycle-time", "2ms"]
    tuning += [word for variable in words for word in ("-x", variable)]
    status, out, err = pair.ctl("train", "2", *tuning, "--script", "steps/steps.py")
    assert (status, "for the next run: --fusion-threshold " in out) == (0, True), err
    assert " --cycle-time 2ms " in out, "what is given is not tuned"
    assert "open it in https://ui.perfetto.dev" in err
    said = ascii((2.0, [*HOSTILE, "from 'here'"]))
    assert [line for line in out.splitlines() if line.startswith("(")] == [said] * 2
    assert pair.jobs()[0]["variables"] == {**given, "HERE": None}
    assert "from 'here'" not in err

    said = json.loads(pair.ctl("tuning", "--json")[1])
    trace = json.loads(Path(said["files"][0]).read_text())
    assert {one["name"] for one in trace if one.get("ph") == "X"} == {"0", "1"}
    # Horovod may not write the end of the last step before the program ends.
    rows = {one["below"]: one["tensors"] in (39, 40) for one in said["timeline"]["sizes"]}
    assert rows == {1 << 10: True, 1 << 20: True, 1 << 23: True}
    phases = said["timeline"]["phases"]
    assert min(phases["negotiate"], phases["allreduce"]) > 0
    assert max(phases.values()) < said["timeline"]["span_s"]


TORCHRUN = ("--launcher", "torchrun")
RESNET = ("--script", "~/examples/horovod/pytorch/resnet50_ddp.py")
TINY = ("-m", "resnet18", "-b", "2", "--image_size", "32")


@pytest.fixture
def torch_env(quiet):
    """Return options for an environment of both nodes with PyTorch and Pillow, without mpirun."""
    packages = "/opt/clusterctl/training/lib/python3*/site-packages"
    for node in (0, 1):
        quiet.on(
            node,
            "rm -rf torch && /usr/bin/python3 -m venv --system-site-packages --without-pip torch "
            f"&& ln -s {packages}/PIL {packages}/pillow.libs torch/lib/python3*/site-packages/",
        )
    return ("--env", "~/torch", "-x", "OMP_NUM_THREADS=1")


@pytest.mark.all
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_pytorchs_resnet_trains_and_its_rows_are_read(quiet, torch_env, launcher):
    run = (*(TORCHRUN if launcher == "torchrun" else torch_env), *RESNET, "--", *TINY)
    quiet.on(0, "rm -rf /tmp/ddp")
    status, out, err = quiet.ctl("train", "2", *run, "--num_batches", "3", "--log_dir", "/tmp/ddp")
    assert (status, "4 images a step" in out) == (0, True), (out, err)
    found = json.loads(quiet.ctl("results", "--json")[1])["runs"]
    assert [row["step"] for row in found[0]["rows"]] == [0, 1, 2]
    assert found[0]["facts"]["gpus"] == 2
    kept = [json.loads(line) for line in quiet.on(0, "cat /tmp/ddp/metrics.jsonl").splitlines()]
    kept = [line for line in kept if line["kind"] == "train"]
    assert [row["loss"] for row in kept] == pytest.approx(
        [row["loss"] for row in found[0]["rows"]], abs=1e-3
    )
    assert kept[0]["loss"] > 0, "rank 0 is on the head node"


def field(number, content):
    """Return a delimited field of a protocol buffer."""
    length, size = b"", len(content)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def records(images):
    """Return a TFRecord file of JPEGs in one colour, with the labels 1, 2 and so on."""
    content = io.BytesIO()
    for number in range(images):
        jpeg = io.BytesIO()
        Image.new("RGB", (40, 30), (9 * number, 99, 9)).save(jpeg, "JPEG")
        encoded = field(1, field(1, jpeg.getvalue()))
        label = field(3, field(1, bytes([number + 1])))
        named = {b"image/encoded": encoded, b"image/class/label": label}
        entries = (field(1, field(1, name) + field(2, value)) for name, value in named.items())
        data = field(1, b"".join(entries))
        content.write(struct.pack("<Q", len(data)) + bytes(4) + data + bytes(4))
    return content.getvalue()


@pytest.mark.all
def test_pytorch_trains_on_files_of_all_nodes_and_ends_on_all(quiet, torch_env):
    for node in (0, 1):
        quiet.on(
            node, "rm -rf images && mkdir images && cat >images/train-00000-of-00001", records(11)
        )
    run = ("train", "2", *torch_env, *RESNET, "--", *TINY, "--data_dir", "/home/ubuntu/images")
    quiet.on(0, "rm -rf /tmp/ddp")
    status, out, err = quiet.ctl(*run, "--num_epochs", "1", "--log_dir", "/tmp/ddp")
    assert (status, "Found 11 training samples" in out) == (0, True), (out, err)
    status, out, err = quiet.ctl(*run, "--num_epochs", "2", "--log_dir", "/tmp/ddp")
    assert (status, "2 of 4 steps are done" in out) == (0, True), (out, err)
    quiet.on(1, "cat >images/train-00000-of-00001", records(10))
    status, out, err = quiet.ctl(*run, "--num_epochs", "3", "--log_dir", "/tmp/ddp")
    assert (status, "the nodes' copies of /home/ubuntu/images differ" in out + err) == (1, True)
    # A record that one rank alone cannot read: all end.
    bad = records(11).replace(b"image/encoded", b"image/decoded")
    quiet.on(0, "cat >images/train-00000-of-00001", bad)
    quiet.on(1, "cat >images/train-00000-of-00001", records(11))
    status, out, err = quiet.ctl(*run, "--num_epochs", "4", "--log_dir", "/tmp/ddp")
    assert status != 0
    assert "a record without image/encoded and image/class/label" in out + err
    for node in (0, 1):
        assert quiet.on(node, "pgrep -f 'resnet50_dd[p]' || echo none") == "none\n"


MEET = """\
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
print("meets", *(os.environ[name] for name in names), flush=True)
while not os.path.exists("/data/go"):
    time.sleep(0.1)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.all
def test_two_pytorch_jobs_at_once_meet_on_ports_of_their_own(quiet, torch_env, tmp_path):
    (tmp_path / "meet.py").write_text(MEET)
    program = ("--detach", *torch_env, "--script", os.path.relpath(tmp_path / "meet.py"))
    assert quiet.ctl("train", "2", *program)[0] == 0
    eventually(lambda: quiet.ctl("logs")[1].count("meets ") == 2, "the first")
    first = quiet.ctl("logs")[1]
    assert quiet.ctl("train", "2", "--force", *program)[0] == 0
    eventually(lambda: quiet.ctl("logs")[1].count("meets ") == 2, "the second")
    second = quiet.ctl("logs")[1]
    ports = []
    for text in (first, second):
        words = sorted(line.split()[1:] for line in text.splitlines() if line.startswith("meets"))
        assert [each[:4] for each in words] == [["0", "2", "0", "1"], ["1", "2", "0", "1"]]
        assert words[0][4] == words[1][4]
        ports.append(words[0][4])
    assert ports[0] != ports[1]
    for node in (0, 1):
        quiet.on(node, "touch /data/go")
    eventually(lambda: {job["state"] for job in quiet.jobs()} == {"succeeded"}, "their end")


@pytest.mark.all
def test_two_hosts_learn_to_find_rectangles(quiet, tmp_path):
    definitions = [
        {"Name": name, "Regex": f"{name}: ([0-9.]+)"}
        for name in ("loss", "val_iou", "val_accuracy")
    ]
    (tmp_path / "metrics.json").write_text(json.dumps(definitions))
    script = os.path.relpath(EXAMPLES / "pytorch" / "detection.py")
    job = ("--script", script, "--model-dir", str(tmp_path))
    small = ("--hyperparameter", "epochs=3", "--hyperparameter", "images=3000")
    status, out, err = quiet.ctl("train", "2", *TORCHRUN, *job, *small)
    assert (status, "DistributedDataParallel size: 2; 46 steps" in out) == (0, True), (out, err)
    assert "the same weights on all ranks" in out
    said = quiet.ctl("results", "--json", "--metric", f"@{tmp_path / 'metrics.json'}")[1]
    found = {
        one["name"]: [point["value"] for point in one["points"]]
        for one in json.loads(said)["metrics"]
    }
    assert [len(found[each["Name"]]) for each in definitions] == [3, 4, 4]
    assert found["val_iou"][0] < 0.4 < 0.55 < found["val_iou"][-1], "the first is before training"
    assert found["val_accuracy"][-1] > 0.9
    assert (tmp_path / "model" / "detection.pt").stat().st_size > 1000
    kept = [json.loads(line) for line in (tmp_path / "output/data/metrics.jsonl").open()]
    assert [each["val_iou"] for each in kept] == pytest.approx(found["val_iou"], abs=1e-4)


# A rank on the second node fails. Those on the first node ignore SIGTERM.
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
@pytest.mark.all
def test_torchruns_end_together_and_leave_nothing(quiet, tmp_path, end):
    hosts = Path(quiet.lab.home, "pair", "hosts")
    kept = hosts.read_text()
    try:
        hosts.write_text(kept.replace("slots=1", "slots=2"))
        (tmp_path / "ddp.py").write_text(UNEVEN)
        program = ("--script", os.path.relpath(tmp_path / "ddp.py"))
        quiet.ok("train", "4", "--detach", *TORCHRUN, *program, "--", end)
        eventually(lambda: quiet.ctl("logs")[1].count("is here") == 4, "four ranks")
        said = [quiet.ctl("logs", "--rank", str(rank))[1] for rank in range(4)]
        assert [text.count(f"rank {rank} is here\n") for rank, text in enumerate(said)] == [1] * 4
        assert [text.count("is here") for text in said] == [1] * 4
        if end == "cancel":
            assert quiet.ctl("cancel")[0] == 0
        else:
            eventually(lambda: quiet.jobs()[0]["state"] == "failed", "its end")
    finally:
        hosts.write_text(kept)
    for node in (0, 1):
        assert quiet.on(node, "pgrep -f 'ddp[.]py|prte[d]|prteru[n]' || echo none") == "none\n"


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("3", "--synthetic"), 2, "wanted 3 GPUs, there are 2\n  hint: take 2: "),
        (("2", "--data-dir", "~/none"), 1, "there is no training data in /home/ubuntu/none"),
        (("2", "--synthetic", "--", "--batchsize", "64"), 1, "command line arg: --batchsize"),
    ],
)  # fmt: skip
def test_refused(pair, arguments, status, says):
    pair.ends(status, says, "train", *arguments)


@pytest.mark.all
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
        assert "error: training was not started: fix 6 errors first" in err
        quiet.ends(1, "training was not started: fix 1 error", *run, "--force", *trainers)
        assert quiet.jobs() == []
    finally:
        quiet.on(1, f"sudo -n umount {mpirun}")
        quiet.on(0, "rm -r small runs")


def test_without_a_number_all_gpus_are_taken(quiet):
    retries = ("--retries", "1", "--min-gpus")
    for more in ((), (*retries, "2")):
        status, out, err = quiet.ctl("train", "--synthetic", "--dry-run", *more)
        assert (status, " -np 2 " in out) == (0, True), err
    assert quiet.ctl("train", "--synthetic", "--dry-run", *retries, "3")[0] == 2
    assert quiet.ctl("train", "0", "--synthetic", "--dry-run")[0] == 2


@pytest.mark.all
def test_a_program_is_looked_for_on_all_nodes_at_once(quiet):
    run = ("train", "2", "--dry-run", "--script")
    quiet.on(0, "touch only-here.py")
    try:
        status, _, err = quiet.ctl(*run, "~/only-here.py")
        assert status == 1
        text = "cannot run /home/ubuntu/only-here.py: No such file or directory"
        assert f"pair-1: {text}" in err
        quiet.ok("train", "1", *run[2:], "~/only-here.py")
    finally:
        quiet.on(0, "rm only-here.py")
    # A shipped file does not have to be on the nodes yet.
    assert quiet.ctl(*run, "~/examples/horovod/mnist/mnist_hvd.py")[0] == 0
    for option, path in (("--script", "none.py"), ("--data-dir", "small")):
        status, _, err = quiet.ctl("train", "2", "--dry-run", option, f"{Path.home()}/{path}")
        assert status == 1, err
        assert f"quote the ~, so that the nodes' is meant: {option} '~/{path}'" in err


def test_the_lab_shows_the_line_for_its_gpus_and_says_that_it_has_few_processors(pair):
    """A p3.2xlarge has a V100 of 16 GB. With more slots, there are more ranks than processors."""
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
    assert json.loads(out)["recipe"] == {
        "name": "tutorial",
        "flags": [],
        "variables": {},
        "batch": 256,
        "largest_step": None,
    }
    plain = ("--synthetic", "--preset", "gpu", "--recipe", "fast", "--dry-run")
    [line, recipe] = pair.ctl("train", "2", *plain)[1].splitlines()
    assert "--xla --fused_update --fp16_allreduce --clear_log" in line
    assert recipe == "# recipe fast: -b 256 --all_cpus --xla --fused_update --fp16_allreduce"


def test_an_unknown_job(pair):
    assert pair.ctl("logs", "yesterday's")[0] == 2
    pair.ends(1, "there is no job 20010101-000000-abcd", "logs", "20010101-000000-abcd")
