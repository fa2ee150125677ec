"""`fetch`: bring a job's record, and the files that it wrote, into a folder of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from clusterctl.copy.report import TransferReport
from clusterctl.copy.request import CopyRequest
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.files import read_file
from clusterctl.jobs.detached import JobRecord
from clusterctl.node.jobs import written
from clusterctl.node.jobs.jobs import COLLECTED, KEPT, MANIFEST, METRICS
from clusterctl.node.jobs.written import OfJob, OutputFiles, Trees, list_trees, look, note_fetched
from clusterctl.node.record import from_json
from clusterctl.node.scripts.collect import digest_of
from clusterctl.operations.access import Access
from clusterctl.operations.copy import Watch, copy_here
from clusterctl.operations.logs import RECORD, fetch
from clusterctl.operations.losses import LOOKING
from clusterctl.transport.call import call
from clusterctl.transport.target import Target

R = TypeVar("R")
LIST_TIMEOUT_S = 3600.0  # for a listing of millions of files on a disk that is slow
# Names of the record's files: a program's file of such a name comes under its node's name.
RECORDS = {*KEPT, RECORD, METRICS, "log", "manifest.json", "model", "output", "conflicts"}


@dataclass(frozen=True)
class Part:
    """Files in one folder of a node, as paths below `source`, and the folder here for them."""

    target: Target
    source: str
    place: Path
    names: tuple[str, ...]
    size_bytes: int
    digest: str


@dataclass(frozen=True)
class Fetched:
    """What was brought: the number of files that the job wrote, and their bytes."""

    files: int = 0
    size_bytes: int = 0


def fetch_all(
    access: Access,
    job: JobRecord,
    place: Path,
    watch: Watch = lambda progress: None,
    agree: Callable[[int], None] = lambda size: None,
    verify: bool = False,
) -> Fetched:
    """Bring the record of a job, then what it wrote, into `place`.

    It may be run again: what is here already is not copied again. Then contents are compared, since
    a file that was written over may have its size and its time of before.

    Files of the head node come into `place` itself, those of another node below its name. `agree`
    gets the bytes of all files, and raises to refuse. With `verify` all files are read again at the
    end, on both sides. Raises UsageError, HostError, ClusterctlError if a copy failed, was not
    whole, or differs.
    """
    again = (place / RECORD).exists()
    parts = find_parts(access, job.job_id, place)
    agree(sum(part.size_bytes for part in parts))
    fetch(access, job.job_id, place)
    for part in parts:
        names = tuple(map(os.fsencode, part.names))
        index = next(n.index for n in access.cluster.nodes if n.name == part.target.host)
        request = CopyRequest(
            *((part.source,), str(part.place.absolute()), index),
            names=names,
            checksum=again,
            verify=verify,
        )
        report = copy_here(access, part.target, request, watch=watch)
        _check_whole(part, report)
    if verify:
        _check_model(place)
    note = _noted(access, job, parts)
    _call(access, access.head, note_fetched, written.FetchedOutput(job.job_id, note))
    return Fetched(sum(len(one.names) for one in parts), sum(one.size_bytes for one in parts))


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


@dataclass(frozen=True)
class _Collected:
    """A file in the manifest of a script-mode job (node/scripts/collect.py)."""

    path: str
    sha256: str
    host: str = ""


def _check_model(place: Path) -> None:
    """Compare what came with the record of a script-mode job with the manifest's SHA-256.

    Raises ClusterctlError if a file differs or is missing.
    """
    if not (place / MANIFEST).exists():
        return
    manifest = read_file(
        place / MANIFEST,
        lambda text: from_json(dict[str, tuple[_Collected, ...]], text),
        "run it again: it comes anew with the job's record",
    )
    for kind, files in manifest.items():
        for one in files:
            # Of `conflicts`, each node's are in a folder of its own.
            path = place / ("" if kind in COLLECTED[:2] else f"{kind}/{one.host}") / one.path
            if not path.is_file() or digest_of(path) != one.sha256:
                raise ClusterctlError(
                    f"{path} has not the content that {MANIFEST} names",
                    "run it again: the files of the model come anew",
                )


def find_parts(access: Access, job_id: str, place: Path) -> list[Part]:
    """Return what the job has written on all nodes where it may have. Raises HostError."""
    listed = _call(access, access.head, list_trees, OfJob(job_id)).trees
    own = f"/.clusterctl/jobs/{job_id}/"  # comes with the record
    trees = [tree for tree in listed if own not in f"{tree.path}/"]
    parts: list[Part] = []
    for target in access.all_targets:
        is_head = target == access.head
        here = tuple(tree for tree in trees if is_head or target.host in tree.hosts)
        if here:
            found = _call(access, target, look, Trees(here, named=True)).found
            for one, tree in ((one, tree) for one in found for tree in here):
                if one.path == tree.path:
                    is_folder = tree.since is None and not tree.after
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


def _noted(access: Access, job: JobRecord, parts: Sequence[Part]) -> dict[str, dict[str, str]]:
    """Return the digests of what was brought, with those of the files that came with the record."""
    noted: dict[str, dict[str, str]] = {}
    for part in parts:
        noted.setdefault(part.target.host, {})[part.source] = part.digest
    if job.model_dir is not None and not job.unended:
        trees = _call(access, access.head, list_trees, OfJob(job.job_id))
        found = _call(access, access.head, look, trees).found
        noted.setdefault(access.head.host, {}).update({one.path: one.digest for one in found})
    return noted
