"""Serve a model on a node with TensorFlow Serving's REST API, and send requests to it.

The server, bootstrap/shell/serve.py, is a job of the head node. On another node it runs through the
head node's SSH, as mpirun's daemons do. It listens on the node's loopback interface and is reached
through SSH.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import http.client
import io
import itertools
import json
import math
import os
import posixpath
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl.bootstrap.training import SHELL
from clusterctl.copy.report import TransferReport
from clusterctl.copy.request import CopyRequest, is_url
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    HostError,
    Interrupted,
    MissingTool,
    NotFound,
    UsageError,
    check_home,
)
from clusterctl.domain.results import last_line
from clusterctl.jobs.detached import JobRunning, end_job, find_job, list_jobs, start_job
from clusterctl.jobs.head_facts import facts_of_head, facts_to_read
from clusterctl.jobs.plan import is_on_nodes, new_job_id
from clusterctl.node.jobs.folder import START_DAEMON_PATH
from clusterctl.node.jobs.jobs import Submission
from clusterctl.node.jobs.listing import AwaitedLine, wait_for_line
from clusterctl.node.jobs.recovery import SSH
from clusterctl.node.jobs.spec import SERVE, JobRecord, JobSpec, JobState, JobStep
from clusterctl.node.procfs import JOB_VARIABLE
from clusterctl.node.record import RecordError, from_json
from clusterctl.operations.access import Access
from clusterctl.operations.diagnose import DOWNLOAD_WITHIN_S
from clusterctl.transport.call import NodeCall, call, read_report
from clusterctl.transport.dial import Target

READY = "ready: "  # of a line of the server's log
NEVER_SERVED = 78  # the exit status of a server that has loaded no model
PORT = 8501  # TensorFlow Serving's default REST port
TIMEOUT_S = 60.0
LOAD_WITHIN_S = 600.0
# A model outlasts a node that does not answer for two minutes: 24 times ServerAliveInterval of SSH.
KEEP_ALIVES = ("-o", "ServerAliveCountMax=24")
ANSWER_WITHIN_S = 10.0
CHUNK = 1 << 16
# Copies of models, MODEL_NAME/JOB_ID each, below a node's home folder.
MODELS = ".clusterctl/serving/models"
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# The server's libraries. All are pure Python, so one folder of them suits every node; these
# versions work on Python 3.9 to 3.13.
PACKAGES = (
    *("uvicorn==0.39.0", "starlette==0.49.3", "anyio==4.12.1", "h11==0.16.0", "click==8.1.8"),
    *("idna==3.11", "exceptiongroup==1.3.1", "typing_extensions==4.15.0"),
)
SERVER = (SHELL / "serve.py").read_text()
NPY_MAGIC = b"\x93NUMPY"
# NumPy's type strings -> format letters of `struct`, for the types that `memoryview.cast` supports.
# Little-endian only, as all nodes are.
NPY = {"<f4": "f", "<f8": "d", "|u1": "B", "|i1": "b", "<i2": "h", "<i4": "i", "<i8": "q"}
NPY |= {"<u2": "H", "<u4": "I", "<u8": "Q", "|b1": "?"}


def _digest(*words: str) -> str:
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:12]


# The folder of the server and its libraries below a node's home folder. Its name changes with them.
LIBRARIES = f".clusterctl/serving/{_digest(*PACKAGES, SERVER)}"


class NoAnswer(ClusterctlError):
    """The server of a model did not answer."""


@dataclass(frozen=True)
class Served:
    """A model that a job serves or loads. `folder` is the model's folder on the node. `public`
    means that the server listens on all of the node's addresses. `state` and `version` are as the
    server reports them, where it was queried; of a model that is gone, `state` is its job's."""

    model: str
    target: Target
    job: JobRecord
    port: int
    public: bool
    folder: str
    state: str = ""
    version: str = ""
    json_names = (
        *("model", "host", "port", "public", "folder", "job_id", "duration_s", "state", "version"),
    )

    @property
    def host(self) -> str:
        return self.target.host

    @property
    def job_id(self) -> str:
        return self.job.job_id

    @property
    def duration_s(self) -> float:
        return self.job.duration_s


@dataclass(frozen=True)
class _ServerError:
    error: str


@dataclass(frozen=True)
class Ready:
    """What a server reports once it has loaded the model."""

    server: str
    version: int


@dataclass(frozen=True)
class ServerAnswer:
    """An answer of the server: HTTP status and body."""

    status: int
    body: bytes

    @property
    def error(self) -> str:
        """The server's error message; empty if the status is 200 and there is a body."""
        if self.status == http.client.OK:
            return "" if self.body.strip() else "the reply is empty"
        try:
            return from_json(_ServerError, self.body).error
        except RecordError:
            return f"HTTP status {self.status}"


def model_name(given: str | None, model_dir: str) -> str:
    """Return the given name, or without one the folder's. Raise UsageError for an invalid name."""
    name = given or posixpath.basename(model_dir.rstrip("/"))
    if not MODEL_NAME.fullmatch(name):
        raise UsageError(
            f"not the name of a model: {name!r}", "name it: --model NAME (letters, digits, . _ -)"
        )
    return name


@dataclass(frozen=True)
class ServeRequest:
    """A model to serve: in a folder of the node (`~/models/cifar10`), of this machine or in S3.

    Without `port` it gets the first port from PORT on that no served model on the node has.
    """

    model_dir: str
    name: str
    node: int = 0
    port: int | None = None
    public: bool = False


def start_serving(
    access: Access, request: ServeRequest, upload: Callable[[CopyRequest, Target], TransferReport]
) -> tuple[Served, Ready]:
    """Serve a model, and wait until the server answers. Return the model, and which server and
    version answers.

    `upload` copies a model that is not on the node to it. Raise UsageError, MissingTool, JobRunning
    if a model of that name is served already, and CommandFailed if the model does not load.
    """
    model_dir, name, port = request.model_dir, request.name, request.port
    (target,) = access.select((request.node,))
    check_home(model_dir)
    source = "" if is_on_nodes(model_dir) else _source(model_dir)
    report = read_report(access.connections, target, facts_to_read(), "looking at it")
    facts = facts_of_head(report)
    cluster = access.cluster.name
    python = next((one.python for one in facts.environments), "")
    if not python:
        raise MissingTool(
            f"there is no TensorFlow on {target.host}", f"clusterctl env install {cluster}"
        )
    models = served(access)
    _refuse_another(models, name, cluster)
    taken = {other.port for other in models if other.target == target}
    port = port or next(number for number in itertools.count(PORT) if number not in taken)
    job_id, home = new_job_id(), facts.home
    own = f"{MODELS}/{name}/{job_id}" if source else ""
    folder = f"{home}/{own}" if own else home + model_dir[1:] if model_dir[0] == "~" else model_dir
    argv = server_argv(home, python, name, folder, port, request.public)
    may_run = False  # whether the job may have been started
    try:
        if own:
            problem = upload(CopyRequest((source,), f"{folder}/"), target).problem
            if problem:
                raise problem
        _put_libraries(access, target)
        may_run = True
        try:
            start_server(access, target, job_id, home, argv, name)
        except JobRunning:  # started meanwhile
            _refuse_another(served(access), name, cluster)
            raise
        ready = _wait_until_ready(access, target, job_id)
        now = next((one for one in served(access) if one.job.job_id == job_id), None)
        if now is None:
            raise CommandFailed(
                target.host, f"model {name} ended as soon as it was served", _log_of(job_id)
            )
    except BaseException as error:
        if own and isinstance(error, CommandFailed):  # the user knows no copy
            error.message = error.message.replace(folder, model_dir)
        # If the job does not run or was refused, remove it and its copy. After any other error,
        # such as a lost connection or Ctrl-C, it may serve, so leave it as it is.
        if not may_run or isinstance(error, (CommandFailed, JobRunning)):
            with contextlib.suppress(HostError):
                end_job(access.connections, access.head, job_id)
                _remove(access, target, own)
        elif isinstance(error, KeyboardInterrupt):
            raise Interrupted(
                f"interrupted; model {name} may be served all the same: see "
                f"`clusterctl serve {cluster} --status`"
            ) from None
        raise
    if own:
        # Remove copies that killed `serve` commands left. No other job on this node uses a folder
        # of this model name.
        others = f'find "$HOME"/{MODELS}/{name} -mindepth 1 -maxdepth 1 ! -name {job_id}'
        access.connections.run(target, f"{others} -exec rm -rf {{}} +", timeout_s=TIMEOUT_S)
    return now, ready


def server_argv(
    home: str, python: str, name: str, folder: str, port: int, public: bool
) -> tuple[str, ...]:
    """Return the line that serves the model in `folder` of a node, on that node. Pure."""
    libraries = f"{home}/{LIBRARIES}"
    return (
        *(python, "-u", f"{libraries}/serve.py", "--model", name, "--folder", folder),
        *("--port", str(port), "--libraries", libraries, *(("--public",) if public else ())),
    )


def serving_spec(
    access: Access, target: Target, job_id: str, home: str, argv: tuple[str, ...], name: str
) -> JobSpec:
    """Return the specification of the head node's job that runs a server on a node. Pure.

    Through SSH, the server runs under the supervisor of mpirun's daemons: if the connection is
    lost, or the job's runner, it ends with all that it has started.
    """
    addresses = {one.name: one.private_ip for one in access.cluster.nodes}
    hosts = dict.fromkeys((access.head_name, target.host))
    if target.host != access.head_name:
        marked = ("exec", "env", f"{JOB_VARIABLE}={job_id}", "python3", "-IS")
        line = shlex.join((*marked, f"{home}/{START_DAEMON_PATH}", *argv))
        argv = (*SSH, *KEEP_ALIVES, addresses[target.host], line)
    return JobSpec(
        job_id,
        preset=SERVE,
        steps=(JobStep(argv),),
        claims=(f"{SERVE}:model {name}",),
        destination=f"model {name}",
        hosts=(target.host,),
        nodes=tuple({"name": host, "address": addresses[host]} for host in hosts),
    )


def start_server(
    access: Access, target: Target, job_id: str, home: str, argv: tuple[str, ...], name: str
) -> None:
    """Start the job of a server. Raise JobRunning if one serves a model of this name; HostError."""
    request = Submission(serving_spec(access, target, job_id, home, argv, name))
    start_job(access.connections, access.head, request, access.cluster.name)


def _refuse_another(models: Sequence[Served], name: str, cluster: str) -> None:
    """Raise JobRunning if one of these models has this name."""
    for other in models:
        if other.model == name:
            raise JobRunning(
                f"a model {name} is served on {other.target.host} already",
                f"stop it (clusterctl serve {cluster} --stop --model {name}), or give this one "
                "another name: --model. A new version in its folder is served by itself",
            )


def _remove(access: Access, target: Target, own: str) -> None:
    """Remove the copy of a model that was made for a job. `own` is its path below the home folder,
    empty if no copy was made."""
    if own:
        command = f'cd "$HOME" && rm -rf {own}; rmdir {posixpath.dirname(own)} 2>/dev/null'
        access.connections.run(target, command, timeout_s=TIMEOUT_S)


def _source(model_dir: str) -> str:
    """Return the model's folder or URL as the source of a copy of its contents. Raise UsageError if
    the folder does not exist."""
    if is_url(model_dir):
        return model_dir.rstrip("/") + "/"
    path = Path(model_dir.removeprefix("file://"))
    if not model_dir or not path.is_dir():
        raise UsageError(
            f"there is no folder {path} here" if model_dir else "the folder's name is empty",
            "a folder of the node begins with ~ or /, in quotes: '~/models/cifar10'",
        )
    return f"{path.resolve()}/"


def _wait_until_ready(access: Access, target: Target, job_id: str) -> Ready:
    """Wait until the server has loaded the model; return what its file `ready` reports.

    Raise CommandFailed with the server's reason if it ended instead.
    """
    line = AwaitedLine(job_id, READY)
    node_call = NodeCall(wait_for_line, line, "loading the model", LOAD_WITHIN_S)
    ready, *last = call(access.connections, access.head, node_call)
    if ready:
        return from_json(Ready, ready[len(READY) :])
    lines = list(filter(None, map(str.strip, last)))
    output = [line for line in lines if line.startswith("error: ")] or lines or ["no message"]
    message, _, hint = output[-1].removeprefix("error: ").partition("; ")
    raise CommandFailed(target.host, message, hint or _log_of(job_id))


def _log_of(job_id: str) -> str:
    return f"its log: ~/.clusterctl/jobs/{job_id}/log"


def served(access: Access, jobs: Sequence[JobRecord] | None = None) -> list[Served]:
    """List the models that nodes serve or load, those in quarantine included. Raise HostError.

    `jobs` are the cluster's, if they have been read already.
    """
    targets = {target.host: target for target in access.all_targets}
    return [
        _served(targets[job.spec.hosts[0]], job)
        for job in (list_jobs(access.connections, access.head) if jobs is None else jobs)
        if job.spec.preset == SERVE and job.is_active and job.spec.hosts[0] in targets
    ]


def gone_models(jobs: Sequence[JobRecord]) -> list[Served]:
    """Return the models that are not served any more though no one ended them."""
    last = {
        _words_of(job)[1]["--model"]: job
        for job in jobs
        if job.spec.preset == SERVE and job.status.exit_status != NEVER_SERVED
    }
    return [
        replace(
            _served(Target(job.spec.hosts[0], "", "", down="its job has ended"), job),
            state=job.state.value.upper(),
            version="-",
        )
        for job in last.values()
        if job.state in (JobState.FAILED, JobState.LOST)
    ]


def _words_of(job: JobRecord) -> tuple[list[str], dict[str, str]]:
    """Return the words of a server's line, and its options."""
    argv = job.spec.argv
    words = shlex.split(argv[-1]) if argv[0] == SSH[0] else [*argv]
    return words, dict(zip(words, words[1:]))


def _served(target: Target, job: JobRecord) -> Served:
    words, given = _words_of(job)
    public = "--public" in words
    port = int(given["--port"])
    return Served(given["--model"], target, job, port, public, given["--folder"])


def find_served(access: Access, name: str | None) -> Served:
    """Return the served model of that name, with None the only one. Raise NotFound, UsageError if
    there are several, HostError."""
    models = [one for one in served(access) if name in (None, one.model)]
    if not models:
        raise none_served(access, name)
    if len(models) > 1:
        names = ", ".join(one.model for one in models)
        raise UsageError(f"several models are served: {names}", "say which: --model NAME")
    return models[0]


def none_served(access: Access, name: str | None) -> NotFound:
    """Return the error for a model of that name, with None for any, that is not served."""
    what = f"model {name}" if name else "model"
    cluster = access.cluster.name
    return NotFound(f"no {what} is served on {cluster}", f"clusterctl serve {cluster} MODEL_DIR")


def stop_serving(access: Access, model: Served) -> None:
    """End the model's job and remove its copy, if one was made. Raise CommandFailed, HostError."""
    if not end_job(access.connections, access.head, model.job.job_id):
        raise CommandFailed(
            model.target.host,
            f"model {model.model} does not end (job {model.job.job_id})",
            f"clusterctl kill {access.cluster.name}",
        )
    ended = find_job(access.connections, access.head, model.job.job_id)
    if ended.status.cleanup.get("silent"):
        raise HostError(
            model.target.host,
            f"no answer: the job of model {model.model} has ended, and its server may still run",
            f"when it answers again: clusterctl kill {access.cluster.name} {ended.job_id}",
        )
    own = f"{MODELS}/{model.model}/{model.job.job_id}"
    _remove(access, model.target, own if model.folder.endswith(f"/{own}") else "")


def ask(
    access: Access,
    model: Served,
    verb: str = "",
    body: bytes | None = None,
    version: int | None = None,
) -> ServerAnswer:
    """Request `/v1/models/NAME[/versions/VERSION]` + `verb` from the server, through SSH: GET, or
    POST if there is a body. Raise NoAnswer if the server does not answer, HostError."""
    session = access.connections.session(model.target)
    of_version = "" if version is None else f"/versions/{version}"
    path = f"/v1/models/{model.model}{of_version}{verb}"
    headers = {} if body is None else {"Content-Length": str(len(body))}
    try:
        channel = session.open_tunnel("127.0.0.1", model.port, TIMEOUT_S)
        # A prediction may take any time. A GET is answered at once unless the server hangs.
        channel.settimeout(ANSWER_WITHIN_S if body is None else None)
        connection = http.client.HTTPConnection("127.0.0.1", model.port)
        connection.sock = channel
        try:
            try:
                method = "GET" if body is None else "POST"
                # For each packet, paramiko's `sendall` copies all that it has not sent yet, so a
                # large body in one piece would take quadratic time.
                starts = range(0, len(body or b""), CHUNK)
                pieces = ((body or b"")[start : start + CHUNK] for start in starts)
                connection.request(method, path, pieces, headers)
            except OSError:
                # The server may refuse a body that is too large before it has read all of it. Then
                # its answer is there to read.
                if not channel.recv_ready():
                    raise
            answer = connection.getresponse()
            return ServerAnswer(answer.status, answer.read())
        finally:
            connection.close()
    except (OSError, EOFError, http.client.HTTPException) as error:
        raise NoAnswer(
            f"model {model.model} on {model.target.host} gave no answer: {error or 'none came'}",
            f"see: clusterctl serve {access.cluster.name} --status, and its log: clusterctl run "
            f"{access.cluster.name} 'tail ~/.clusterctl/jobs/{model.job.job_id}/log'",
        ) from error


def request_of(content: bytes, is_npy: bool = False) -> bytes:
    """Return the body of a predict request for a file's content.

    An array (`is_npy`, or known by its first bytes) or a bare JSON list, as SageMaker's clients
    send it, becomes the value of `instances`. Anything else is sent unchanged. Raise UsageError.
    """
    if is_npy or content.startswith(NPY_MAGIC):
        return json.dumps({"instances": list_of_npy(content)}).encode()
    if content.lstrip()[:1] == b"[":
        return b'{"instances": ' + content + b"}"
    return content


def list_of_npy(content: bytes) -> list[Any]:
    """Return the array in a .npy file as nested lists, read without NumPy. Raise UsageError.

    The format is that of numpy.lib.format: the magic bytes, a version, the header's length in 2
    bytes (version 1) or 4, the header as a Python literal, the data.
    """
    file = io.BytesIO(content)
    try:
        if file.read(len(NPY_MAGIC)) != NPY_MAGIC:
            raise ValueError("it is no .npy file")
        major, _ = file.read(2)
        header = ast.literal_eval(
            file.read(int.from_bytes(file.read(2 if major == 1 else 4), "little")).decode()
        )
        shape, form = header["shape"], header["descr"]
        if header["fortran_order"] and len(shape) > 1:
            raise ValueError("it is in Fortran's order: numpy.ascontiguousarray")
        if str(form) not in NPY:
            is_real = re.fullmatch("[<>]?[fiu][0-9]+", str(form))
            advice = "send it as .astype('float32')" if is_real else "only real numbers can be sent"
            raise ValueError(f"its type is {form}, and {advice}")
        if not shape:
            raise ValueError("it is a single number")
        if 0 in shape:
            raise ValueError("it is empty")
        data, size = file.read(), math.prod(shape) * struct.calcsize(NPY[form])
        if len(data) != size:
            raise ValueError(f"it has {len(data)} bytes of data, and its shape needs {size}")
        view: Any = memoryview(data)
        listed: list[Any] = view.cast(NPY[form], shape).tolist()
        return listed
    except (
        *(ValueError, SyntaxError, KeyError, TypeError, OverflowError),
        *(RecursionError, MemoryError),
    ) as wrong:
        raise UsageError(f"not an array that can be sent: {wrong}") from None


def forward_argv(access: Access, model: Served, port: int) -> list[str]:
    """Return the ssh command that forwards a port of this machine to the model until it ends.

    Raise ClusterctlError if the port of this machine cannot be used: ssh's exit status would then
    mean that the node cannot be reached.
    """
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError as error:
            raise ClusterctlError(
                f"port {port} of this machine cannot be used: {error.strerror}",
                "pass another port: --forward PORT",
            ) from None
    return [
        *("ssh", "-F", str(access.folder.ssh_config), "-N", "-o", "ExitOnForwardFailure=yes"),
        *("-L", f"127.0.0.1:{port}:127.0.0.1:{model.port}", model.target.host),
    ]


def _put_libraries(access: Access, target: Target) -> None:
    """Put the server, uvicorn and starlette into a folder of their own on the node, unless they are
    there. pip on this machine downloads the packages. Raise MissingTool, HostError."""
    there = f'"$HOME"/{LIBRARIES}'
    if access.connections.run(target, f"[ -d {there} ]", timeout_s=TIMEOUT_S).ok:
        return
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        archive.add(libraries_here(access.folder.home / "cache"), ".")
        info = tarfile.TarInfo("serve.py")
        info.size = len(SERVER.encode())
        archive.addfile(info, io.BytesIO(SERVER.encode()))
    # Unpack into a folder with the shell's pid in its name, then rename it: two commands may do
    # this at the same time, and the second rename fails without harm.
    command = (
        f"draft={there}.$$ && mkdir -p $draft && tar -xzf - -C $draft --no-same-owner && "
        f"{{ mv -T $draft {there} 2>/dev/null || rm -rf $draft; }}"
    )
    result = access.connections.run(
        target, f"sh -c {shlex.quote(command)}", stdin=content.getvalue(), timeout_s=TIMEOUT_S
    )
    if not result.ok:
        output = last_line(result.stderr)
        raise CommandFailed(target.host, f"the server's libraries cannot be put there: {output}")


def libraries_here(cache: Path) -> Path:
    """Return the cache's folder with the packages; pip downloads them the first time.

    Raise MissingTool, ClusterctlError.
    """
    place = cache / f"serving-{_digest(*PACKAGES)}"
    if place.is_dir():
        return place
    draft = place.with_name(f"{place.name}.{os.getpid()}")
    argv = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps"),
        *("--disable-pip-version-check", "--no-compile", "--only-binary", ":all:"),
        *("--python-version", "3.9", "--target", str(draft), *PACKAGES),
    ]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_WITHIN_S,
            check=False,
        )
        if done.returncode:
            raise MissingTool(
                f"the server's libraries cannot be had: pip: {last_line(done.stderr)}",
                f"put them there yourself: {shlex.join([*argv[: -len(PACKAGES) - 1], str(place)])} "
                + " ".join(PACKAGES),
            )
        draft.rename(place)
    except subprocess.TimeoutExpired:
        raise MissingTool(
            f"pip did not download the server's libraries within {DOWNLOAD_WITHIN_S:g} s",
            "try again where there is a package index",
        ) from None
    except OSError as error:
        # If the folder exists, another process has been faster.
        if not place.is_dir():
            raise ClusterctlError(f"{error.filename}: {error.strerror}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place
