"""What Horovod's timeline and autotuner wrote for a job, brought here and read; traced steps."""

from __future__ import annotations

import codecs
import shlex
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.domain.errors import CommandFailed, UsageError
from clusterctl.jobs.detached import JobRecord
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
from clusterctl.operations.access import Access
from clusterctl.operations.logs import draft_folder
from clusterctl.operations.results import ABSENT

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Tuning:
    """The files as they lie here, and what they say; None where the job wrote no such file.

    `tuned` is None for an autotuner that had no time for a sample, too.
    """

    timeline_file: Path | None
    timeline: Timeline | None
    autotune_file: Path | None
    tuned: Tuned | None
    steps_file: Path | None = None


def fetch_tuning(access: Access, job: JobRecord, folder: Path) -> Tuning:
    """Bring the files into `folder` and read them. Raises UsageError: neither was written, or the
    folder cannot be; HostError."""
    stem = f"{access.cluster.name}-{job.job_id}"

    def fetch(name: str, variable: str = "") -> Path | None:
        # A variable that was given by -x, in a job.yaml as well, counts before the option.
        given = job.variables.get(variable) or ""
        place = (
            shlex.quote(given) if given.startswith("/") else f"{JOBS_FOLDER}/{job.job_id}/{name}"
        )
        return _fetch(access, place, folder / f"{stem}-{name.replace('-*', '')}", job.job_id)

    trace = fetch(TIMELINE, "HOROVOD_TIMELINE")
    log = fetch(AUTOTUNE, "HOROVOD_AUTOTUNE_LOG")
    steps = fetch(STEPS)
    if not (trace or log or steps):
        raise UsageError(
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
    """One file of the head node, by a pattern below the home folder or a whole path as a shell
    reads it, compressed on its way; None without it."""
    inflate, said = zlib.decompressobj(wbits=31), codecs.getincrementaldecoder("utf-8")("replace")
    errors: list[str] = []
    try:
        with draft_folder(path.parent, job_id) as (folder, _):
            draft = folder / path.name
            with draft.open("wb") as file:

                def take(stream: str, chunk: bytes) -> None:
                    if stream == "stdout":
                        file.write(inflate.decompress(chunk))
                    else:
                        errors.append(said.decode(chunk))

                found = f'cd && set -- {place} && {{ [ -e "$1" ] || exit {ABSENT}; }}'
                command = f'{found} && exec gzip -1c "$1"'
                result: Any = access.connections.run(access.head, command, sink=take)
            if result.exit_status == ABSENT:
                return None
            if not result.ok:
                raise CommandFailed(result.host, f"cannot read {place}: {''.join(errors).strip()}")
            draft.replace(path)
            return path
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
