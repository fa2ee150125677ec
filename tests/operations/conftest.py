import itertools
import json

import pytest

from tests.cli.running import CommandLine
from tests.moto_ec2 import client, faults, moto_client, moto_url
from tests.operations.commands import shorten_timeouts
from tests.operations.killed import killer as killer_of
from tests.operations.world import World
from tests.pair import eventually

__all__ = ["client", "faults", "moto_client", "moto_url"]


@pytest.fixture(scope="module")
def world(moto_url, tmp_path_factory):
    """Return an EC2 for commands that fail. The next case may use what a case leaves."""
    return World(moto_url, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def killer(moto_url):
    with killer_of(moto_url) as started:
        yield started


@pytest.fixture
def soon(monkeypatch):
    shorten_timeouts(monkeypatch.setattr)


names = (f"once{number}" for number in itertools.count())


@pytest.fixture
def name(clusterctl):
    """Yield a cluster's name. The end of the test removes the cluster."""
    name = next(names)
    yield name
    clusterctl("down", name, "--yes", "--discard-results")


@pytest.fixture
def clusterctl(lab, monkeypatch, capsys):
    """Return the command line for the lab that tests share."""
    monkeypatch.setenv("CLUSTERCTL_HOME", str(lab.home))
    return CommandLine(lab.home, capsys, ["--lab"])


STAY = """\
import os, sys, time
sys.stderr.write("rank " + os.environ["OMPI_COMM_WORLD_RANK"] + " is here\\n")
while not os.path.exists("/data/go"):
    time.sleep(0.1)
sys.stderr.write("rank " + os.environ["OMPI_COMM_WORLD_RANK"] + " goes\\n")
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


# Each process of a job is one of these. At the beginning: the line of any command has such words.
STILL_RUNS = "pgrep -u $(id -u) -f '^[^ ]*(python|mpirun|prte)' || true"


@pytest.fixture
def quiet(pair):
    """Return the cluster of two hosts without processes and jobs, with ~/stay.py."""
    left = "/data/go ~/.clusterctl/jobs/* ~/.clusterctl/code"
    pair.on_all(f"rm -rf {left}; cat >stay.py", STAY.encode())
    yield pair
    # The three commands take seconds, and most tests end their jobs.
    if any(pair.on_all(STILL_RUNS)):
        for command in (("cancel",), ("kill",), ("clean-logs", "--jobs", "--force", "--yes")):
            pair.ctl(*command)


@pytest.fixture
def stay(quiet):
    """Start a job that runs until /data/go exists. Return its id, once its ranks run."""

    def start(ranks, *options):
        run = ("train", str(ranks), "--detach", "--json", "--script", "~/stay.py", *options)
        status, out, err = quiet.ctl(*run)
        assert status == 0, err
        eventually(lambda: quiet.ctl("logs")[1].count(" is here\n") == ranks, "all ranks")
        return json.loads(out)["job_id"]

    return start
