"""Models served on hosts of the lab: started, used, ended; and models that cannot be served."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
from types import SimpleNamespace

import pytest

from clusterctl.domain.errors import CommandFailed, UsageError
from clusterctl.jobs.detached import JobRunning, end_job
from clusterctl.node.jobs.spec import JobState
from clusterctl.operations import serving
from clusterctl.operations.copy import copy_to_cluster
from clusterctl.operations.logs import NoJobs, find, refuse_while_training
from clusterctl.operations.serving import (
    ServeRequest,
    _wait_until_ready,
    ask,
    list_of_npy,
    model_name,
    request_of,
    served,
    start_serving,
)
from clusterctl.sagemaker import Predictor, TrainingFailed
from tests.lab.running import once_client
from tests.local_node import HEAD, LocalNode
from tests.pair import eventually
from tests.serving import make_model, stand_in_server
from tests.variants import usual

STAND_IN = "[s]leep.1000.--port"
MODELS = "~/.clusterctl/serving/models"
JOB = "20261120-154501-3f2a"
# Commands that disturb a model on node 1.
REFUSED = (["reboot", "1"], ["stop"], ["remove", "1", "--yes"], ["replace", "1", "--yes"])
# A test takes longer on a busy machine than SSH waits for a node that stands still.
PATIENT = ("-o", "ServerAliveCountMax=1000")


def npy(shape, form, content, fortran=False, magic=b"\x93NUMPY\x01\x00"):
    header = repr({"descr": form, "fortran_order": fortran, "shape": shape}).encode() + b"\n"
    return magic + struct.pack("<H", len(header)) + header + content


def test_arrays_and_bare_lists_are_instances():
    floats = npy((2, 1, 2), "<f4", struct.pack("<4f", 1, 2, 3, 0.5))
    assert json.loads(request_of(floats, is_npy=True)) == {
        "instances": [[[1.0, 2.0]], [[3.0, 0.5]]]
    }
    assert request_of(floats) == request_of(floats, is_npy=True), "as on standard input"
    assert json.loads(request_of(b" [[1, 2]]\n")) == {"instances": [[1, 2]]}
    assert request_of(b'{"inputs": 1}') == b'{"inputs": 1}'


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[1, 2]", "it is no .npy file"),
        (npy((2,), "<f2", bytes(4)), "its type is <f2, and send it as .astype"),
        (npy((2,), "|O", bytes(16)), "its type is .O, and only real numbers can be sent"),
        (npy((2,), "<c8", bytes(16)), "its type is <c8, and only real numbers can be sent"),
        (npy((2, 2), "<f4", bytes(16), fortran=True), "Fortran"),
        (npy((2, 2), "<f4", bytes(12)), "12 bytes of data, and its shape needs 16"),
        (npy((), "<f4", bytes(4)), "a single number"),
        (npy((0, 2), "<f4", b""), "it is empty"),
        (npy((10**30,), "<f4", bytes(4)), "its shape needs 4000"),
        (npy((1,), [("a", "<f4")], bytes(4)), "its type is"),
        (b"\x93NUMPY", "values to unpack"),
    ],
)
def test_what_is_no_array(content, why):
    with pytest.raises(UsageError, match=why):
        list_of_npy(content)


def test_an_empty_reply_is_an_error():
    assert serving.ServerAnswer(200, b"\n").error == "the reply is empty"
    assert not serving.ServerAnswer(200, b"{}").error


def test_a_models_name_is_its_folders():
    assert model_name(None, "~/models/cifar10/") == "cifar10"
    assert model_name("mine", "~/m/x y") == "mine"
    with pytest.raises(UsageError, match="not the name of a model: 'x y'"):
        model_name(None, "~/m/x y")


def test_a_server_that_ended_and_is_a_zombie_is_not_waited_for(tmp_path):
    folder = tmp_path / ".clusterctl" / "jobs" / JOB
    folder.mkdir(parents=True)
    (folder / "log").write_text("error: port 8501 of this node cannot be had: --port\n")
    with subprocess.Popen(["true"], env={"CLUSTERCTL_JOB": JOB}) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        (folder / "lock").write_text(f"{zombie.pid} boot\n")
        access = SimpleNamespace(connections=LocalNode(tmp_path), head=HEAD)
        with pytest.raises(CommandFailed, match="port 8501 of this node cannot be had"):
            _wait_until_ready(access, HEAD, JOB)


def nothing(progress):
    """The default: nothing happens meanwhile."""


def refused_because_of_another_node(pair, tiny):
    """While this one copies, start another `serve` of the same name on the other node."""

    def upload(request, target):
        assert pair.ctl("serve", f"file://{tiny}", "--model", "m", "--node", "1")[0] == 0
        return copy_to_cluster(access, (target,), request, watch=nothing)

    with pair.access() as access:
        with pytest.raises(JobRunning, match="a model m is served on pair-1 already"):
            start_serving(access, ServeRequest(f"file://{tiny}", "m", port=8602), upload)
        [one] = [one for one in served(access) if one.model == "m"]
        assert one.target.host == "pair-1"
        assert ask(access, one).status == 200
    assert "m" not in pair.on(0, f"ls {MODELS}").split()
    assert pair.ctl("serve", "--stop", "--model", "m")[0] == 0


def ended_as_soon_as_it_was_served(pair, tiny, monkeypatch):
    def end(access, target, job_id):
        end_job(access.connections, access.head, job_id)
        return {"version": 1}

    def fails(request, target):
        copy_to_cluster(access, (target,), request, watch=nothing)
        raise CommandFailed(target.host, "the disk is full")

    def copies(request, target):
        return copy_to_cluster(access, (target,), request, watch=nothing)

    monkeypatch.setattr(serving, "_wait_until_ready", end)
    for upload, why in ((copies, "ended as soon as it was served"), (fails, "the disk is full")):
        request = ServeRequest(f"file://{tiny}", "brief", port=8602)
        with pair.access() as access, pytest.raises(CommandFailed, match=why):
            start_serving(access, request, upload)
        assert "brief" not in pair.on(0, f"ls {MODELS}").split()


@pytest.mark.lab
@pytest.mark.parametrize("how", usual(1, ["its runner is killed", "stopped"]))
def test_a_server_on_another_node_ends_with_its_job(pair, how):
    with pair.access() as access, stand_in_server(access) as job_id:
        assert pair.on(1, f"pgrep -f {STAND_IN}"), "it runs on its node"
        [one] = served(access)
        assert (one.model, one.target.host, one.job.job_id) == ("stand-in", "pair-1", job_id)
        pair.ends(1, "is served on pair-1 by pair-0", "reboot", "0")
        with pytest.raises(JobRunning, match="stand-in is served on pair-1 already"):
            start_serving(access, ServeRequest("~/models/any", "stand-in"), None)
        if how == "stopped":
            assert pair.ctl("serve", "--stop")[0] == 0
        else:
            pair.on(0, f"read -r pid _ <~/.clusterctl/jobs/{job_id}/lock; kill -9 $pid")
            assert served(access) == []
            status, _, err = pair.ctl("serve", "--status")
            assert (status, err.splitlines()[0]) == (1, "no model is served")
            assert "model stand-in ended on pair-1 " in err, err
            assert f"clusterctl logs pair {job_id}" in err
        eventually(lambda: not pair.on(1, f"pgrep -f {STAND_IN} || true"), "its end")


@pytest.mark.lab
@pytest.mark.all
def test_a_node_that_stands_still_serves_until_its_job_ends(pair, monkeypatch):
    """While the job of the model runs, no command takes its node away, answer or not. It ends when
    the head node has given the node up, and then the commands that repair the node are free."""
    monkeypatch.setattr(serving, "KEEP_ALIVES", PATIENT)
    with pair.access() as access, stand_in_server(access):
        with pair.fault(1, "freeze"):
            for words in REFUSED:
                pair.ends(1, "is served on pair-1", *words)
        [one] = served(access)
        assert one.target.host == "pair-1"
        eventually(lambda: pair.on(1, f"pgrep -f {STAND_IN} || true"), "that it goes on")
    monkeypatch.setattr(serving, "KEEP_ALIVES", ("-o", "ServerAliveCountMax=1"))
    with pair.access() as access, stand_in_server(access) as job_id:
        with pair.fault(1, "freeze"):
            eventually(lambda: served(access) == [], "the end of its job")
            ended = find(access, job_id)
            assert (ended.state, ended.status.exit_status) == (JobState.FAILED, 255)
            assert ended.status.cleanup["silent"] == ["pair-1"]
            refuse_while_training(access, "removing nodes may end it", access.select((1,)))
        eventually(lambda: not pair.on(1, f"pgrep -f {STAND_IN} || true"), "its end")


@pytest.mark.lab
@pytest.mark.train
@pytest.mark.all
def test_served_models(pair, tmp_path, monkeypatch):
    """A model from here is on the head node, one from S3 on the other. Requests go through SSH."""
    tiny = make_model(tmp_path / "tiny", 1)
    status, out, err = pair.ctl("serve", "--status")
    assert (status, out, err.splitlines()[0]) == (0, "", "no model is served")
    # The state after a `serve` was killed during the copy.
    pair.on(0, f"mkdir -p {MODELS}/tiny/20260101-000000-dead/1")
    status, _, err = pair.ctl("serve", f"file://{tiny}")
    assert status == 0, err
    assert "model tiny, version 1, is served on pair-0" in err
    [copy] = pair.on(0, f"ls -d {MODELS}/*/*").split()
    assert "dead" not in copy
    s3 = once_client(pair.lab, "s3")
    s3.create_bucket(Bucket="models")
    for path in tiny.rglob("*"):
        if path.is_file():
            s3.upload_file(str(path), "models", f"m/{path.relative_to(tiny)}")
    with pair.instance_profile():
        words = ("serve", "s3://models/m", "--model", "far", "--node", "1", "--public")
        status, out, err = pair.ctl(*words, "--port", "8601", "--json")
    assert status == 0, err
    assert (json.loads(out)["host"], "all addresses of pair-1" in err) == ("pair-1", True)

    # A server on loopback is reachable on its node only; a public one is reachable by other nodes.
    with pair.access() as access:
        near, far = (node.private_ip for node in access.cluster.nodes)
    asks = "python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).status)' "
    assert pair.on(0, f"{asks} http://{far}:8601/v1/models/far").strip() == "200"
    refused = pair.on(1, f"{asks} http://{near}:8501/v1/models/tiny 2>&1 || true")
    assert "Connection refused" in refused

    status, out, _ = pair.ctl("serve", "--status", "--json")
    seen = {(one["model"], one["host"], one["state"], one["version"]) for one in json.loads(out)}
    assert (status, seen) == (
        0,
        {("tiny", "pair-0", "AVAILABLE", "1"), ("far", "pair-1", "AVAILABLE", "1")},
    )
    (tmp_path / "x.npy").write_bytes(npy((1, 2), "<f8", struct.pack("<2d", 3, 4)))
    (tmp_path / "x.json").write_text('{"inputs": [[1, 2]]}')
    (tmp_path / "bad.json").write_text('{"inputs": [[1, 2]}')
    answer = pair.ctl("predict", str(tmp_path / "x.npy"), "--model", "far")
    assert (answer[0], json.loads(answer[1])) == (0, {"predictions": [[3.0, 4.0]]})
    predictor = Predictor("far", pair.name, {**os.environ, **pair.environ})
    assert predictor.predict([[3, 4]]) == {"predictions": [[3.0, 4.0]]}
    answer = pair.ctl("predict", str(tmp_path / "x.json"), "--model", "tiny", "--version", "1")
    assert (answer[0], json.loads(answer[1])) == (0, {"outputs": [[1.0, 2.0]]})
    large = b"[" + b"[0.123456789, 0.123456789], " * 100_000 + b"[1, 2]]"
    (tmp_path / "large.json").write_bytes(large)
    answer = pair.ctl("predict", str(tmp_path / "large.json"), "--model", "tiny")
    assert (answer[0], len(json.loads(answer[1])["predictions"])) == (0, 100_001)
    status, _, err = pair.ctl("predict", str(tmp_path / "bad.json"), "--model", "tiny")
    assert (status, "JSON Parse error" in err, "at offset: 18" in err) == (1, True, True), err
    pair.ends(2, "several models are served: tiny, far", "predict", str(tmp_path / "x.json"))

    # A server that hangs is reported.
    pair.on(1, "pkill -STOP -f [s]erve.py")
    status, out, _ = pair.ctl("serve", "--status", "--model", "far", "--json")
    assert (status, json.loads(out)[0]["state"] in ("SILENT", "LOADING")) == (1, True)
    pair.on(1, "pkill -CONT -f [s]erve.py")

    # A node that does not answer does not hide models on other nodes.
    with pair.fault(1, "freeze"):
        status, out, _ = pair.ctl("serve", "--status", "--json")
        states = {one["model"]: one["state"] for one in json.loads(out)}
        assert (status, states) == (255, {"tiny": "AVAILABLE", "far": "SILENT"})
        answer = pair.ctl("predict", str(tmp_path / "x.json"), "--model", "tiny")
        assert (answer[0], json.loads(answer[1])) == (0, {"outputs": [[1.0, 2.0]]})
        assert pair.ctl("predict", str(tmp_path / "x.json"), "--model", "far")[0] == 255

    # Commands that disturb a node that serves are refused.
    for words in REFUSED:
        err = pair.ends(1, "is served on pair-", *words)
        assert "clusterctl serve pair --stop" in err

    # Servers do not prevent a training, and `logs` does not show them.
    assert pair.ctl("train", "2", "--synthetic", "--dry-run")[0] == 0
    servers = [one["job_id"] for one in json.loads(pair.ctl("serve", "--status", "--json")[1])]
    assert len(servers) == 2
    with pair.access() as access, contextlib.suppress(NoJobs):
        assert find(access, None).job_id not in servers
    pair.ends(1, "a model tiny is served on pair-0 already", "serve", f"file://{tiny}")
    words = ("serve", f"file://{tiny}", "--model", "other")
    pair.ends(1, "port 8501 of this node cannot be had", *words, "--port", "8501")
    # A further model gets the next port. Of several models, each is used by its name.
    status, out, _ = pair.ctl(*words, "--json")
    assert (status, json.loads(out)["port"]) == (0, 8502)
    answer = pair.ctl("predict", str(tmp_path / "x.json"), "--model", "other")
    assert (answer[0], json.loads(answer[1])) == (0, {"outputs": [[1.0, 2.0]]})
    assert pair.ctl("serve", "--stop", "--model", "other")[0] == 0
    for no_folder in ("", "~bob/m"):
        assert pair.ctl("serve", no_folder, "--model", "other")[0] == 2
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "saved_model.pb").write_text("no")
    err = pair.ends(1, "the model does not load: version 1", "serve", f"file://{broken}")
    assert str(broken) in err and MODELS not in err, "the node's copy has gone"

    assert pair.on(0, f"ls -d {MODELS}/*/*").split() == [copy], "what was refused has left nothing"
    refused_because_of_another_node(pair, tiny)
    ended_as_soon_as_it_was_served(pair, tiny, monkeypatch)

    predictor.delete_endpoint()
    with pytest.raises(TrainingFailed, match="no model far is served on pair"):
        predictor.predict([[3, 4]])
    assert pair.ctl("serve", "--stop")[0] == 0
    assert pair.ctl("serve", "--stop")[0] == 0
    for node in (0, 1):
        assert pair.on(node, "pgrep -u $USER -f [s]erve.py || true") == ""
    assert pair.on(1, "ls ~/.clusterctl/serving/models") == ""
    pair.on(0, "rm -rf ~/models/broken")
    pair.ctl("clean-logs", "--jobs", "--force", "--yes")
