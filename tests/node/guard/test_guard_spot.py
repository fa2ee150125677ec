"""A spot interruption, announced by the test's metadata service on a host of the lab."""

from __future__ import annotations

import json

import pytest

from tests.lab.running import wait_until
from tests.node.guard.guard_lab import Launcher

pytestmark = pytest.mark.lab
IMDS = """\
import http.server, os
TOKENS = []
class Imds(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        TOKENS.append("token-%d" % len(TOKENS))
        self.say(200, TOKENS[-1])
    def do_GET(self):
        open("asked", "a").write(self.path + "\\n")
        if self.headers.get("X-aws-ec2-metadata-token") != TOKENS[-1]:
            return self.say(401, "")
        name = "imds-" + self.path.rsplit("/", 1)[1]
        if os.path.exists("imds-expire"):
            os.unlink("imds-expire")
            TOKENS.append("another")
        if not os.path.exists(name):
            return self.say(404, "<html>")
        self.say(200, open(name).read())
    def say(self, status, text):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *words):
        pass
http.server.HTTPServer(("127.0.0.1", 8777), Imds).serve_forever()
"""
# A rank that saves its state on SIGTERM, with a child that inherited the handler.
SAVES = """\
import os, signal, time
def save(*_):
    open("saved-%d" % os.getpid(), "w").close()
signal.signal(signal.SIGTERM, save)
os.fork()
open("ready-%d" % os.getpid(), "w").close()
while True:
    time.sleep(0.1)
"""
NOTICE = '{"action": "terminate", "time": "2026-11-05T12:00:00Z"}'


@pytest.fixture(scope="module")
def node(lab, tmp_path_factory):
    launcher = Launcher(lab, tmp_path_factory.mktemp("spot"))
    yield launcher.up()
    launcher.end()


def background(node, command):
    return node.on(0, f"setsid nohup {command} </dev/null >/dev/null 2>&1 & echo $!")


def exists(node, pattern):
    return node.on(0, f"ls {pattern} 2>/dev/null || :").split()


def notice(node):
    told = node.state(0)["spot"]
    return told and told["action"]


@pytest.mark.all
def test_the_notice_reaches_whoever_can_use_it(node):
    # There is no metadata service yet: the guard keeps polling, less and less often.
    node.tell(0, spot=True, imds="http://127.0.0.1:8777")
    log = "cat /var/log/clusterctl-guard.log 2>/dev/null || :"  # the log is missing at first
    wait_until(lambda: "spot: " in node.on(0, log), "the missing service in the log")

    for name, text in {"imds.py": IMDS, "saves.py": SAVES}.items():
        node.on(0, f"cat >{name} <<'END'\n{text}END")
    background(node, "python3 imds.py")
    saving = background(node, "env OMPI_COMM_WORLD_RANK=0 python3 saves.py")
    other = background(node, "env OMPI_COMM_WORLD_RANK=1 python3 saves.py")
    wait_until(lambda: len(exists(node, "ready-*")) == 4, "two processes of each rank")
    wait_until(lambda: exists(node, "asked"), "a question")
    assert notice(node) is None

    node.on(0, 'echo \'{"noticeTime": "2026-11-05T11:00:00Z"}\' >imds-rebalance')
    wait_until(lambda: notice(node) == "rebalance", "the recommendation")
    assert exists(node, "saved-*") == []

    node.on(0, f"touch imds-expire; echo '{NOTICE}' >imds-instance-action")
    wait_until(lambda: exists(node, "saved-*"), "the rank to save its state")
    # The other rank catches SIGTERM, too, and would only end the job too early.
    assert exists(node, "saved-*") == [f"saved-{saving}"]
    assert node.on(0, f"kill -0 {other} && echo alive") == "alive"
    told, noted = map(
        json.loads, node.on(0, "cat /run/clusterctl/spot-interruption").splitlines()
    )
    assert told["action"] == "rebalance"
    assert (noted["action"], noted["time"]) == ("terminate", "2026-11-05T12:00:00Z")
    wait_until(lambda: notice(node) == "terminate", "the notice in the state")
    assert "EC2 takes the spot instance demo-0 back (terminate at 2026" in node.on(0, log)

    # The notice is announced once, however often the guard reads it.
    asked = len(node.on(0, "cat asked").splitlines())
    wait_until(lambda: len(node.on(0, "cat asked").splitlines()) > asked + 2, "more questions")
    assert node.on(0, log).count("takes the spot instance demo-0 back") == 1


@pytest.fixture(scope="module")
def pair(lab, tmp_path_factory):
    launcher = Launcher(lab, tmp_path_factory.mktemp("spots"))
    cluster = launcher.up(2)
    cluster.joined()
    yield cluster
    launcher.end()


@pytest.mark.parametrize(
    "rank_0_on", [0, pytest.param(1, marks=pytest.mark.all)], ids=["head", "worker"]
)
def test_a_workers_notice_reaches_the_rank_that_saves(pair, rank_0_on):
    """EC2 shows the notice in the worker's metadata only, and rank 0 saves for the whole job."""
    for index in (0, 1):
        pair.on(
            index, "pkill -9 -f '[s]aves.py'; rm -f saved-* ready-*; sudo rm -f /run/clusterctl/s*"
        )
        pair.on(index, f"cat >imds.py <<'END'\n{IMDS}END\ncat >saves.py <<'END'\n{SAVES}END")
        pair.on(index, "rm -f imds-*; setsid python3 imds.py </dev/null >/dev/null 2>&1 &")
        rank = int(index != rank_0_on)
        run = f"setsid env OMPI_COMM_WORLD_RANK={rank} python3 saves.py"
        pair.on(index, f"{run} </dev/null >/dev/null 2>&1 &")
        pair.tell(index, spot=True, imds="http://127.0.0.1:8777")
    for index in (0, 1):
        wait_until(lambda index=index: there(pair, index, "ready-*"), "the ranks")
    notice = f'{{"action": "terminate", "time": "2026-11-05T12:00:0{rank_0_on}Z"}}'
    pair.on(1, f"echo '{notice}' >imds-instance-action")
    wait_until(lambda: there(pair, rank_0_on, "saved-*"), "rank 0 to save its state")
    assert there(pair, 1 - rank_0_on, "saved-*") == []
    told = json.loads(pair.on(0, "cat /run/clusterctl/spot-interruption"))
    assert (told["action"], told["node"]) == ("terminate", "demo-1")


def there(cluster, index, pattern):
    return cluster.on(index, f"ls {pattern} 2>/dev/null || :").split()
