"""clusterctl from Python: its commands as functions that return values (docs/python.md)."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from fabric import Connection

from clusterctl.bench.plan import BenchSettings, parse_sizes
from clusterctl.bench.results import Benchmark
from clusterctl.cli.app_context import AppContext
from clusterctl.cli.cluster import check_removal, launch_request
from clusterctl.cli.copy.options import CopyOptions, request_of, url_access
from clusterctl.cli.launching import layers, waiting_of
from clusterctl.cli.main import cli
from clusterctl.config import AccountOptions, load_settings, settings_of
from clusterctl.configuration.options import SpecDraft
from clusterctl.copy.report import TransferReport
from clusterctl.diagnosis.verdict import Diagnosis
from clusterctl.diagnosis.verdict import diagnose as conclude
from clusterctl.domain.cluster import Cluster
from clusterctl.domain.errors import UsageError
from clusterctl.domain.ranges import other_cluster, parse_nodes
from clusterctl.domain.results import CommandResult, FanoutResult
from clusterctl.ec2.money.prices import find_prices, list_prices
from clusterctl.jobs.mpirun import Variable, parse_variable
from clusterctl.jobs.plan import JobRequest
from clusterctl.node.jobs.spec import JobRecord
from clusterctl.operations import bench as benchmarks
from clusterctl.operations import down as removal
from clusterctl.operations import logs as job_logs
from clusterctl.operations.copy import CopyTerms, copy_to_cluster
from clusterctl.operations.diagnose import collect
from clusterctl.operations.fetch import Fetched, Scope
from clusterctl.operations.fetch import fetch as fetch_job
from clusterctl.operations.launcher import Launcher
from clusterctl.operations.site import NotLaunchedHere
from clusterctl.operations.train import Retries, machines_of, plan_training, start_training
from clusterctl.operations.up import UpReport
from clusterctl.operations.up import up as launch
from clusterctl.transport.fabric import VerifiedConnection

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "BenchSettings",
    "CopyOptions",
    "JobRequest",
    "Variable",
    "bench",
    "connect",
    "copy",
    "diagnose",
    "down",
    "fetch",
    "jobs",
    "logs",
    "run",
    "train",
    "up",
    "wait",
]


F = TypeVar("F", bound=Callable[..., Any])
# Surrogates that stand for no byte of a file's name.
_NO_TEXT = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def _checked(function: F) -> F:
    """Make a function refuse what is wrong in its arguments, before it does anything (`_check`)."""
    signature = inspect.signature(function)
    kinds = {**function.__annotations__, **AccountOptions.__annotations__}

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        for name in given.get("account", {}).keys() - AccountOptions.__annotations__.keys():
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
        command = cli.get_command(click.Context(cli), function.__name__)
        context = click.Context(command or cli)
        for name, value in {**given, **given.get("account", {})}.items():
            kind = getattr(kinds.get(name), "__forward_arg__", kinds.get(name))
            if name != "account" and kind:
                known = signature.parameters.get(name)
                default = known.default if known else None
                _check(f"{function.__name__}: {name}", value, kind, globals(), default, context)
        return function(*args, **kwargs)

    return cast("F", checked)


def _check(
    where: str,
    value: object,
    kind: str,
    names: Mapping[str, Any],
    default: object,
    context: click.Context | None,
) -> None:
    """Raise UsageError, with `where`, for a value that is not of the annotated type, for an empty
    word or selection whose default is not, and for what the command's option of that name refuses.

    So for the fields of a dataclass; for those in a tuple without `context`: of their types.
    """
    if not _fits(value, ast.parse(kind, mode="eval").body, names):
        raise UsageError(f"{where} is {kind}, not {value!r:.80}")
    if "bytes" not in kind and _has_zero(value):
        raise UsageError(f"{where} has a zero byte, which no command, path or name can have")
    parts = [(where, value, context)]
    if isinstance(value, tuple):
        parts = [(f"{where}[{at}]", one, None) for at, one in enumerate(value)]
    for place, part, options in parts:
        for field in fields(part) if is_dataclass(part) else ():
            bases = type(part).__mro__
            owner = next(one for one in bases if field.name in vars(one).get("__annotations__", {}))
            if not owner.__module__.startswith("clusterctl."):
                continue  # a field of a class derived from ours
            own, inner = vars(sys.modules[owner.__module__]), getattr(part, field.name)
            _check(f"{place}.{field.name}", inner, str(field.type), own, field.default, options)
    if context is None:
        return
    has_any = value.strip() if isinstance(value, str) else value
    if isinstance(value, Sequence) and not has_any and default not in ("", b"", ()):
        raise UsageError(f"{where} is empty", "was it computed, or read from what is not set?")
    name = re.split("[. ]", where)[-1]
    for option in context.command.params:
        is_one = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        if option.name == name and is_one:
            try:
                option.type.convert(value, None, context)
            except click.BadParameter as error:
                raise UsageError(f"{where}: {error.message}") from None


def _has_zero(value: object) -> bool:
    """Return whether a text has a zero byte, or one in a list or mapping of texts."""
    if isinstance(value, (str, Path)):
        return "\0" in str(value)
    if isinstance(value, Mapping):
        return any(map(_has_zero, value.items()))
    return isinstance(value, (list, tuple)) and any(map(_has_zero, value))


def _fits(value: object, kind: ast.AST, names: Mapping[str, Any]) -> bool:
    """Return whether a value is of an annotated type. A string is no Sequence."""
    if isinstance(kind, ast.BinOp):
        return _fits(value, kind.left, names) or _fits(value, kind.right, names)
    if isinstance(kind, ast.Constant):
        return value is None
    if isinstance(kind, ast.Subscript):
        outer = ast.unparse(kind.value)
        if outer == "Mapping":
            return isinstance(value, Mapping)
        if isinstance(value, (str, bytes)) or not isinstance(value, _named(outer, names)):
            return False
        item = kind.slice.elts[0] if isinstance(kind.slice, ast.Tuple) else kind.slice
        return all(_fits(one, item, names) for one in cast("Sequence[object]", value))
    name = ast.unparse(kind)
    if isinstance(value, bool) or name == "bool":
        return isinstance(value, bool) and name == "bool"
    if name == "float":
        return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
    if name == "str" and isinstance(value, str) and _NO_TEXT.search(value):
        return False
    return isinstance(value, _named(name, names))


def _named(name: str, names: Mapping[str, Any]) -> Any:
    return getattr(builtins, name, None) or names[name]


def _indices(cluster: str, nodes: int | str | Sequence[int | str] | None) -> tuple[int, ...] | None:
    """Return the indices of the nodes that are given as --nodes takes them. Raises UsageError."""
    if nodes is None:
        return None
    indices: list[int] = []
    for one in [nodes] if isinstance(nodes, (int, str)) else nodes:
        others, found = parse_nodes(str(one))
        for other in others - {cluster}:
            raise other_cluster(other, cluster)
        indices += found
    return tuple(dict.fromkeys(indices))


@_checked
def up(
    name: str, settings: Mapping[str, Any] | None = None, **account: Unpack[AccountOptions]
) -> UpReport:
    """Launch or complete cluster NAME, and wait until all its nodes are ready.

    `settings` are keys of clusterctl.yaml with their values, which come before those of the
    environment and of the file. Without prompts. Raises LaunchRefused, with its findings, if a
    check fails.
    """
    app = _app(name, account)
    draft = SpecDraft.of(name, *layers(app, name), settings_of(settings or {}))
    given = {"proxy_command": app.proxy_command, **waiting_of(draft)._asdict()}
    launcher = Launcher(app.clients, app.folder(name), **given)
    return launch(launcher, launch_request(draft, app.settings.lab))


@_checked
def run(
    name: str,
    command: str,
    *,
    nodes: int | str | Sequence[int | str] | None = None,
    timeout_s: float | None = None,
    stdin: bytes | str = b"",
    **account: Unpack[AccountOptions],
) -> FanoutResult[CommandResult]:
    """Run COMMAND on the nodes of cluster NAME in parallel.

    `nodes` is None for all, or what --nodes takes (`"0-3,5"`, `"demo-1"`), an index, or a list of
    these. `stdin` as a str is sent as UTF-8, a name of a file as its bytes. A status other than 0
    is a result, a node that was not reached is one of the `failures`. The first 16 MiB of a stream
    are kept; a result has `truncated` set if there was more.
    """
    indices = _indices(name, nodes)
    data = stdin.encode(errors="surrogateescape") if isinstance(stdin, str) else stdin
    with _app(name, account).open(name) as access:
        return access.connections.run_all(
            access.select(indices), command, timeout_s=timeout_s, stdin=data, as_user=True
        )


@_checked
def copy(
    name: str,
    sources: str | Path | Sequence[str | Path],
    destination: str,
    *,
    nodes: int | str | Sequence[int | str] | None = None,
    from_node: int | str | None = None,
    options: CopyOptions = CopyOptions(),  # noqa: B008 - frozen
    **account: Unpack[AccountOptions],
) -> TransferReport:
    """Copy SOURCES to DESTINATION on the nodes of cluster NAME, in about the time of one copy.

    SOURCES is one path or URL, or a list of them; `nodes` is as for `run`. `options` are those of
    the command. The report has each node's error, if there is one, and `ok`: whether all nodes have
    everything.
    """
    given = [sources] if isinstance(sources, (str, Path)) else sources
    words, indices = tuple(map(str, given)), _indices(name, nodes)
    [source] = _indices(name, from_node) or [None]
    app, request = _app(name, account), request_of(options, words, destination, source)
    urls = url_access(options, words, lambda: app.clients, app.settings.home)
    with app.open(name) as access:
        return copy_to_cluster(
            access,
            access.select(indices),
            request,
            watch=lambda progress: None,
            terms=CopyTerms(urls, options.fanout, options.timeout_s),
        )


@_checked
def train(
    name: str,
    request: JobRequest,
    *,
    queue: bool = False,
    retries: int = 0,
    min_gpus: int | None = None,
    **account: Unpack[AccountOptions],
) -> JobRecord:
    """Start a job on cluster NAME and return its record; `wait` waits for its end.

    With `queue` it runs after the jobs that are there. After a lost node it is started again up to
    `retries` times, with `min_gpus` at least. Raises NotReady, with its findings, JobRunning.
    """
    again = Retries(retries, min_gpus)
    again.check(request.ranks)
    app = _app(name, account)
    status = app.status(name)
    with app.access(status.cluster) as access:
        plan = plan_training(access, request)
        priced = (app.clients, status.instances)
        machines = machines_of(status.instances, find_prices(*priced), list_prices(*priced))
        started = start_training(
            access, plan, "queue" if queue else "refuse", machines=machines, retries=again
        )
        return job_logs.find(access, started.job.job_id)


@_checked
def jobs(name: str, **account: Unpack[AccountOptions]) -> list[JobRecord]:
    """Return the jobs of cluster NAME, oldest first."""
    with _app(name, account).open(name) as access:
        return [job_logs.with_reasons(access, job) for job in job_logs.jobs_of(access)]


@_checked
def wait(name: str, job_id: str | None = None, **account: Unpack[AccountOptions]) -> JobRecord:
    """Wait until the job, or the latest, has ended, and return its record.

    A job that failed is a record, too: see its `state` and `exit_status`.
    """
    with _app(name, account).open(name) as access:
        return job_logs.wait_for(access, job_logs.find(access, job_id, latest=True))


@_checked
def logs(
    name: str,
    job_id: str | None = None,
    *,
    rank: int | None = None,
    **account: Unpack[AccountOptions],
) -> str:
    """Return the log so far of the job, or of the latest one started; or what one rank wrote."""
    parts: list[bytes] = []
    with _app(name, account).open(name) as access:
        job = job_logs.find(access, job_id)
        if rank is not None:
            job_logs.check_rank(job, rank)
        job_logs.read_log(access, job, parts.append, rank)
    return b"".join(parts).decode(errors="replace")


@_checked
def fetch(
    name: str,
    folder: str | Path,
    job_id: str | None = None,
    *,
    verify: bool = False,
    **account: Unpack[AccountOptions],
) -> Fetched:
    """Copy what the job, or the latest, wrote into `folder` here, with its record and logs."""
    with _app(name, account).open(name) as access:
        job = job_logs.find(access, job_id)
        scope = Scope.VERIFIED if verify else Scope.ALL
        return fetch_job(access, job.job_id, Path(folder), scope=scope)


@_checked
def diagnose(name: str, job_id: str | None = None, **account: Unpack[AccountOptions]) -> Diagnosis:
    """Return why the job of cluster NAME is stuck or slow, or what shows that it is not."""
    with _app(name, account).open(name) as access:
        return conclude(collect(access, job_id))


@_checked
def bench(
    settings: BenchSettings,
    sizes: Sequence[int],
    folder: str | Path,
    *,
    repeats: int = 3,
    **account: Unpack[AccountOptions],
) -> Benchmark:
    """Measure how training scales over these numbers of GPUs, with each run kept in `folder`.

    Runs that the folder has are not made again.
    """
    settings.check_arguments()
    app, place = _app(settings.cluster, account), Path(folder)
    request = benchmarks.BenchRequest(
        settings,
        parse_sizes(",".join(map(str, sizes))),
        repeats,
        secrets.randbelow(2**32),
        tuple(parse_variable(text, os.environ) for text in settings.variables),
    )
    status = app.status(settings.cluster)
    with app.access(status.cluster) as access:
        plan = benchmarks.plan_benchmark(app.clients, status, access, request, place)
        for largest in plan.largest.values():
            largest.check()
        benchmarks.write_benchmark(place, plan.benchmark)
        watch = benchmarks.RunWatch(*[lambda *_: None] * 3)
        try:
            return benchmarks.run_benchmark(access, plan, request, place, watch)
        finally:
            if (place / benchmarks.RUNS).exists():
                benchmarks.write_report(place)


@_checked
def down(
    name: str,
    *,
    discard_results: bool = False,
    launched_elsewhere: bool = False,
    **account: Unpack[AccountOptions],
) -> removal.RemovedCluster:
    """Remove cluster NAME and all that was made for it, as `down --yes` does.

    Raises ResultsAtRisk, with its findings, if something would be lost (not with
    `discard_results`), and NotLaunchedHere if something was not made from this machine (not with
    `launched_elsewhere`).
    """
    app = _app(name, account)
    folder = app.folder(name)
    found = removal.find_removable(app.clients, folder, app.timeouts)
    if found.others and not launched_elsewhere:
        raise NotLaunchedHere(name, found.others)
    if not discard_results:
        check_removal(app, name, found, yes=True)
    return removal.down(app.clients, folder, None, app.timeouts, found.others)


@dataclass(frozen=True)
class ConnectedCluster:
    """A running cluster and a connection to each node in service, the head node first.

    As a context manager it closes all connections at the end.
    """

    cluster: Cluster
    connections: tuple[Connection, ...]

    def __enter__(self) -> ConnectedCluster:
        return self

    def __exit__(self, *exception: object) -> None:
        for connection in self.connections:
            connection.close()

    @property
    def head(self) -> Connection:
        return self.connections[0]

    @property
    def workers(self) -> tuple[Connection, ...]:
        return self.connections[1:]


@_checked
def connect(name: str, **account: Unpack[AccountOptions]) -> ConnectedCluster:
    """Return the running cluster NAME. A connection opens when it is first used.

    Raises ClusterctlError if there is no such cluster, if none of its nodes runs, or if its key is
    not on this machine.
    """
    with _app(name, account).open(name) as access:
        shared = (access.connections.identity, access.connections.host_keys)
        return ConnectedCluster(
            access.cluster, tuple(VerifiedConnection(target, *shared) for target in access.targets)
        )


def _app(name: str, account: AccountOptions) -> AppContext:
    return AppContext(load_settings(cluster=name, **account))
