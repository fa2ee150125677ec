"""Download a job's Horovod timeline, autotuner log and traced steps, and read them."""

from __future__ import annotations

import posixpath
import shlex
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterctl.domain.errors import CommandFailed, NotFound, UsageError
from clusterctl.domain.findings import Finding
from clusterctl.jobs.horovod import (
    AUTOTUNE,
    STEPS,
    TIMELINE,
    Timeline,
    Tuned,
    read_autotune,
    read_timeline,
)
from clusterctl.jobs.plan import CODE_FOLDER, JOBS_FOLDER
from clusterctl.node.jobs.spec import JobRecord
from clusterctl.operations.access import Access
from clusterctl.operations.fetch import locked_staging_folder
from clusterctl.operations.results import ABSENT
from clusterctl.transport.connections import read_data

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Tuning:
    """The downloaded files and their contents; None for a file that the job did not write.

    `tuned` is also None if the job ended before the autotuner's first sample. `unread` has an error
    for each file that cannot be read.
    """

    timeline_file: Path | None
    timeline: Timeline | None
    autotune_file: Path | None
    tuned: Tuned | None
    steps_file: Path | None = None
    unread: tuple[Finding, ...] = ()


def fetch_tuning(access: Access, job: JobRecord, folder: Path) -> Tuning:
    """Download the files into `folder` and read them.

    Raise NotFound if the job wrote none of them, UsageError if the folder cannot be written, and
    HostError.
    """
    stem = f"{access.cluster.name}-{job.job_id}"

    def fetch(name: str, variable: str = "") -> Path | None:
        # A path that the user set with -x, or in a job.yaml, takes precedence over the option's. A
        # relative one is below the ranks' working folder: that of the shipped program, if any.
        given = job.spec.variables.get(variable) or ""
        code = f"{CODE_FOLDER}/{job.job_id}"
        paths = [posixpath.join(one, given) for one in (f"{code}/code", code, job.spec.workdir)]
        place = " ".join(dict.fromkeys(map(shlex.quote, paths)))
        place = place if given else f"{JOBS_FOLDER}/{job.job_id}/{name}"
        return _fetch(access, place, folder / f"{stem}-{name.replace('-*', '')}", job.job_id)

    trace = fetch(TIMELINE, "HOROVOD_TIMELINE")
    log = fetch(AUTOTUNE, "HOROVOD_AUTOTUNE_LOG")
    steps = fetch(STEPS)
    if not (trace or log or steps):
        raise NotFound(
            f"job {job.job_id} wrote neither a timeline nor an autotuner's log, and traced no step "
            "yet",
            "start it with `clusterctl train … --timeline`, --autotune or --trace-steps 10:20",
        )
    return read_tuning(trace, log, steps)


def read_tuning(trace: Path | None, log: Path | None, steps: Path | None = None) -> Tuning:
    """Return the contents of a timeline and an autotuner's log. What cannot be read is an error of
    its own."""
    timeline, tuned, unread = None, None, []
    try:
        timeline = read_timeline(_chunks(trace)) if trace else None
    except UsageError as error:
        unread.append(Finding.error("tuning.timeline", error.message, error.hint))
    try:
        tuned = read_autotune(log.read_text(errors="replace")) if log else None
    except UsageError as error:
        unread.append(Finding.error("tuning.autotune", error.message, error.hint))
    return Tuning(trace, timeline, log, tuned, steps, tuple(unread))


def _chunks(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _fetch(access: Access, place: str, path: Path, job_id: str) -> Path | None:
    """Download one file of the head node to `path`. Return None if it does not exist.

    `place` has paths or a pattern for a shell, absolute or below the home folder, of which the
    first that exists counts. The file is compressed on its way. Raise UsageError, HostError.
    """
    # 31: zlib reads the gzip format with the largest window.
    inflate = zlib.decompressobj(wbits=31)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked_staging_folder(path.parent, job_id) as (folder, _):
            draft = folder / path.name
            with draft.open("wb") as file:
                found = f'for one in {place}; do [ ! -e "$one" ] || exec gzip -1c "$one"; done'
                command = f"cd && {found}; exit {ABSENT}"
                result = read_data(
                    access.connections,
                    access.head,
                    command,
                    lambda chunk: file.write(inflate.decompress(chunk)),
                )
            if result.exit_status == ABSENT:
                return None
            if not result.ok:
                raise CommandFailed(result.host, f"cannot read {place}: {result.stderr.strip()}")
            draft.replace(path)
            return path
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
