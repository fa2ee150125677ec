"""Download a job's Horovod timeline, autotuner log and traced steps, and read them."""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterctl.domain.errors import CommandFailed, NotFound, UsageError
from clusterctl.jobs.horovod import (
    AUTOTUNE,
    STEPS,
    TIMELINE,
    Timeline,
    Tuned,
    read_autotune,
    read_timeline,
)
from clusterctl.jobs.plan import JOBS_FOLDER
from clusterctl.node.jobs.spec import JobRecord
from clusterctl.operations.access import Access
from clusterctl.operations.fetch import locked_staging_folder
from clusterctl.operations.results import ABSENT
from clusterctl.transport.connections import read_data

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Tuning:
    """The downloaded files and their contents; None for a file that the job did not write.

    `tuned` is also None if the job ended before the autotuner's first sample.
    """

    timeline_file: Path | None
    timeline: Timeline | None
    autotune_file: Path | None
    tuned: Tuned | None
    steps_file: Path | None = None


def fetch_tuning(access: Access, job: JobRecord, folder: Path) -> Tuning:
    """Download the files into `folder` and read them.

    Raise NotFound if the job wrote none of them, UsageError if the folder cannot be written, and
    HostError.
    """
    stem = f"{access.cluster.name}-{job.job_id}"

    def fetch(name: str, variable: str = "") -> Path | None:
        # A path that the user set with -x, or in a job.yaml, takes precedence over the option's.
        given = job.spec.variables.get(variable) or ""
        place = (
            shlex.quote(given) if given.startswith("/") else f"{JOBS_FOLDER}/{job.job_id}/{name}"
        )
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
    timeline = read_timeline(_chunks(trace)) if trace else None
    tuned = read_autotune(log.read_text(errors="replace")) if log else None
    return Tuning(trace, timeline, log, tuned, steps)


def _chunks(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _fetch(access: Access, place: str, path: Path, job_id: str) -> Path | None:
    """Download one file of the head node to `path`. Return None if it does not exist.

    `place` is an absolute path, quoted for a shell, or a shell pattern below the home folder, of
    which the first match counts. The file is compressed on its way. Raise UsageError, HostError.
    """
    # 31: zlib reads the gzip format with the largest window.
    inflate = zlib.decompressobj(wbits=31)
    try:
        with locked_staging_folder(path.parent, job_id) as (folder, _):
            draft = folder / path.name
            with draft.open("wb") as file:
                found = f'cd && set -- {place} && {{ [ -e "$1" ] || exit {ABSENT}; }}'
                command = f'{found} && exec gzip -1c "$1"'
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
