"""Commands on nodes whose ~/.bashrc is hostile: the right answer, or an error that names the file.

Never may an answer look as if nothing ran where something does.
"""

from __future__ import annotations

import contextlib
import itertools

import pytest

from clusterctl.jobs.detached import spec_of, start_job, submission_of
from clusterctl.jobs.plan import JobPlan
from tests.pair import eventually

pytestmark = [pytest.mark.lab]
JOB, RANK = "20261120-154501-7136", "20261120-154501-1ef7"
# Commands, each with what its right answer has, and its exit status.
COMMANDS = {
    "kill": (("kill", "--dry-run"), "sleep 1001", 0),
    "jobs": (("jobs",), "succeeded", 0),
    "logs": (("logs",), "a line of the job", 0),
    "tuning": (("tuning",), "wrote neither a timeline", 1),
    "s3sync": (("s3sync", "--status", JOB), f"no sync {JOB} has run", 1),
    "disk": (("disk",), "/data", 0),
    "train": (("train", "2", "--synthetic", "--dry-run", "--force"), "mpirun", 0),
    "doctor": (("doctor",), "sleep 1001", 2),
    "clean-logs": (("clean-logs", "--jobs", "--dry-run"), JOB, 0),
    "status": (("status",), "pair-1  running", 0),
    "run": (("run", "echo the output"), "pair-1: the output", 0),
    "diagnose": (("diagnose",), RANK, 1),
    "env": (("env status",), "pair-1  ready", 0),
    "copy": (("copy", "--dry-run", "/etc/hostname", "/tmp/there"), "2 of 2 nodes", 0),
    "cancel": (("cancel", JOB), "succeeded", 0),
    "serve": (("serve", "--status"), "no model is served", 0),
}
# What ~/.bashrc may do without any effect on an answer.
SURVIVED = {
    "text": r"printf 'Welcome {\n{\"id\": []}\n\033]0;x\007\0half \303'",
    "exits on errors": "set -eu",
    "options": "shopt -s failglob nullglob; set -f -C; IFS=/:; CDPATH=/:/tmp; export CDPATH",
    "stdin": "read line; read -t 1 -n 2 other",
    "functions": 'for f in python3 cd cat rm head sh; do eval "$f() { :; }"; export -f $f; done',
    "aliases": "shopt -s expand_aliases; alias python3=true cat=true sh=true cd=true rm=true",
    "python": (
        "mkdir -p /tmp/bad; builtin echo 'raise OSError' >|/tmp/bad/json.py; "
        "export PYTHONPATH=/tmp/bad PYTHONHOME=/nowhere PYTHONSTARTUP=/nowhere PYTHONOPTIMIZE=2 "
        "PYTHONWARNINGS=error PYTHONIOENCODING=ascii"
    ),
    "locale": "export LC_ALL=xx_XX.UTF-8 LANG=C TMPDIR=/nowhere GREP_OPTIONS=-v LS_COLORS=x",
    "traps": "trap 'builtin printf bye' EXIT; trap 'builtin printf x' DEBUG; export TMOUT=1",
    "trace": "BASH_XTRACEFD=1; set -x",
    "joined": "exec 2>&1; builtin printf warning >&2",
    "banner": "head -c 3000000 /dev/zero | tr '\\0' x",
    "path": "PATH=/nowhere; umask 0",
}
FATAL = {
    "exit": "exit 0",
    "another shell": "exec bash",
    "away": "exec >/dev/null",
    "all of stdin": "cat >/dev/null",
    "failure": "exit 1",
    "a mistake": "if then",
    "background": "(sleep 0.3; printf noise; exec sleep 15) &",
    "no memory": "ulimit -v 15000",
    "no files": "ulimit -n 3",
}
SWITCH = "case $BASH_EXECUTION_STRING in *RESTORE*) ;; *) . ~/hostile ;; esac"


def on_all(pair, command, stdin=b""):
    """Run a command that the hostile file lets pass."""
    with pair.access() as access:
        result = access.connections.run_all(
            access.targets, f": RESTORE; {command}", stdin=stdin, timeout_s=60, as_user=True
        )
    assert all(one.ok for one in result.values), result
    assert not result.failures, result


@pytest.fixture(scope="module")
def cluster(pair):
    """Yield the cluster with a job that has succeeded, and a rank of another one on node 1."""
    with pair.access() as access:
        argv = ("echo", "a line of the job")
        plan = JobPlan(JOB, ranks=1, preset="cpu", synthetic=True, workdir="/tmp/work", argv=argv)
        hosts = f"{access.cluster.head.private_ip} slots=1\n"
        access.connections.run(access.head, f"mkdir -p /tmp/work; echo '{hosts}' >/tmp/work/hosts")
        start_job(access.connections, access.head, submission_of(plan, spec_of(plan)), pair.name)
    variables = f"CLUSTERCTL_JOB={RANK} OMPI_COMM_WORLD_RANK=3"
    pair.on(1, f"{variables} setsid sleep 1001 </dev/null >/dev/null 2>&1 &")
    eventually(lambda: pair.jobs()[-1]["state"] == "succeeded", "the job's end")
    on_all(pair, "cp ~/.bashrc ~/bashrc.kept")
    yield pair
    on_all(pair, "mv ~/bashrc.kept ~/.bashrc; rm -f ~/hostile; pkill -f 'sleep 100[1]'; :")


@contextlib.contextmanager
def login_file(pair, text):
    bashrc = f"cat >~/hostile; {{ echo '{SWITCH}'; cat ~/bashrc.kept; }} >~/.bashrc"
    on_all(pair, bashrc, f"{text}\n".encode())
    try:
        yield
    finally:
        on_all(pair, "cp ~/bashrc.kept ~/.bashrc")


def check(pair, name, may_fail):
    command, right, status = COMMANDS[name]
    ended, out, err = pair.ctl(*command)
    shown = f"{out}{err}"
    if may_fail and ended and ".bashrc" in shown and "pair-" in shown:
        return
    assert (ended, right in shown) == (status, True), (name, ended, shown)


def pairs(files, count):
    """Each of the first files with one command; with --all, each file with a quarter of them."""
    usual = list(zip(files, COMMANDS, strict=False))[:count]
    return [
        pytest.param(file, name, marks=() if (file, name) in usual else pytest.mark.all)
        for (row, file), (column, name) in itertools.product(enumerate(files), enumerate(COMMANDS))
        if (row - column) % 4 == 0
    ]


@pytest.mark.parametrize(("file", "name"), pairs(SURVIVED, 3))
def test_an_answer_is_found(cluster, file, name):
    with login_file(cluster, SURVIVED[file]):
        if name == "run" and file in ("traps", "trace", "path", "options"):
            pytest.skip("the command runs in the login shell, with what its file sets")
        check(cluster, name, (file, name) == ("python", "train"))


@pytest.mark.parametrize(("file", "name"), pairs(FATAL, 3))
def test_a_login_file_is_named(cluster, file, name):
    with login_file(cluster, FATAL[file]):
        check(cluster, name, may_fail=True)
