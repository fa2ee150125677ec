"""`fetch`: download a job's record, and the files that it wrote, into a folder of this machine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, count
from pathlib import Path
from typing import TypeVar

from clusterctl.copy.request import CopyRequest
from clusterctl.domain.cluster import Cluster
from clusterctl.domain.errors import ClusterctlError, CommandFailed, HostError, UsageError
from clusterctl.domain.files import Lock, file_lock
from clusterctl.domain.results import last_line, worst
from clusterctl.jobs.detached import JOBS, find_job
from clusterctl.node.jobs import written
from clusterctl.node.jobs.spec import JobRecord
from clusterctl.node.jobs.written import (
    CHECKPOINTS,
    OutputFiles,
    OutputFolder,
    Trees,
    find_output,
    list_trees,
    note_fetched,
)
from clusterctl.node.record import RecordError, from_json, to_data
from clusterctl.node.relay.scan import is_own
from clusterctl.operations.access import Access
from clusterctl.operations.copy import Watch, copy_here
from clusterctl.operations.losses import LOOKING, FetchedCopy, note_copy, trees_on
from clusterctl.transport.call import NodeCall, call
from clusterctl.transport.connections import read_data
from clusterctl.transport.dial import Target

R = TypeVar("R")
LIST_TIMEOUT_S = 3600.0  # for a listing of millions of files on a disk that is slow
RECORD = "record.json"
FETCH = "that job's: clusterctl fetch {} {}"
# The folder for what is known of a job's fetch until it is complete.
STARTED = ".fetch-{}-fetching"


class Scope(Enum):
    """What `fetch` copies: the job's record, or also all that the job wrote. VERIFIED reads all
    files again at the end, on both sides."""

    RECORD = "record"
    ALL = "all"
    VERIFIED = "verified"


@dataclass(frozen=True)
class Output:
    """What a job wrote into one folder of a node. `name` is the folder's, if it is fetched as a
    whole; empty if only its files are."""

    target: Target
    name: str
    found: OutputFiles

    @property
    def id(self) -> tuple[Target, str]:
        return self.target, self.found.path


@dataclass(frozen=True)
class Part:
    """Files in one folder of a node, as paths below `source`, and the folder here for them."""

    target: Target
    source: str
    place: Path
    names: tuple[str, ...]

    @property
    def here(self) -> Sequence[Path]:
        """The paths of the files on this machine."""
        return [self.place / name for name in self.names]

    def tops(self, root: Path) -> set[str]:
        """Return the names in `root` that the files are, or are below."""
        below = self.place.relative_to(root).parts
        return {below[0]} if below else {name.partition("/")[0] for name in self.names}


@dataclass(frozen=True)
class Fetched:
    """The number of files that the job wrote, and their bytes. `gone` are the files, as paths
    below the folder here, in or below what an earlier fetch has brought that are not on the nodes;
    some may be the user's. `empty` is the folder of `train --output` if nothing is in it, or there
    is none. `lost` are the hosts of ranks that are no nodes of the cluster any more: what they may
    have written cannot be had. `taken` are the log folders that another training has written into
    since, by that job's ID: nothing of these came. `names` are the job's files and folders in the
    folder here. `unrecorded` is why the head node could not record the fetch, as on a full disk:
    then `down` does not know of it."""

    files: int = 0
    size_bytes: int = 0
    gone: tuple[str, ...] = ()
    empty: str = ""
    lost: tuple[str, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    unrecorded: str = ""


def fetch(
    access: Access,
    job_id: str,
    place: Path,
    watch: Watch = lambda progress: None,
    approve: Callable[[int], None] = lambda size: None,
    scope: Scope = Scope.ALL,
) -> Fetched:
    """Fetch a job's record and what the job wrote into `place`: only complete files.

    The log and the other files of the record come first, and record.json last: then all is here.
    Until then it is in a folder of its own, that of an earlier fetch as well. It may be run again:
    what is here already is not copied again. Then contents are compared, since a file that was
    written over may have its size and its time of before. Nothing else is deleted here.

    `approve` gets the bytes of all files, and raises to refuse. Raises UsageError if `place` holds
    another job's files or the user's own, or this user may not write there, HostError if the head
    node does not answer, ClusterctlError if a write fails, and, after all else has come, if
    something cannot be read, a copy failed, or one differs.
    """
    job = find_job(access.connections, access.head, job_id, access.cluster.name)
    check_place(place, job_id)
    problems: list[ClusterctlError] = []
    taken: dict[str, str] = {}
    outputs = [] if scope is Scope.RECORD else _outputs(access, job, problems, taken)
    size = sum(one.found.bytes for one in outputs)
    approve(size)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with locked_staging_folder(place, job_id) as (draft, was_started):
            fetching = _begin(access, job, place, draft, was_started, outputs)
            _note_here(access, place, outputs, started=True)
            broken: set[tuple[Target, str]] = set()
            for part in fetching.parts:
                is_verified = scope is Scope.VERIFIED
                problem = _copy_part(access, part, watch, fetching.is_again, is_verified)
                if problem:
                    problems.append(problem)
                    broken.add((part.target, part.source))
            if any(one.found.kind == CHECKPOINTS for one in outputs):
                trees: tuple[OutputFolder, ...] = ()
                try:
                    trees = _trees(access, job)
                except CommandFailed as error:  # such as of a job that `clean-logs` has removed
                    hint = f"if `clusterctl jobs {access.cluster.name}` has it, run it again"
                    hint += f"; if not, {place / STARTED.format(job_id)} has its record, for you"
                    problems.append(ClusterctlError(error.message, hint))
                for path, other in _taken(trees, job).items():
                    text = f"job {other} writes into {path}: some may be of that job"
                    problems.append(ClusterctlError(text, FETCH.format(access.cluster.name, other)))
                    # Each job may name the folder by another path.
                    broken.update(one.id for one in outputs if one.found.kind == CHECKPOINTS)
            whole = [one for one in outputs if one.found.files and one.id not in broken]
            unrecorded = _note(access, job_id, place, whole)
            if problems:
                raise _incomplete(job_id, place, problems)
            started = place / STARTED.format(job_id)
            (started / RECORD).replace(place / RECORD)
            shutil.rmtree(started, ignore_errors=True)
    except OSError as error:
        raise ClusterctlError(
            f"cannot write {error.filename or place}: {error.strerror}",
            "make room there, or make it writable, and run it again: it goes on from there",
        ) from None
    except tarfile.TarError as error:
        why = f"the archive of job {job_id} cannot be read: {error}"
        raise CommandFailed(access.head.host, why) from error
    named = job.spec.output
    paths = (f"{one.found.path}/{name}" for one in outputs for name in one.found.names)
    is_record = scope is Scope.RECORD
    is_empty = not (is_record or any(path.startswith(f"{named}/") for path in paths))
    lost = () if is_record else gone_hosts(access.cluster, job)
    files = sum(one.found.files for one in outputs)
    return Fetched(
        files, size, fetching.gone, named * is_empty, lost, taken, fetching.names, unrecorded
    )


@dataclass(frozen=True)
class _Fetching:
    """A fetch whose record is here. `parts` are to be copied; for the others see Fetched.
    `is_again`: an earlier fetch has brought everything."""

    parts: Sequence[Part]
    is_again: bool
    gone: tuple[str, ...]
    names: tuple[str, ...]


def _begin(
    access: Access,
    job: JobRecord,
    place: Path,
    draft: Path,
    was_started: bool,
    outputs: Sequence[Output],
) -> _Fetching:
    """Fetch the files of the record into `place`, and record what is fetched there, as fetching."""
    record, started = place / RECORD, place / STARTED.format(job.job_id)
    earlier = started / "earlier"  # the record of the last fetch that brought everything
    is_again = record.exists() or earlier.exists()
    _unpack(access, job.job_id, draft)
    kept = [path.name for path in draft.iterdir()]
    hosts = [target.host for target in access.all_targets]
    parts = plan_parts(place, [*kept, RECORD], access.head_name, hosts, outputs)
    fetched = {name for part in parts for name in part.tops(place)}
    gone: tuple[str, ...] = ()
    if is_again or was_started:
        for one in (record, earlier, started / RECORD):
            fetched |= {*_read_record(one).fetched} if one.exists() else set()
        gone = _gone(place, fetched, parts)
    else:
        _check_free(place, kept)
        here = (part.here if part.place == place else [part.place] for part in parts)
        _check_free(place, (os.path.relpath(one, place) for some in here for one in some))
    data = {"cluster": access.cluster.name, **to_data(job.report())}
    if job.spec.code:
        data["code"] = job.spec.code
    data["fetched"] = sorted(fetched)
    (draft / RECORD).write_text(json.dumps(data, indent=1) + "\n")
    started.mkdir(exist_ok=True)
    (draft / RECORD).replace(started / RECORD)
    if record.exists():
        record.replace(earlier)
    for name in kept:
        (draft / name).replace(place / name)
    return _Fetching(parts, is_again, gone, tuple(sorted({*fetched, *kept, RECORD})))


def gone_hosts(cluster: Cluster, job: JobRecord) -> tuple[str, ...]:
    """Return the hosts with ranks of a user's program whose machines are not in the cluster any
    more; another may have such a host's name and address now. The trainer writes on the head
    node."""
    there = {node.instance_id for node in cluster.nodes}
    is_program = job.spec.is_training and not job.spec.log_dir
    gone = [str(node["name"]) for node in job.spec.nodes if node["instance_id"] not in there]
    # Of a machine that the job did not begin on only the address is known.
    known = {*(node["name"] for node in job.spec.nodes), *(one.private_ip for one in cluster.nodes)}
    gone += [one for one in job.status.ran_on if one not in known]
    return tuple(sorted(gone)) if is_program else ()


def _note(access: Access, job_id: str, place: Path, whole: Sequence[Output]) -> str:
    """Record on the head node that these files were fetched, and here into which folder. Return why
    the head node could not; empty if it did."""
    noted: dict[str, dict[str, str]] = {}
    for one in whole:
        noted.setdefault(one.target.host, {})[one.found.path] = one.found.digest
    if noted:
        _note_here(access, place, whole)
        try:
            _call(access, access.head, note_fetched, written.FetchedOutput(job_id, noted))
        except CommandFailed as error:
            return error.message
    return ""


def _note_here(
    access: Access, place: Path, outputs: Sequence[Output], started: bool = False
) -> None:
    digests = tuple(one.found.digest for one in outputs if one.found.files)
    # Without it `down` does not notice that this copy was deleted, as with another machine's.
    with suppress(OSError):
        if digests:
            note_copy(access.folder, FetchedCopy(str(place.absolute()), digests, started))


def _incomplete(job_id: str, place: Path, problems: Sequence[ClusterctlError]) -> ClusterctlError:
    """Return the error for a job of which not all has come."""
    reasons = "; ".join(dict.fromkeys(one.message for one in problems))
    hint = next((one.hint for one in problems if one.hint), "run it again: it goes on from there")
    error = ClusterctlError(f"not all of job {job_id} is in {place}: {reasons}", hint)
    error.exit_status = worst(one.exit_status for one in problems)
    return error


def _copy_part(
    access: Access, part: Part, watch: Watch, checksum: bool, verify: bool
) -> ClusterctlError | None:
    """Copy a part. Return why not all of it has come, or differs; None if it is here."""
    names = tuple(map(os.fsencode, part.names))
    index = next(n.index for n in access.cluster.nodes if n.name == part.target.host)
    request = CopyRequest(
        *((part.source,), str(part.place.absolute()), index),
        names=names,
        checksum=checksum,
        verify=verify,
    )
    try:
        problem = copy_here(access, part.target, request, watch=watch).problem
    except ClusterctlError as error:
        problem = error
    if problem:
        problem.message = f"{part.source} on {part.target.host}: {problem.message}"
    return problem


def _gone(place: Path, fetched: Iterable[str], parts: Sequence[Part]) -> tuple[str, ...]:
    """Return the files in or below what any fetch has brought that none of the parts has, without
    those of an interrupted copy."""
    known = {path for part in parts for path in part.here}
    tops = [place / name for name in fetched]
    found = {path for top in tops for path in (top, *top.rglob("*")) if path.is_file()}
    names = (os.path.relpath(path, place) for path in found - known)
    return tuple(sorted(name for name in names if not is_own(os.fsencode(name))))


def _trees(access: Access, job: JobRecord) -> tuple[OutputFolder, ...]:
    return _call(access, access.head, list_trees, job.job_id)


def _taken(trees: Sequence[OutputFolder], job: JobRecord) -> dict[str, str]:
    """Return the folders among the job's that are another job's by now, with that job's ID."""
    return {one.path: one.job for one in trees if one.job != job.job_id}


def _outputs(
    access: Access, job: JobRecord, problems: list[ClusterctlError], taken: dict[str, str]
) -> list[Output]:
    """Return what the job has written on all nodes where it may have. Add to `problems` what of it
    is not known, and to `taken` what is another job's by now. Raises HostError if the head node
    does not answer."""
    trees: tuple[OutputFolder, ...] = ()
    try:
        if job.spec.model_dir is not None and not job.is_active:
            _collect(access, job)
    except CommandFailed as error:  # then each node still has its part
        problems.append(error)
    try:
        trees = _trees(access, job)
    except CommandFailed as error:
        problems.append(error)
    taken.update(_taken(trees, job))
    trees = tuple(one for one in trees if one.job == job.job_id)
    outputs: list[Output] = []
    for target in access.all_targets:
        here = trees if target == access.head else trees_on(access, target, trees)
        try:
            found = _call(access, target, find_output, Trees(here, named=True)) if here else ()
        except HostError as error:
            problems.append(error)
            continue
        for one, tree in ((one, tree) for one in found for tree in here):
            if one.path == tree.path:
                outputs.append(Output(target, Path(one.path).name if tree.is_whole else "", one))
        unread = [text for one in found for text in one.unread]
        if unread:
            text = f"cannot read on {target.host}: {'; '.join(unread)}"
            problems.append(ClusterctlError(text, "make it readable there, and run it again"))
    return outputs


def _call(access: Access, target: Target, function: Callable[..., R], request: object) -> R:
    node_call = NodeCall(function, request, LOOKING, LIST_TIMEOUT_S)
    return call(access.connections, target, node_call)


def plan_parts(
    place: Path,
    records: Collection[str],
    head: str,
    hosts: Collection[str],
    outputs: Sequence[Output],
) -> list[Part]:
    """Return where what a job wrote goes: no two files share a path, and none is below another.

    That of the head node goes into `place`, next to the files `records`; that of another of `hosts`
    below its name. What has a name that is taken goes below the node's name instead, or, if that is
    taken, too, below that name with a number (`demo-0.2`).
    """
    taken: dict[str, set[str]] = {head: {*records}}
    roots = {head: place}
    for host in hosts:
        if host != head:
            roots[host] = place / _free(host, taken[head])
            taken[head].add(roots[host].name)
            taken[host] = set()
    parts: list[Part] = []
    # Folders come first: they cannot be split.
    for output in sorted(outputs, key=lambda one: not one.name):
        host, found = output.target.host, output.found
        used = taken[host]
        below = _free(host, used.union(*(_tops(one) for one in outputs if one.target.host == host)))
        clash = _tops(output) & used
        used |= {*_tops(output), below} if clash else _tops(output)
        for top, is_taken in ((roots[host], False), (roots[host] / below, True)):
            names = tuple(name for name in found.names if (_top(output, name) in clash) is is_taken)
            if names:
                parts.append(Part(output.target, found.path, top / output.name, names))
    return parts


def _top(output: Output, name: str) -> str:
    return output.name or name.partition("/")[0]


def _tops(output: Output) -> set[str]:
    return {_top(output, name) for name in output.found.names}


def _free(name: str, taken: Collection[str]) -> str:
    """Return the name, or the first of `name.2`, `name.3`, … that is not taken."""
    return next(one for one in chain([name], (f"{name}.{n}" for n in count(2))) if one not in taken)


@dataclass(frozen=True)
class _FolderRecord:
    """What a fetch reads of a folder's record of a job. `fetched` are the names in the folder of
    what fetches have brought."""

    job_id: str | None = None
    fetched: tuple[str, ...] = ()


def _read_record(record: Path) -> _FolderRecord:
    """Return a folder's record; one without a job if it is no job's. Raise OSError."""
    try:
        return from_json(_FolderRecord, record.read_bytes())
    except RecordError:
        return _FolderRecord()


def check_place(place: Path, job_id: str = "") -> None:
    """Raise UsageError if job `job_id`, or a new one, cannot be fetched into `place`: it holds
    another job's files, or is none of the user's folders."""
    if place.parts and place.parts[0].endswith(":"):  # Path("s3://bucket/x") is `s3:/bucket/x`
        raise UsageError(f"{place} is a URL, not a folder here", "name a folder of this machine")
    record = place / RECORD
    try:
        other = _read_record(record).job_id if record.exists() else job_id
        if other != job_id:
            holds = f"job {other}" if other else f"a {RECORD} that is no job's"
            raise UsageError(f"{place} holds {holds}", "name another folder")
        for part in place.glob(STARTED.format("*")):
            if part.name != STARTED.format(job_id):
                job = part.name.removeprefix(".fetch-").removesuffix("-fetching")
                raise UsageError(f"{place} holds a part of job {job}", "name another folder")
    except OSError as error:
        raise UsageError(f"cannot read {place}: {error.strerror}", "name another folder") from None
    if not can_write(place):
        raise UsageError(f"cannot write to {place}", "name another folder")


def can_write(place: Path) -> bool:
    """Return whether this user may write into the folder, or make it."""
    try:
        there = next(path for path in (place, *place.absolute().parents) if os.path.lexists(path))
        return there.is_dir() and os.access(there, os.W_OK)
    except OSError:  # such as that of a file system that is gone
        return False


def _check_free(place: Path, names: Iterable[str]) -> None:
    """Raise UsageError if something of one of these names is in `place`."""
    for name in names:
        if os.path.lexists(place / name):
            raise UsageError(f"{place} has its own file {name}", "name another folder")


@contextmanager
def locked_staging_folder(place: Path, job_id: str) -> Iterator[tuple[Path, bool]]:
    """Make a temporary folder in `place` for one fetch, and remove it after the block.

    Yield the folder, and whether an interrupted fetch of the same job left a folder behind: then
    files in `place` may come from that fetch. Fetches into one place wait for each other. Raise
    OSError.
    """
    # When a job fails, `train` and a `logs -f` of the same job fetch it at the same moment.
    with file_lock(place, waits=True) as lock:
        left = [*place.glob(f".fetch-{job_id}-*")]
        with tempfile.TemporaryDirectory(prefix=f".fetch-{job_id}-", dir=place) as draft:
            yield Path(draft), bool(left)
            # Without the lock they stay: a running fetch may own them.
            for folder in left if lock is Lock.HELD else ():
                shutil.rmtree(folder, ignore_errors=True)


def _unpack(access: Access, job_id: str, folder: Path) -> None:
    """Unpack the archive that `pack` of node/jobs/jobs.py writes into `folder`.

    Raise CommandFailed if the archive is incomplete.
    """
    with tempfile.TemporaryFile(dir=folder) as archive:
        command = f"exec {JOBS.command('pack', job_id)}"
        result = read_data(
            access.connections, access.head, command, archive.write, stdin=JOBS.stdin()
        )
        if not result.ok:
            why = result.stderr.strip()
            raise CommandFailed(result.host, f"job {job_id} could not be packed: {why}")
        archive.seek(0)
        with tarfile.open(fileobj=archive, mode="r:") as files:
            for entry in files:
                content = files.extractfile(entry)
                path = Path(entry.name)
                # Skip names that lead outside the folder.
                if content and not path.is_absolute() and ".." not in path.parts:
                    (folder / path).parent.mkdir(parents=True, exist_ok=True)
                    with (folder / path).open("wb") as file:
                        shutil.copyfileobj(content, file)


def _collect(access: Access, job: JobRecord) -> None:
    """Collect a script-mode job's model on the head node if the job's end did not: the job was
    cancelled, or the disk was full. Raise CommandFailed."""
    folder = f'"$HOME"/.clusterctl/jobs/{job.job_id}'
    # A machine in the place of a lost one may have run the job, too: it is asked.
    there = {node.private_ip for node in access.cluster.nodes}
    addresses = {node["name"]: node["address"] for node in job.spec.nodes}
    gone = [one for one in gone_hosts(access.cluster, job) if addresses.get(one) not in there]
    program = f"{folder}/collect.py {folder} fetch {shlex.join(gone)}"
    command = f"[ -e {folder}/manifest.json ] || exec python3 -ISu {program}"
    result = access.connections.run(access.head, command)
    if not result.ok:
        raise CommandFailed(result.host, last_line(result.stderr))
