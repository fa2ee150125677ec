"""The part of SageMaker's Python SDK that notebooks use, run on a cluster of your own.

    from clusterctl.sagemaker import Session, TensorFlow, get_execution_role

`TensorFlow(...).fit(...)` runs `clusterctl train CLUSTER --job-file -` with the estimator's
arguments as its job.yaml (docs/script-mode.md). The cluster is the estimator's
`cluster=`, else CLUSTERCTL_CLUSTER, else the only one that runs. Nothing is launched: launch a
cluster with `clusterctl up`. With instance_type 'local' the cluster is one of the local EC2.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from clusterctl.cli.app_context import AppContext
from clusterctl.cli.params import CREDENTIALS
from clusterctl.config import load_settings
from clusterctl.configuration import yaml_tree
from clusterctl.copy.s3 import parse_source
from clusterctl.domain.errors import AwsError, ClusterctlError, UsageError
from clusterctl.ec2.errors import translated
from clusterctl.jobs.job_file import parse_job

# The SDK's instance types for the machine that the notebook runs on: here, the local EC2.
LOCAL = ("local", "local_gpu")
# Last lines of a command's output that become the message when it fails: all that is printed of a
# failed job, from its exit status to where its logs are.
LINES_KEPT = 8


class TrainingFailed(ClusterctlError):
    """A job failed or did not start, or a served model gave no answer. `exit_status` is that of the
    command: 2 if the request made no sense."""

    def __init__(self, output: str, status: int) -> None:
        message, hint = output.strip() or f"exit status {status}", ""
        if status == UsageError.exit_status:
            *_, last = f"\n{message}".rpartition("\nerror: ")
            message, _, hint = last.partition("\nhint: ")
        super().__init__(message, hint)
        self.exit_status = max(status, 1)  # below 0 it is a signal's number


def get_execution_role() -> str:
    """Return a placeholder for an estimator's `role`. Nodes act by their instance profile."""
    return "clusterctl"


class NotebookSession:
    """The account and region of clusterctl's settings; with `lab`, those of the local EC2."""

    def __init__(self, lab: bool | None = None) -> None:
        self._app = AppContext(load_settings(lab=lab))

    @property
    def boto_region_name(self) -> str:
        return str(self._app.ec2.meta.region_name)

    def default_bucket(self) -> str:
        """Return the bucket `sagemaker-REGION-ACCOUNT`, created if missing.

        Raises AwsError without valid credentials or if S3 refuses, and ClusterctlError if the
        bucket of that name is another account's, which would get what is uploaded.
        """
        name = f"sagemaker-{self.boto_region_name}-{self._app.clients.account_id}"
        s3 = self._app.clients.s3
        where = {"LocationConstraint": self.boto_region_name}
        # S3 refuses us-east-1 as a LocationConstraint; there it must be left out.
        more = {} if self.boto_region_name == "us-east-1" else {"CreateBucketConfiguration": where}
        try:
            with translated():
                s3.create_bucket(Bucket=name, **more)
        except AwsError as error:
            if error.code == "BucketAlreadyExists":
                raise ClusterctlError(
                    f"the bucket {name} belongs to another account", "name a bucket of yours"
                ) from error
            if error.code != "BucketAlreadyOwnedByYou":
                raise
        return name

    def upload(self, path: Path, uri: str) -> None:
        """Upload a file, or all files of a folder, below an s3:// URI.

        Raises UsageError for a missing path or a wrong URI, OSError, and AwsError if S3 refuses.
        """
        if not path.exists():
            raise UsageError(f"there is no {path} here", "give a file or a folder")
        to = parse_source(uri)
        key = to.key.decode().rstrip("/")
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                name = file.relative_to(path) if path.is_dir() else file.name
                target = f"{key}/{name}" if key else str(name)
                # Not upload_file, which turns botocore's errors into one of boto3's own.
                with file.open("rb") as content, translated():
                    self._app.clients.s3.upload_fileobj(content, to.bucket, target)


Session = NotebookSession  # the SDK's name for it


class S3Uploader:
    """The SDK's class of that name: `S3Uploader.upload(FOLDER, 's3://BUCKET/PREFIX')`."""

    @staticmethod
    def upload(local_path: str, desired_s3_uri: str, session: NotebookSession | None = None) -> str:
        """Upload a file or a folder, and return the URI. Raises as NotebookSession.upload does."""
        (session or NotebookSession()).upload(Path(local_path), desired_s3_uri)
        return desired_s3_uri


class TrainingJob:
    """A job of the cluster; `name` is its id in `clusterctl jobs`."""

    def __init__(self, name: str, cluster: str, environ: Mapping[str, str]) -> None:
        self.name, self.cluster, self._environ = name, cluster, environ

    def wait(self) -> None:
        """Wait until the job has ended. Raises TrainingFailed if it failed."""
        done = subprocess.run(
            _argv("wait", self.cluster, self.name),
            env=self._environ,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            # It names the job that failed.
            raise TrainingFailed(done.stderr or f"job {self.name} failed", done.returncode)


class Estimator:
    """A program and how to run it. The arguments are those of the SDK, version 1 or 2, that are
    keys of a job file (docs/script-mode.md).

    `cluster` names the cluster that it runs on. `credentials` are those with which the nodes read
    S3, as of `clusterctl train`: `profile` (the nodes' own), `mine` or `none`. Raises UsageError
    for arguments that make no sense.
    """

    framework = "tensorflow"

    def __init__(
        self,
        entry_point: str,
        role: str = "",
        *,
        cluster: str | None = None,
        credentials: str = "profile",
        sagemaker_session: NotebookSession | None = None,
        **arguments: Any,
    ) -> None:
        if credentials not in CREDENTIALS:
            raise UsageError(
                f"not credentials: {credentials!r}", f"one of {', '.join(CREDENTIALS)}"
            )
        kept = {name: value for name, value in arguments.items() if value is not None}
        if role:
            kept["role"] = role
        self._arguments = _plain({"entry_point": entry_point, "framework": self.framework, **kept})
        self._job = parse_job(self._arguments, Path())
        instance_type = arguments.get("instance_type") or arguments.get("train_instance_type")
        self._cluster = cluster
        self._credentials = credentials
        self._environ = dict(os.environ)
        if instance_type in LOCAL:
            self._environ["CLUSTERCTL_LAB"] = "1"
        self.latest_training_job: TrainingJob | None = None

    def fit(
        self,
        inputs: str | Mapping[str, str] | None = None,
        wait: bool = True,
        logs: bool = True,
        job_name: str | None = None,
    ) -> None:
        """Train, with a channel for each of `inputs`; a single URI is the channel `training`.

        With `wait` it follows the job to its end, and with `logs` prints its output as it arrives.
        An interrupt stops the following, not the job. Raises TrainingFailed, ClusterctlError.
        """
        # If this start fails, deploy() must not take an earlier job.
        self.latest_training_job = None
        arguments = {**self._arguments, "source_dir": str(Path(self._job.source_dir).resolve())}
        if not (inputs is None or isinstance(inputs, (str, Mapping))):
            raise UsageError(f"inputs={inputs!r}: a URI, or a mapping of channels to URIs")
        if inputs is not None:
            arguments["inputs"] = inputs if isinstance(inputs, str) else dict(inputs)
        arguments = _plain(arguments)
        # Raises UsageError here, not TrainingFailed from the command below.
        mode = parse_job(arguments, Path()).mode
        cluster = self._cluster or _cluster_of(self._environ)
        # From standard input, since a file here may be shipped to the nodes with the program.
        words = ("train", cluster, "--job-file", "-", "--json", "--detach")
        from_s3 = any(one.source.startswith("s3://") for one in mode.channels)
        credentials = ("--credentials", self._credentials) if from_s3 else ()
        argv = _argv(*words, *credentials)
        job = _run(argv, self._environ, logs, given=yaml_tree.dump(arguments).encode())
        self.latest_training_job = TrainingJob(job["job_id"], cluster, self._environ)
        if wait:
            following = _argv("logs", cluster, job["job_id"], "-f")
            _run(following, self._environ, logs, as_json=False)

    @property
    def model_data(self) -> str:
        """Return where the latest job's model is: below `output_path`, else on the head node.

        Raises UsageError before the first fit().
        """
        name = self._latest().name
        url = self._job.mode.model_url.rstrip("/")
        return f"{url}/{name}/model" if url else f"~/.clusterctl/jobs/{name}/model"

    def _latest(self) -> TrainingJob:
        if self.latest_training_job is None:
            raise UsageError("nothing was trained yet", "call fit() first")
        return self.latest_training_job

    def deploy(
        self,
        initial_instance_count: int = 1,
        instance_type: str = "",
        endpoint_name: str = "",
        **left_out: Any,
    ) -> Predictor:
        """Wait for the latest job, and serve its model on the cluster's head node.

        The endpoint has the job's name unless `endpoint_name` is given. The SDK's number and type
        of instances are ignored. Raises UsageError, TrainingFailed.
        """
        model, job = self.model_data, self._latest()
        job.wait()
        name = endpoint_name or job.name
        words = ("serve", job.cluster, model, "--model", name, "--json")
        credentials = ("--credentials", self._credentials)
        _run(_argv(*words, *credentials), self._environ, logs=True)
        return Predictor(name, job.cluster, self._environ)


class Predictor:
    """A served model (docs/serving.md)."""

    def __init__(self, name: str, cluster: str, environ: Mapping[str, str]) -> None:
        self.endpoint_name, self._cluster, self._environ = name, cluster, environ

    def predict(self, data: Any) -> Any:
        """Return the answer to an array, a list of instances, or a request ({"inputs": ...}).

        Raises UsageError for data that JSON cannot hold, TrainingFailed with the server's message.
        """
        argv = _argv("predict", self._cluster, "-", "--model", self.endpoint_name)
        request = json.dumps(_plain(data)).encode()
        done = subprocess.run(
            argv, env=self._environ, input=request, capture_output=True, check=False
        )
        if done.returncode:
            raise TrainingFailed(done.stderr.decode(errors="replace"), done.returncode)
        return json.loads(done.stdout)

    def delete_endpoint(self) -> None:
        """Stop serving the model. Raises TrainingFailed."""
        words = ("serve", self._cluster, "--stop", "--model", self.endpoint_name, "--json")
        _run(_argv(*words), self._environ, logs=True)


class TensorFlow(Estimator):
    framework = "tensorflow"


class PyTorch(Estimator):
    framework = "pytorch"


class MXNet(Estimator):
    """An MXNet program. MXNet has to be installed on the nodes beforehand (docs/scripts.md)."""

    framework = "mxnet"


def _argv(*words: str) -> list[str]:
    return [sys.executable, "-m", "clusterctl", *words]


def _cluster_of(environ: Mapping[str, str]) -> str:
    """Return the cluster to use if none is named. Raises UsageError, TrainingFailed."""
    if environ.get("CLUSTERCTL_CLUSTER"):
        return environ["CLUSTERCTL_CLUSTER"]
    listed = _run(_argv("list", "--json"), environ, logs=False)
    running = [one["name"] for one in listed if any(n["state"] == "running" for n in one["nodes"])]
    if len(running) != 1:
        raise UsageError(
            f"which cluster? {', '.join(running) or 'none'} runs",
            "clusterctl up NAME --nodes N, and cluster='NAME' or CLUSTERCTL_CLUSTER",
        )
    return str(running[0])


def _plain(value: Any, name: str = "") -> Any:
    """Return the value in JSON's types, numpy's among it converted.

    Raises UsageError with the name of the part that JSON cannot hold: `hyperparameters.begin`.
    """

    def listed(value: Any) -> Any:
        if hasattr(value, "tolist"):
            return value.tolist()
        raise TypeError(f"{str(value)[:60]!r} of type {type(value).__name__}")

    try:
        return json.loads(json.dumps(value, default=listed))
    except (TypeError, ValueError, RecursionError) as wrong:
        if isinstance(value, dict) and isinstance(wrong, TypeError):
            for key, one in value.items():
                _plain(one, f"{name}.{key}" if name else str(key))
        raise UsageError(f"{name or 'it'}: JSON cannot hold this: {wrong}") from None


def _run(
    argv: Sequence[str],
    environ: Mapping[str, str],
    logs: bool,
    as_json: bool = True,
    given: bytes = b"",
) -> Any:
    """Run a command with `given` as its standard input, and return the JSON that it prints; None
    without `as_json`.

    With `logs` its messages are printed as they arrive, and without `as_json` its output too. An
    interrupt is passed on to the command once, and its last output is printed. Raises
    TrainingFailed.
    """
    last: list[str] = []
    with (
        tempfile.TemporaryFile() as printed,
        contextlib.ExitStack() as closed,
        _interrupts_held() as release,
        subprocess.Popen(
            argv,
            env=environ,
            stdin=closed.enter_context(_file_of(given)) if given else None,
            stdout=printed if as_json else subprocess.PIPE,
            stderr=subprocess.PIPE if as_json else subprocess.STDOUT,
            text=True,
            errors="replace",
            # A terminal's Ctrl-C reaches the whole process group; a notebook kernel interrupts
            # itself alone. In a session of its own the command gets exactly one SIGINT: that below.
            start_new_session=True,
        ) as process,
    ):
        lines = process.stderr if as_json else process.stdout
        assert lines
        try:
            release()
            _show(lines, last, logs)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            _show(lines, last, logs)
            raise
        process.wait()
        if process.returncode:
            raise TrainingFailed("\n".join(last), process.returncode)
        printed.seek(0)
        return json.load(printed) if as_json else None


def _file_of(content: bytes) -> IO[bytes]:
    """Return a file without a name that has this content, to be read from its beginning."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(content)
    file.seek(0)
    return file


@contextlib.contextmanager
def _interrupts_held() -> Iterator[Callable[[], None]]:
    """Hold back Ctrl-C until the yielded function is called, which raises what came meanwhile.

    One that comes while a command is started would leave it running, out of anybody's reach.
    """
    held: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    # Other threads are not interrupted, and an ignored signal stays ignored in the command, too.
    holds = callable(before) and threading.current_thread() is threading.main_thread()

    def release() -> None:
        nonlocal holds
        if holds:
            holds = False
            signal.signal(signal.SIGINT, before)
        if held:
            held.clear()
            raise KeyboardInterrupt

    if holds:
        signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield release
    finally:
        release()


def _show(lines: Iterable[str], last: list[str], logs: bool) -> None:
    """Print lines if `logs` is set, and keep the last LINES_KEPT of them in `last`."""
    for line in lines:
        if logs:
            print(line, end="", flush=True)
        last[:] = [*last, line.rstrip()][-LINES_KEPT:]
