"""Making shards with several processes: each shard is written completely or not at all.

A folder of shards contains a journal, `.shards.jsonl`. It has a line for each finished shard with
fingerprints of the settings and of the input that the shard was made of. A later run skips shards
with the same fingerprints and makes shards with another input again. Without `force` it refuses to
replace shards that were made with other settings or by other programs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from processes import Count, each_done
from progress import Progress
from shards import NAME, ShardError, commit_file, naming, shards_in, temporary_of

JOURNAL = ".shards.jsonl"


@dataclass(frozen=True)
class Job:
    """One shard to make. `task` is the argument for the making function, which must be picklable.

    `images` is their number for the progress line.
    """

    shard: Path
    images: int
    made_with: str  # fingerprint of the settings
    made_from: str  # fingerprint of the input
    task: Any


@dataclass(frozen=True)
class Made:
    """The result of a job. `left_out` has the images that could not be used, with the reasons.

    If `keep` is false the shard is removed; the images left out are still written to the journal.
    """

    records: int
    left_out: tuple[tuple[str, str], ...] = ()
    keep: bool = True


# make(task, path, count) writes a shard to `path` and calls count(n) after every n images.
Make = Callable[[Any, Path, Count], Made]


@dataclass(frozen=True)
class Line:
    """A line of the journal. `size` is the shard's in bytes; 0 if the shard was not kept."""

    shard: str
    made_with: str
    made_from: str
    records: int
    size: int
    left_out: tuple[tuple[str, str], ...] = ()

    def json(self) -> str:
        return json.dumps(vars(self)) + "\n"


@dataclass(frozen=True)
class Summary:
    """The result of a run. `lines` has the journal's line of every shard of the run.

    `made` shards were made, and `skipped` were finished by an earlier run.
    """

    lines: tuple[Line, ...]
    made: int
    skipped: int
    seconds: float
    images_per_s: float

    @property
    def records(self) -> int:
        return sum(line.records for line in self.lines if line.size)

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]:
        return tuple(pair for line in self.lines for pair in line.left_out)


def make_shards(
    jobs: Sequence[Job], make: Make, *, processes: int, force: bool = False, title: str = ""
) -> Summary:
    """Make those shards of `jobs` that are not finished. All of them are in one folder.

    Raises ShardError if the folder has shards that were made differently, if another run is writing
    to the folder, or if a process dies. Raises KeyboardInterrupt after Ctrl-C. Finished shards are
    kept in all cases.
    """
    folder = jobs[0].shard.parent
    folder.mkdir(parents=True, exist_ok=True)
    with journal(folder) as (lines, append):
        todo = [job for job in jobs if not finished(job, lines.get(job.shard.name))]
        if not force:
            refuse_foreign(todo, lines)
        refuse_other_sets(jobs)
        making = {job.shard.name for job in todo}
        done = {
            job.shard.name: lines[job.shard.name] for job in jobs if job.shard.name not in making
        }
        skipped = len(done)
        progress = Progress(sum(job.images for job in todo), title)
        tasks = [(make, job.task, str(temporary_of(job.shard))) for job in todo]
        try:
            with contextlib.closing(each_done(make_one, tasks, processes, progress)) as results:
                for index, made in results:
                    line = keep(todo[index], made, append)
                    done[line.shard] = line
        finally:
            progress.close()
            for job in todo:
                temporary_of(job.shard).unlink(missing_ok=True)
    ordered = tuple(done[job.shard.name] for job in jobs)
    return Summary(ordered, len(todo), skipped, progress.seconds, progress.per_second)


def make_one(task: tuple[Make, Any, str], count: Count) -> Made:
    """Make one shard in a worker process and write it to the disk."""
    make, own_task, path = task
    with naming(Path(path)):
        made = make(own_task, Path(path), count)
        if made.keep:
            with Path(path).open("rb") as file:  # in the workers, which wait for the disk together
                os.fsync(file.fileno())
    return made


def keep(job: Job, made: Made, append: Callable[[Line], None]) -> Line:
    """Add the shard to the journal and then give it its final name.

    In this order, since a line without its shard does no harm.
    """
    temporary = temporary_of(job.shard)
    size = temporary.stat().st_size if made.keep else 0
    line = Line(
        job.shard.name, job.made_with, job.made_from, made.records, size, tuple(made.left_out)
    )
    append(line)
    if made.keep:
        commit_file(temporary, job.shard)
    return line


def finished(job: Job, line: Line | None) -> bool:
    """Return whether a job's shard exists, with this job's settings and input in the journal."""
    return (
        line is not None
        and (line.made_with, line.made_from) == (job.made_with, job.made_from)
        and line.size > 0
        and job.shard.is_file()
        and job.shard.stat().st_size == line.size
    )


def refuse_foreign(todo: Sequence[Job], lines: dict[str, Line]) -> None:
    """Raise ShardError if a shard would replace one made with other settings or by others."""
    for job in todo:
        line = lines.get(job.shard.name)
        if job.shard.exists() and (line is None or line.made_with != job.made_with):
            raise ShardError(
                f"{job.shard} is there, and not from a run with these settings: "
                "--force replaces such shards"
            )


def refuse_other_sets(jobs: Sequence[Job]) -> None:
    """Raise ShardError if the folder has another set of the subset: both would be read as one."""
    names = {job.shard.name for job in jobs}
    match = NAME.fullmatch(jobs[0].shard.name)
    assert match, "shards are named by shard_name()"
    for path in shards_in(jobs[0].shard.parent, match["subset"]).values():
        if path.name not in names:
            raise ShardError(
                f"{path} is of another set of {match['subset']} shards: remove that set, "
                "or write to another folder"
            )


@contextlib.contextmanager
def journal(folder: Path) -> Iterator[tuple[dict[str, Line], Callable[[Line], None]]]:
    """Lock the journal; yield its last line for each shard, and a function that adds a line.

    The function returns when the line is on the disk. Raises ShardError if another process holds
    the lock.
    """
    with (folder / JOURNAL).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ShardError(f"another run is writing to {folder}: wait until it ends") from None

        def append(line: Line) -> None:
            with naming(folder / JOURNAL):
                file.write(line.json())
                file.flush()
                os.fsync(file.fileno())

        lines = read_journal(folder)
        file.write("" if ends_whole(folder / JOURNAL) else "\n")
        yield lines, append


def read_journal(folder: Path) -> dict[str, Line]:
    """Return the last line of each shard. Damaged lines are ignored."""
    lines: dict[str, Line] = {}
    path = folder / JOURNAL
    for text in (
        path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ()
    ):
        try:
            line = Line(**json.loads(text))
            pairs = tuple((str(name), str(why)) for name, why in line.left_out)
            lines[line.shard] = Line(**{**vars(line), "left_out": pairs})
        except (ValueError, TypeError):
            continue
    return lines


def ends_whole(path: Path) -> bool:
    """Return whether the last line is complete. A run that was killed may leave a part of one."""
    data = path.read_bytes()
    return not data or data.endswith(b"\n")
