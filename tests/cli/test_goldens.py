"""What each command prints: its screen, its --json and its dry run, recorded over the lab.

A change of behaviour shows as a diff of the records. Renew them with
`pytest tests/cli/test_goldens*.py --snapshot-update`, and read the diff. Screens that
test_screens.py has are not recorded twice. The last test names what none of them has.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from clusterctl.cli.copyclust import copyclust
from clusterctl.cli.runclust import runclust
from clusterctl.cli.verify import copyclust_verify
from clusterctl.diagnosis import bundle
from clusterctl.operations import serving
from clusterctl.operations.serving import LIBRARIES
from tests.cli.golden import TRAINER, Golden
from tests.cli.masks import SIZES, masked_json
from tests.cli.running import CommandLine
from tests.cli.test_every_command import commands
from tests.diagnosis.made_up import job_of, own, samples, with_rank
from tests.jobs.training_logs import HEADER, banner, evaluation, rows
from tests.lab.running import once_client
from tests.pair import eventually

LOGS = Path(__file__).parents[1] / "explain" / "logs"


# Answers as TensorFlow Serving does.
SERVER = """\
#!/usr/bin/python3
import http.server, json, sys
class Model(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, value):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer({"model_version_status": [{"version": "1", "state": "AVAILABLE"}]})
    def do_POST(self):
        self.answer({"predictions": [[3.0, 4.0]]})
    def log_message(self, *words):
        pass
port = next(int(word.partition("=")[2]) for word in sys.argv if "rest_api_port" in word)
http.server.ThreadingHTTPServer(("", port), Model).serve_forever()
"""
FIRST, LAST = slice(0, 1), slice(-1, None)
SERVING = "/usr/local/bin/tensorflow_model_server"


@pytest.fixture
def at_moto(snapshot, tmp_path, clusterctl: CommandLine, monkeypatch):
    """Return what records commands of this process at moto's EC2."""
    monkeypatch.setattr("clusterctl.cli.status._log_in", lambda *_: ((), []))
    monkeypatch.setattr("sys.argv", ["clusterctl"])
    golden = Golden(snapshot, tmp_path, {})

    def run(command: str, *arguments: str) -> None:
        ran = clusterctl(command, *arguments)
        line = shlex.join(["clusterctl", *command.split(), *arguments])
        out = masked_json(ran.out) if "--json" in arguments else ran.out
        golden.compare(line, ran.status, out, ran.err)

    return run


def test_what_needs_no_cluster(snapshot, tmp_path):
    golden = Golden(snapshot, tmp_path, {"CLUSTERCTL_HOME": str(tmp_path / "home")}, masks=())
    (tmp_path / "job.log").write_text((LOGS / "02-horovod-stall-tagged.txt").read_text())
    golden.both("explain job.log")
    opens = samples(own("load"), syscall="openat /data/fifo", wait_channel="wait_for_partner")
    bundle.save(with_rank(job_of(), 5, samples=opens), tmp_path / "stuck.json.gz")
    golden("diagnose --from stuck.json.gz --json")
    finished = rows([0, 1, 50, 100], speed=19200.0) + "Finished in 6000.5\n"
    (tmp_path / "run.log").write_text(banner() + HEADER + finished + evaluation())
    golden("results --log run.log --json")
    (tmp_path / "clusterctl.yaml").write_text("clusters:\n  demo: {nodes: 4, spot: true}\n")
    golden.both("config check")
    golden("config show demo --json")
    golden("config schema hosts")
    golden.both("iam-policy")
    golden("completion fish")


def test_what_needs_no_host(at_moto, clusterctl):
    one = ("up", "demo", "--nodes", "1", "--instance-type", "g5.xlarge")
    at_moto(*one, "--dry-run", "--json")
    at_moto("selftest", "--max-cost", "5", "--dry-run")
    at_moto("selftest", "--max-cost", "5", "--dry-run", "--json")
    at_moto("selftest", "--max-cost", "3")
    clusterctl(*one, "--timeout", "0.01s")
    at_moto("gc", "--all")
    at_moto("gc", "--all", "--json")
    for command in ("network up", "network status", "network down"):
        at_moto(command, "training", "--json")
    at_moto("network s3", "--json")


@pytest.fixture(scope="module")
def tidy(pair):
    """Return the shared cluster, and leave it as it was found."""
    pair.on(0, "rm -rf ~/.clusterctl/jobs/*")
    yield pair
    pair.ctl("cancel")
    pair.ctl("kill")
    pair.ctl("clean-logs", "--jobs", "--force", "--yes")
    for node in (0, 1):
        pair.on(node, f"rm -rf golden copied synced mine; sudo -n rm -f {SERVING}")


# What is known of disks and links, and what a copy waits for, depends on how busy the machine is.
OF_SPEED = (
    (r'(?s)"predicted_s": .*?\n +\]', '"predicted_s": "N"'),
    (r'"one_copy_s": [^,]*', '"one_copy_s": "N"'),
    (r'"limited_by": "[^"]*"', '"limited_by": "N"'),
)


@pytest.fixture
def here(tidy, snapshot, tmp_path):
    """Return what records commands on the shared cluster."""
    return Golden(snapshot, tmp_path, tidy.environ)


def test_commands_and_files(pair, here, tmp_path):
    golden = here
    pair.put("golden", "content\n")
    golden("run pair 'cat golden'", sort=True)
    golden("run pair --json 'cat golden'")
    golden("ssh pair 1 -- cat golden")
    golden.both("data verify pair '~/golden'")
    (tmp_path / "small").write_text("small")
    golden("copy pair small copied --json", lines=LAST, masks=OF_SPEED)
    golden.both("disk pair", sort=True, masks=SIZES)
    golden("doctor pair")
    golden("doctor pair --nodes 0 --json")
    s3 = once_client(pair.lab, "s3")
    s3.create_bucket(Bucket="goldens")
    s3.put_object(Bucket="goldens", Key="set/small", Body=b"small")
    # Which stages last long enough to be shown depends on how busy the machine is.
    golden("s3sync pair s3://goldens/set '~/synced' --credentials mine --follow --head", lines=LAST)
    golden.both("s3sync pair --status --head")
    pair.on(0, "rm -rf ~/.clusterctl/jobs/*")  # other tests list the jobs


def test_jobs(pair, here):
    golden = here
    for node in (0, 1):
        pair.on(node, "mkdir -p mine; cat > mine/train.py", TRAINER.encode())
    train = "train pair 2 --script '~/mine/train.py' --timeline"
    golden(f"{train} --dry-run")
    golden(train)
    golden.both("jobs pair")
    job = pair.jobs()[-1]["job_id"]
    golden("logs pair")
    golden.both("wait pair")
    golden(f"fetch pair {job} fetched")
    golden("results pair")
    golden.both("tuning pair")
    golden(f"{train} --detach --json -- stay")
    wait_for_ranks(pair)
    golden.both("watch pair --interval 1s", interrupt=True, lines=FIRST)
    golden("cancel pair")
    pair.ctl("train", "2", "--script", "~/mine/train.py", "--detach", "--", "stay")
    wait_for_ranks(pair)
    golden("cancel pair --json")
    leave(pair)
    golden.both("kill pair --dry-run")
    golden("kill pair")
    leave(pair)
    golden("kill pair --json")
    golden.both("clean-logs pair --jobs --dry-run", masks=SIZES)
    golden("clean-logs pair --jobs --keep-last 1", masks=SIZES)
    golden("clean-logs pair --jobs --json")


def wait_for_ranks(pair) -> None:
    """Wait for both. An mpirun that is ended before it has started them goes on for a while."""
    eventually(lambda: pair.ctl("logs")[1].count("here\n") == 2, "the ranks")


def leave(pair) -> None:
    """Leave a rank on a node."""
    rank = "CLUSTERCTL_JOB=20261120-154501-1ef7 OMPI_COMM_WORLD_RANK=3 setsid sleep 1000"
    pair.on(1, f"{rank} </dev/null >/dev/null 2>&1 &")


def test_a_served_model(pair, here, tmp_path):
    golden = here
    pair.on(0, f"sudo -n tee {SERVING} >/dev/null && sudo -n chmod 755 {SERVING}", SERVER.encode())
    pair.on(0, f"mkdir -p {LIBRARIES} mine/tiny/1; touch mine/tiny/1/saved_model.pb")
    pair.on(0, f"cat >{LIBRARIES}/serve.py", serving.SERVER.encode())
    (tmp_path / "request.json").write_text('{"instances": [[3, 4]]}')
    golden("serve pair '~/mine/tiny' --public")
    eventually(lambda: "AVAILABLE" in pair.ctl("serve", "--status")[1], "the model")
    golden.both("serve pair --status")
    golden("predict pair request.json")
    golden("serve pair --stop")
    golden("serve pair '~/mine/tiny' --public --json")
    golden("serve pair --stop --json")


def test_programs_for_any_hosts(home, hosts, snapshot, tmp_path):
    golden = Golden(snapshot, tmp_path, dict(os.environ))
    (tmp_path / "small").write_text("small")
    hosts.write_text("127.0.0.1\n127.0.0.2\n")
    one = tmp_path / "one"
    one.write_text("127.0.0.1\n")
    golden("hosts 'echo $((6 * 7))'", program="runclust", sort=True)
    golden("--json hosts 'echo $((6 * 7))'", program="runclust")
    golden("--dry-run one small copied", masks=SIZES, program="copyclust")
    golden("one small copied", program="copyclust")
    golden("--json one small again", program="copyclust", lines=LAST, masks=OF_SPEED)
    golden("verify hosts copied", program="copyclust")
    golden("verify --json hosts copied", program="copyclust")


# Commands whose main outcome is another exit status than 0.
STATUSES = {
    "diagnose": (2, "the job of its record is stuck"),
    "explain": (2, "its log has an error"),
    "watch": (130, "it goes on until Ctrl-C"),
}
RECORDS = ("test_goldens", "test_goldens_life", "test_screens")
RECORDED = re.compile(
    r"^  \$ ((?:clusterctl|runclust|copyclust).*)\n(?:  .*\n)*?  exit (\d+)$", re.M
)


def recorded() -> set[tuple[str, str]]:
    """Return (command, option) of all records with the command's own status.

    The option is --json, --dry-run, or empty for the screen.
    """
    found = set()
    names = {*(name for name, _ in every_command())}
    for file in RECORDS:
        text = (Path(__file__).parent / "__snapshots__" / f"{file}.ambr").read_text()
        for line, status in RECORDED.findall(text):
            words = line.removeprefix("clusterctl ").split(" ")
            name = next(one for n in (3, 2, 1) if (one := " ".join(words[:n])) in names)
            if int(status) == STATUSES.get(name, (0,))[0]:
                options = {"--json", "--dry-run"} & set(words)
                found |= {(name, option) for option in options or {""}}
    return found


def every_command():
    yield from commands()
    yield from (("runclust", runclust), ("copyclust", copyclust))
    yield "copyclust verify", copyclust_verify


def test_every_command_has_its_records():
    wanted = {
        (name, option)
        for name, command in every_command()
        for option in ("", "--json", "--dry-run")
        if not option or any(option in one.opts for one in command.params)
    }
    assert wanted - recorded() == set()
