"""`clusterctl serve NAME MODEL_DIR`: serve a model on a node with TensorFlow Serving's REST API.

`clusterctl predict NAME FILE` queries it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.app_context import AppContext, cluster_command
from clusterctl.cli.params import Index, NodePath, SelectionOption, credentials_option, json_option
from clusterctl.cli.ssh import run_in_foreground
from clusterctl.domain.errors import ClusterctlError, HostError, NotFound, UsageError
from clusterctl.domain.results import HostOutcome, status_of
from clusterctl.domain.units import format_duration
from clusterctl.node.record import RecordError, from_json

if TYPE_CHECKING:
    from clusterctl.copy.report import TransferReport
    from clusterctl.copy.request import CopyRequest
    from clusterctl.node.jobs.spec import JobRecord
    from clusterctl.operations.access import Access
    from clusterctl.operations.serving import Served, ServeRequest
    from clusterctl.transport.dial import Target

model_option = click.option(
    "--model", metavar="NAME", help="The model's name; left out: its folder's, or the only one."
)


@cluster_command()
@click.argument("model_dir", type=NodePath(), required=False, metavar="[MODEL_DIR]")
@model_option
@click.option(
    "--node",
    type=Index(),
    default=0,
    cls=SelectionOption,
    help="This node; left out: the head node.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="On the node; left out: the first from 8501 that no model there has.",
)
@click.option(
    "--public", is_flag=True, help="Listen on all addresses of the node, not only its loopback."
)
@click.option("--status", "show_status", is_flag=True, help="What is served, and its state.")
@click.option("--stop", "end", is_flag=True, help="End it.")
@click.option(
    "--forward",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Pass this port here on to it, until Ctrl-C.",
)
@credentials_option(
    "For s3://: the nodes' instance profile's; mine: this machine's; none: a public bucket."
)
@json_option("Serving")
def serve(
    app: AppContext,
    name: str,
    model_dir: str | None,
    model: str | None,
    node: int,
    port: int | None,
    public: bool,
    show_status: bool,
    end: bool,
    forward: int | None,
    credentials: str,
    as_json: bool,
) -> int:
    """Serve the SavedModel in MODEL_DIR on the head node of cluster NAME, as TensorFlow Serving
    does: /v1/models/MODEL:predict.

    \b
    clusterctl serve demo '~/models/cifar10'
    clusterctl predict demo images.npy
    clusterctl serve demo --status
    clusterctl serve demo --forward 8501
    clusterctl serve demo --stop

    MODEL_DIR is a folder of the node, quoted, s3://BUCKET/PREFIX, or a folder here. It goes on
    when this machine is switched off, and counts as activity: idle limits do not end the node.
    """
    from clusterctl.jobs.detached import list_jobs
    from clusterctl.operations.serving import ServeRequest, find_served, forward_argv, model_name

    requested = [show_status, end, forward is not None, model_dir is not None]
    if sum(requested) != 1:
        raise UsageError(
            "give exactly one of MODEL_DIR, --status, --stop and --forward PORT",
            f"for example: clusterctl serve {name} --status",
        )
    with app.open(name) as access:
        if model_dir is not None:
            named = model_name(model, model_dir)
            request = ServeRequest(model_dir, named, node, port, public)
            return _start(app, access, request, credentials, as_json)
        if show_status:
            return _status(access, list_jobs(access.connections, access.head), model, as_json)
        if forward is None:
            return _stop(access, model, as_json)
        one = find_served(access, model)
        argv = forward_argv(access, one, forward)
        output.note(f"http://127.0.0.1:{forward}/v1/models/{one.model} until Ctrl-C")
    return run_in_foreground(argv)


def _stop(access: Access, model: str | None, as_json: bool) -> int:
    """End a model. Without its name, none to end is no error."""
    from clusterctl.operations.serving import find_served, stop_serving

    try:
        one = find_served(access, model)
    except NotFound:
        if model:
            raise
        if as_json:
            output.data(None)
        output.note("no model is served")
        return 0
    stop_serving(access, one)
    if as_json:
        output.data(one)
    output.note(f"model {one.model} on {one.target.host} has ended")
    return 0


def _start(
    app: AppContext, access: Access, model: ServeRequest, credentials: str, as_json: bool
) -> int:
    from clusterctl.cli.copy.options import CopyOptions
    from clusterctl.cli.copy.view import copy_for_job
    from clusterctl.operations.serving import start_serving

    options = CopyOptions(credentials=credentials, quiet=as_json)

    def upload(request: CopyRequest, target: Target) -> TransferReport:
        return copy_for_job(app, access, (target,), request, options)

    one, ready = start_serving(access, model, upload)
    name, host = access.cluster.name, one.target.host
    if as_json:
        output.data(replace(one, state=AVAILABLE, version=str(ready.version)))
    where = f"port {one.port}, /v1/models/{one.model}"
    output.note(f"model {one.model}, version {ready.version}, is served on {host} ({where})")
    if model.public:
        output.note(
            f"it listens on all addresses of {host}, port {one.port}, without a password or TLS: "
            "the cluster's nodes can ask it, and whoever else its security group lets in"
        )
    output.note(f"  ask it:  clusterctl predict {name} FILE.json --model {one.model}")
    output.note(f"  end it:  clusterctl serve {name} --stop --model {one.model}")
    busy = dict.fromkeys((host, access.head_name))
    counts, them = ("counts", "it") if len(busy) == 1 else ("count", "them")
    output.note(f"until then {' and '.join(busy)} {counts} as busy: no idle limit ends {them}")
    return 0


def _status(access: Access, jobs: list[JobRecord], model: str | None, as_json: bool) -> int:
    """Print the served models, or only `model`, and the nodes that did not answer.

    Return 255 if there are such nodes, 1 if one failed or a model is not available, else 0. Raise
    NotFound if `model` is not served and did not fail.
    """
    from clusterctl.operations.serving import gone_models, none_served, served

    rows, found = [], []
    silent: dict[str, HostOutcome[Served]] = {}
    gone = [one for one in gone_models(jobs) if model in (None, one.model)]
    for one in served(access, jobs):
        if model not in (None, one.model):
            continue
        try:
            state, version = _state(access, one)
        except HostError as error:
            silent[error.host] = HostOutcome(error.host, error=error)
            state, version = "SILENT", "-"
        found.append(replace(one, state=state, version=version))
        lasted = format_duration(one.job.duration_s)
        where = f"{'*' if one.public else '127.0.0.1'}:{one.port}"
        rows.append((one.model, version, state, one.target.host, where, lasted, one.folder))
    found += gone
    if model and not found:
        raise none_served(access, model)
    if as_json:
        output.data(found)
    elif rows:
        output.table(("MODEL", "VERSION", "STATE", "NODE", "LISTENS", "LASTED", "FOLDER"), rows)
    else:
        output.note(f"no model {model} is served" if model else "no model is served")
    for one in gone:
        ago = format_duration(one.job.now - one.job.ended_at.timestamp())
        output.note(f"model {one.model} ended on {one.host} {ago} ago: its job failed")
        output.note(f"  its log:  clusterctl logs {access.cluster.name} {one.job_id}")
    hostlines.show_failures(tuple(silent.values()))
    return status_of(silent.values(), any(one.state != AVAILABLE for one in found))


AVAILABLE = "AVAILABLE"
# What is read of TensorFlow Serving's answer. The names are its own.


@dataclass(frozen=True)
class _Version:
    state: str
    version: str


@dataclass(frozen=True)
class _Versions:
    model_version_status: tuple[_Version, ...]


def _state(access: Access, one: Served) -> tuple[str, str]:
    """Return state and version of a model, as its server reports them. Raise HostError.

    A server that does not answer is LOADING in its first minute, and SILENT after that.
    """
    from clusterctl.operations.serving import NoAnswer, ask

    try:
        answer = ask(access, one)
        versions = from_json(_Versions, answer.body).model_version_status
    except (NoAnswer, RecordError):
        versions = ()
    if not versions:
        return "LOADING" if one.job.duration_s < 60 else "SILENT", "-"
    found = next((each for each in versions if each.state == AVAILABLE), versions[0])
    return found.state, found.version


@cluster_command()
@click.argument("file", metavar="FILE")
@model_option
@click.option(
    "--version",
    type=click.IntRange(0),
    metavar="N",
    help="This version, which has to be the one served.",
)
def predict(app: AppContext, name: str, file: str, model: str | None, version: int | None) -> int:
    """Send FILE to the model that cluster NAME serves, and print its answer.

    \b
    clusterctl predict demo request.json
    clusterctl predict demo images.npy
    echo '[[1, 2, 3]]' | clusterctl predict demo -

    FILE is a request as TensorFlow Serving takes it ({"instances": ...} or {"inputs": ...}), a bare
    list of instances, or an array (.npy). It goes through SSH. The exit status is 1 when the model
    refuses it.
    """
    from clusterctl.operations.serving import ask, find_served, request_of

    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    body = request_of(content, is_npy=file.endswith(".npy"))
    with app.open(name) as access:
        one = find_served(access, model)
        answer = ask(access, one, ":predict", body, version)
    if answer.error:
        raise ClusterctlError(
            f"model {one.model} on {one.target.host} refuses it ({answer.status}): {answer.error}"
        )
    output.raw(answer.body.rstrip(b"\n") + b"\n")
    return 0
