"""`fetch`: download a job's record, and the files that it wrote, into a folder of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from clusterctl.copy.report import TransferReport
from clusterctl.copy.request import CopyRequest
from clusterctl.domain.errors import ClusterctlError
from clusterctl.node.jobs import written
from clusterctl.node.jobs.folder import METRICS
from clusterctl.node.jobs.jobs import COLLECTED, KEPT, MANIFEST
from clusterctl.node.jobs.spec import JobRecord
from clusterctl.node.jobs.written import OfJob, OutputFiles, Trees, list_trees, look, note_fetched
from clusterctl.operations.access import Access
from clusterctl.operations.copy import Watch, copy_here
from clusterctl.operations.logs import RECORD, check_free, check_place, collect, fetch
from clusterctl.operations.losses import LOOKING
from clusterctl.transport.call import call
from clusterctl.transport.target import Target

R = TypeVar("R")
LIST_TIMEOUT_S = 3600.0  # for a listing of millions of files on a disk that is slow
# Names of the record's files: a program's file of such a name comes under its node's name.
RECORDS = {*KEPT, RECORD, METRICS, "log", MANIFEST, *COLLECTED}


@dataclass(frozen=True)
class Part:
    """Files in one folder of a node, as paths below `source`, and the folder here for them."""

    target: Target
    source: str
    place: Path
    names: tuple[str, ...]
    size_bytes: int
    digest: str

    @property
    def here(self) -> Sequence[Path]:
        """The paths of the files on this machine."""
        return [self.place / name for name in self.names]


@dataclass(frozen=True)
class Fetched:
    """The number of files that the job wrote, their bytes, and the files, as paths below the
    folder here, that an earlier fetch has left and that are no longer on the nodes."""

    files: int = 0
    size_bytes: int = 0
    gone: tuple[str, ...] = ()


def fetch_all(
    access: Access,
    job: JobRecord,
    place: Path,
    watch: Watch = lambda progress: None,
    agree: Callable[[int], None] = lambda size: None,
    verify: bool = False,
) -> Fetched:
    """Download what a job wrote into `place`, then its record.

    It may be run again: what is here already is not copied again. Then contents are compared, since
    a file that was written over may have its size and its time of before. Nothing is deleted here.

    Files of the head node come into `place` itself, those of another node below its name. `agree`
    gets the bytes of all files, and raises to refuse. With `verify` all files are read again at the
    end, on both sides. Raises UsageError, HostError, ClusterctlError if a copy failed, was not
    whole, or differs.
    """
    check_place(place, job.job_id)
    again = (place / RECORD).exists()
    if job.spec.model_dir is not None and not job.unended:
        collect(access, job.job_id)
    parts = find_parts(access, job.job_id, place)
    agree(sum(part.size_bytes for part in parts))
    gone: tuple[str, ...] = ()

    def bring(is_ours: bool) -> None:
        nonlocal gone
        if is_ours:
            gone = _gone(job, place, parts)
        else:
            here = (part.here if part.place == place else [part.place] for part in parts)
            check_free(place, (os.path.relpath(one, place) for some in here for one in some))
        for part in parts:
            _bring(access, part, watch, again, verify)

    fetch(access, job.job_id, place, bring)
    noted: dict[str, dict[str, str]] = {}
    for part in parts:
        noted.setdefault(part.target.host, {})[part.source] = part.digest
    _call(access, access.head, note_fetched, written.FetchedOutput(job.job_id, noted))
    return Fetched(sum(len(one.names) for one in parts), sum(one.size_bytes for one in parts), gone)


def _bring(access: Access, part: Part, watch: Watch, checksum: bool, verify: bool) -> None:
    names = tuple(map(os.fsencode, part.names))
    index = next(n.index for n in access.cluster.nodes if n.name == part.target.host)
    request = CopyRequest(
        *((part.source,), str(part.place.absolute()), index),
        names=names,
        checksum=checksum,
        verify=verify,
    )
    report = copy_here(access, part.target, request, watch=watch)
    _check_whole(part, report)


def _gone(job: JobRecord, place: Path, parts: Sequence[Part]) -> tuple[str, ...]:
    """Return the files in the folders that the job fills that none of the parts has."""
    known = {path for part in parts for path in part.here}
    tops = {part.place for part in parts} - {place}
    tops |= {place / name for name in COLLECTED if job.spec.model_dir is not None}
    found = {path for top in tops for path in top.rglob("*") if path.is_file()}
    return tuple(sorted(os.path.relpath(path, place) for path in found - known))


def _check_whole(part: Part, report: TransferReport) -> None:
    """Raise ClusterctlError if a copy failed or has left something out."""
    left = [node for node in report.nodes if node.left_out]
    errors = [report.error, *(node.error for node in report.nodes)]
    errors += [ClusterctlError(f"left out: {'; '.join(node.warnings)}") for node in left]
    for error in filter(None, errors):
        raise ClusterctlError(
            f"not all of {part.source} on {part.target.host} came: {error.message}",
            error.hint or "run it again: it goes on from there",
        )


def find_parts(access: Access, job_id: str, place: Path) -> list[Part]:
    """Return what the job has written on all nodes where it may have. Raises HostError."""
    trees = _call(access, access.head, list_trees, OfJob(job_id)).trees
    parts: list[Part] = []
    for target in access.all_targets:
        is_head = target == access.head
        here = tuple(tree for tree in trees if is_head or target.host in tree.hosts)
        if here:
            found = _call(access, target, look, Trees(here, named=True)).found
            for one, tree in ((one, tree) for one in found for tree in here):
                if one.path == tree.path:
                    is_folder = tree.since is None and not tree.shipped
                    parts += _parts_of(target, is_head, one, is_folder, place)
    return parts


def _call(access: Access, target: Target, function: Callable[..., R], request: object) -> R:
    return call(
        *(access.connections, target, function, request), doing=LOOKING, timeout_s=LIST_TIMEOUT_S
    )


def _parts_of(
    target: Target, is_head: bool, found: OutputFiles, is_folder: bool, place: Path
) -> Sequence[Part]:
    """Return where the files of a folder go: those of a folder of their own keep its name."""
    top = place if is_head else place / target.host
    if is_folder:
        top /= os.path.basename(os.path.normpath(found.path))  # noqa: PTH119
    clash = [] if is_folder or not is_head else [n for n in found.names if _is_record(n)]
    kept = [name for name in found.names if name not in set(clash)]
    about = (found.bytes, found.digest)
    parts = [Part(target, found.path, top, tuple(kept), *about)] if kept else []
    if clash:
        size = 0 if parts else found.bytes
        there = place / target.host
        parts.append(Part(target, found.path, there, tuple(clash), size, found.digest))
    return parts


def _is_record(name: str) -> bool:
    first = name.partition("/")[0]
    return first in RECORDS or first.startswith(("log-", "trace-steps-"))
