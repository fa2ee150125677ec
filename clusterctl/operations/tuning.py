"""What Horovod's timeline and autotuner wrote for a job, brought here and read; traced steps."""

from __future__ import annotations

import codecs
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.domain.errors import CommandFailed, UsageError
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


def fetch_tuning(access: Access, job_id: str, folder: Path) -> Tuning:
    """Bring the files into `folder` and read them. Raises UsageError: neither was written, or the
    folder cannot be; HostError."""
    stem = f"{access.cluster.name}-{job_id}"
    trace = _fetch(access, job_id, TIMELINE, folder / f"{stem}-{TIMELINE}")
    log = _fetch(access, job_id, AUTOTUNE, folder / f"{stem}-{AUTOTUNE}")
    steps = _fetch(access, job_id, STEPS, folder / f"{stem}-{STEPS.replace('-*', '')}")
    if not (trace or log or steps):
        raise UsageError(
            f"job {job_id} wrote neither a timeline nor an autotuner's log, and traced no step yet",
            "start it with `clusterctl train … --timeline`, --autotune or --trace-steps 10:20",
        )
    timeline = read_timeline(_chunks(trace)) if trace else None
    tuned = read_autotune(log.read_text(errors="replace")) if log else None
    return Tuning(trace, timeline, log, tuned, steps)


def _chunks(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _fetch(access: Access, job_id: str, name: str, path: Path) -> Path | None:
    """One file of the job's folder, by a pattern, compressed on its way; None without it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    inflate, said = zlib.decompressobj(wbits=31), codecs.getincrementaldecoder("utf-8")("replace")
    errors: list[str] = []
    try:
        with draft.open("wb") as file:

            def take(stream: str, chunk: bytes) -> None:
                if stream == "stdout":
                    file.write(inflate.decompress(chunk))
                else:
                    errors.append(said.decode(chunk))

            found = (
                f'cd && set -- {JOBS_FOLDER}/{job_id}/{name} && {{ [ -e "$1" ] || exit {ABSENT}; }}'
            )
            command = f'{found} && exec gzip -1c "$1"'
            result: Any = access.connections.run(access.head, command, sink=take)
        if result.exit_status == ABSENT:
            return None
        if not result.ok:
            raise CommandFailed(result.host, f"cannot read {name}: {''.join(errors).strip()}")
        draft.replace(path)
        return path
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)
