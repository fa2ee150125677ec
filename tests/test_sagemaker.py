"""The estimators of notebooks: the commands that they run, and how they handle their results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from array import array
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
from botocore.stub import Stubber

from clusterctl import sagemaker
from clusterctl.domain.errors import AwsError, ClusterctlError, UsageError
from clusterctl.sagemaker import (
    NotebookSession,
    Predictor,
    S3Uploader,
    TensorFlow,
    TrainingFailed,
    _plain,
    _run,
)
from tests.lab.running import wait_until


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_arrays_are_lists_and_what_json_has_not_is_refused():
    numbers = array("d", [2.3e-05, 1])
    assert _plain({"instances": numbers, "k": (1,)}) == {"instances": [2.3e-05, 1.0], "k": [1]}
    with pytest.raises(UsageError, match="^it: JSON cannot hold this: .* of type date"):
        Predictor("m", "demo", os.environ).predict([date(2026, 1, 1)])
    with pytest.raises(UsageError, match=r"^hyperparameters\.begin: JSON .* of type date"):
        TensorFlow("a.py", hyperparameters={"lr": 0.1, "begin": date(2026, 1, 1)})
    itself = {}
    itself["again"] = itself
    with pytest.raises(UsageError, match="^it: JSON cannot hold this: Circular"):
        TensorFlow("a.py", hyperparameters=itself)


def test_an_answer_of_any_size_and_a_log_of_any_bytes(capfd):
    code = """
import json, sys
print(json.dumps("x" * 999_999), flush=True)
sys.stderr.buffer.write(b"\\xff log\\n")
"""
    assert _run(python(code), os.environ, logs=True) == "x" * 999_999
    assert capfd.readouterr().out == "\N{REPLACEMENT CHARACTER} log\n"
    with pytest.raises(TrainingFailed, match="log") as raised:
        _run(python(code + "sys.exit(3)"), os.environ, logs=False)
    assert raised.value.exit_status == 3
    with pytest.raises(TrainingFailed) as raised:  # of a request that makes no sense
        code += "sys.exit('warning: old\\nerror: 5 of 2 nodes\\nhint: at most 2')"
        _run(["sh", "-c", '"$@" || exit 2', "-", *python(code)], os.environ, logs=False)
    wrong = raised.value
    assert (wrong.exit_status, wrong.message, wrong.hint) == (2, "5 of 2 nodes", "at most 2")


def test_an_interrupt_is_passed_on_and_its_last_words_are_shown(tmp_path, capfd, monkeypatch):
    there, reads = tmp_path / "there", threading.Event()
    show = sagemaker._show

    def show_and_tell(*arguments):
        reads.set()
        show(*arguments)

    monkeypatch.setattr(sagemaker, "_show", show_and_tell)
    code = f"""
import pathlib, signal, sys, time
def told(*_):
    print("goes on without you")
    sys.exit(130)
signal.signal(signal.SIGINT, told)
pathlib.Path({str(there)!r}).touch()
time.sleep(60)
"""

    def interrupt():
        wait_until(lambda: there.exists() and reads.is_set(), "the program to run and be read")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        _run(python(code), os.environ, logs=True, as_json=False)
    thread.join()
    assert capfd.readouterr().out == "goes on without you\n"


def test_an_interrupt_while_the_command_is_started_is_passed_on(tmp_path, capfd, monkeypatch):
    there = tmp_path / "there"
    code = f"""
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit("ended"))
pathlib.Path({str(there)!r}).touch()
time.sleep(600)
"""

    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            wait_until(there.exists, "the program to run")
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        _run(python(code), os.environ, logs=True, as_json=False)
    assert capfd.readouterr().out == "ended\n"
    with pytest.raises(FileNotFoundError):
        _run(["/no/such/program"], os.environ, logs=True)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("said", "given"), [({}, "profile"), ({"credentials": "mine"}, "mine")])
def test_an_estimator_takes_credentials_as_train_does(tmp_path, monkeypatch, said, given):
    """The command that `fit` runs is told where the nodes' keys come from."""
    ran = []
    monkeypatch.chdir(tmp_path)
    answer = {"job_id": "1"}
    monkeypatch.setattr(sagemaker, "_run", lambda argv, *_, given: ran.append(argv) or answer)
    (tmp_path / "a.py").touch()
    TensorFlow("a.py", cluster="demo", **said).fit("s3://data/x", wait=False)
    [argv] = ran
    assert argv[argv.index("--credentials") + 1] == given
    with pytest.raises(UsageError, match="inputs=3: a URI, or a mapping"):
        TensorFlow("a.py", cluster="demo").fit(3)
    with pytest.raises(UsageError, match="not credentials: 'yours'") as caught:
        TensorFlow("a.py", credentials="yours")
    assert "profile, mine, none" in caught.value.hint


def test_no_file_of_the_estimators_own_is_in_the_folder_that_is_shipped(tmp_path, monkeypatch):
    """Such a file would come to the nodes with the program, and its variables with it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    (tmp_path / "data").mkdir()
    code = """
import json, os, sys
from pathlib import Path
from clusterctl.jobs.job_file import read_job_file
job = read_job_file(Path("-"))
[channel] = job.mode.channels
there = [os.path.join(job.source_dir, job.script), channel.path, *sorted(os.listdir())]
print(json.dumps({"job_id": json.dumps([job.variables, there])}))
"""
    monkeypatch.setattr(sagemaker, "_argv", lambda *_: python(code))
    estimator = TensorFlow("a.py", cluster="demo", environment={"KEY": "secret"})
    estimator.fit({"train": "data"}, wait=False)
    variables, there = json.loads(estimator.latest_training_job.name)
    assert variables == ["KEY=secret"]
    assert there[1:] == [str(tmp_path / "data"), "a.py", "data"]
    assert Path(there[0]).resolve() == tmp_path / "a.py"


def test_a_folder_that_is_not_there_is_not_uploaded(tmp_path):
    with pytest.raises(UsageError, match="there is no .*nothing here"):
        S3Uploader.upload(str(tmp_path / "nothing"), "s3://bucket/prefix")


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        ("BucketAlreadyOwnedByYou", None),
        ("BucketAlreadyExists", "belongs to another account"),
        ("AccessDenied", "not allowed"),
    ],
)
def test_what_s3_refuses(tmp_path, code, raised):
    """A bucket of that name may be a stranger's, who would get the data."""
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    s3 = boto3.client("s3", region_name="eu-west-1", **keys)
    session = NotebookSession()
    session._app = SimpleNamespace(
        ec2=SimpleNamespace(meta=s3.meta), clients=SimpleNamespace(s3=s3, account_id="1")
    )
    (tmp_path / "file").touch()
    with Stubber(s3) as answers:
        answers.add_client_error("create_bucket", code)
        answers.add_client_error("put_object", code)
        if raised is None:
            assert session.default_bucket() == "sagemaker-eu-west-1-1"
        else:
            with pytest.raises(ClusterctlError, match=raised):
                session.default_bucket()
        with pytest.raises(AwsError):
            session.upload(tmp_path, "s3://bucket/prefix")
