"""Runs on a node: the files that jobs have written there, which go with the node's disk.

    jobs    on the head node. Prints {"jobs": [JOB], "trees": [TREE], "found": [FOUND],
            "fetched": {ID: {HOST: {PATH: DIGEST}}}}: the jobs that have not ended, the folders that
            jobs write into, what is in those of the head node, and what was fetched
    look    stdin: {"trees": [TREE]}. Prints {"found": [FOUND]}: what is in them here
    list    stdin: the same. Each FOUND also has "names", the paths of its files below PATH
    trees ID     on the head node. Prints {"trees": [TREE]}: the folders that this job writes into
    fetched ID   on the head node; stdin: {"fetched": {HOST: {PATH: DIGEST}}}. Notes for later that
                 this was fetched, and prints {}

    JOB     {"id", "queued": BOOLEAN, "serves": BOOLEAN}
    TREE    {"job": ID, "path": PATH, "kind": KIND, "since": S, "until": S, "after": PATH,
             "hosts": [NAME]}
    FOUND   {"job": ID, "path": PATH, "kind": KIND, "files": N, "bytes": N, "digest": TEXT}

KIND is checkpoints, model or files. Of a TREE only files count that were written from `since` to
`until`, seconds since 1970 by the node's clock (null is no limit), and later than the file `after`
of each node (empty for none). `hosts` are the other nodes with ranks, which may write there, too.
The ID is empty for a folder that no job of this cluster has written. A FOUND has at least one file.
Its digest is that of all names, sizes, times of change and inodes.

What counts is the time of the inode's last change (ctime): a program may set the other times, as by
copying, but not this one. Reading a file, as `fetch` does, leaves it. A change of mode, owner or
links makes it a new one, though the content is the same: then the file counts as not fetched. A
file that is written twice within a tick of the kernel's clock (4 ms at 250 Hz), and listed between
the two, is the only change that is not seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
from pathlib import Path

from clusterctl.node.jobs.clean import CHECKPOINT
from clusterctl.node.jobs.folder import CODE, JOBS, SHIPPED, JobFolder, all_jobs, json_in
from clusterctl.node.jobs.jobs import COLLECTED, MANIFEST
from clusterctl.node.jobs.spec import SERVE, JobState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

FETCHED = "fetched.json"  # in the job's folder: see `fetched` above
CHECKPOINTS, MODEL, FILES = "checkpoints", "model", "files"
KINDS = {"model": MODEL}
NOWHERE_ELSE: dict[str, Any] = {"hosts": [], "since": None, "until": None, "after": ""}
# Folders of runs that were started by hand: as in the tutorial, and beside the shipped trainer.
BY_HAND = ("imagenet_resnet", "examples/horovod/tensorflow/imagenet_resnet")
# What Python writes beside a program, and what clusterctl puts there.
NO_RESULTS = {"__pycache__", SHIPPED}


def trees_of(folder: Path) -> list[dict[str, Any]]:
    """Return the TREEs of a job: none for a copy, a served model, or a model that is in S3."""
    spec, _ = JobFolder(folder).known_spec()
    code = CODE / folder.name
    others = list(spec.hosts[1:])

    def tree(path: Path, kind: str, **more: Any) -> dict[str, Any]:
        return {"job": folder.name, "path": str(path), "kind": kind, **NOWHERE_ELSE, **more}

    if not (spec.is_training and spec.argv):
        return []
    asked = Path(spec.output) if spec.output else None
    output = [tree(asked, FILES, hosts=others)] if asked and code not in asked.parents else []
    if spec.log_dir:
        return [*output, tree(Path(spec.workdir, spec.log_dir), CHECKPOINTS)]
    if spec.model_dir is not None:
        status = JobFolder(folder).status().exit_status
        if spec.model_dir and status == 0:
            return []
        if (folder / MANIFEST).exists():
            return [tree(folder / name, KINDS.get(name, FILES)) for name in COLLECTED]
        return [tree(code / name, KINDS.get(name, FILES), hosts=others) for name in COLLECTED[:2]]
    if code.is_dir():
        return [*output, tree(code, FILES, hosts=others, after=str(code / SHIPPED))]
    if output:
        return output
    # A program of the nodes works in the folder of the examples, as other jobs do.
    job = JobFolder(folder).record()
    since = job.status.started_at or job.status.submitted_at
    times = {"since": since, "until": job.now if job.unended else job.status.ended_at}
    return [tree(Path(spec.workdir), FILES, **times)]


def all_trees() -> list[dict[str, Any]]:
    """Return the TREEs of all jobs, each folder once: the latest job's. Also those of no job."""
    found = {}
    for job in all_jobs():
        for tree in trees_of(job.path):
            found[tree["path"], tree["since"]] = tree
    known = {os.path.realpath(tree["path"]) for tree in found.values()}  # noqa: PTH114
    for name in BY_HAND:
        path = str(Path.home() / name)
        if os.path.realpath(path) not in known:  # noqa: PTH114
            found[path, None] = {"job": "", "path": path, "kind": CHECKPOINTS, **NOWHERE_ELSE}
    return list(found.values())


def files_in(tree: dict[str, Any]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the regular files of a TREE that count, as paths below it. Links are not followed.

    Raises OSError for a folder that cannot be read: what is in it is not known.
    """

    def refuse(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise error

    since, until = tree["since"] or 0.0, tree["until"] or float("inf")
    if tree["after"]:
        with contextlib.suppress(FileNotFoundError):
            since = os.lstat(tree["after"]).st_ctime
    for root, folders, names in os.walk(tree["path"], onerror=refuse):
        folders[:] = sorted(set(folders) - NO_RESULTS)
        for name in sorted(set(names) - NO_RESULTS):
            path = os.path.join(root, name)  # noqa: PTH118
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                seen = os.lstat(path)
                if stat.S_ISREG(seen.st_mode) and since < seen.st_ctime <= until:
                    yield os.path.relpath(path, tree["path"]), seen


def found_in(tree: dict[str, Any], named: bool = False) -> dict[str, Any] | None:
    """Return the FOUND of a TREE, with names if `named`; None if nothing counts.

    Of the trainer's folder nothing counts without a checkpoint: its logs and records are made again
    in no time. Raises OSError.
    """
    files = list(files_in(tree))
    if tree["kind"] == CHECKPOINTS and not any(CHECKPOINT.fullmatch(name) for name, _ in files):
        return None
    if not files:
        return None
    content = hashlib.sha256()
    for name, seen in files:
        about = (seen.st_size, seen.st_ctime_ns, seen.st_ino)
        content.update(os.fsencode(name) + b"\0%d %d %d\n" % about)
    return {
        "job": tree["job"],
        "path": tree["path"],
        "kind": tree["kind"],
        "files": len(files),
        "bytes": sum(seen.st_size for _, seen in files),
        "digest": content.hexdigest(),
        **({"names": [name for name, _ in files]} if named else {}),
    }


def look(trees: list[dict[str, Any]], named: bool = False) -> list[dict[str, Any]]:
    """Return what is in these TREEs here. Raises OSError."""
    return [found for tree in trees for found in [found_in(tree, named)] if found]


def note_fetched(folder: Path, fetched: dict[str, dict[str, str]]) -> None:
    """Add to what was fetched of a job. Raises OSError."""
    known = json_in(folder / FETCHED, {})
    for host, digests in fetched.items():
        known[host] = {**known.get(host, {}), **digests}
    new = folder / (FETCHED + ".new")
    new.write_text(json.dumps(known))
    new.replace(folder / FETCHED)


def all_of_head() -> dict[str, Any]:
    """Return what `jobs` prints. Raises OSError."""
    going = []
    for job in [one.record() for one in all_jobs()]:
        if job.unended:
            is_queued, serves = job.state is JobState.QUEUED, job.spec.preset == SERVE
            going.append({"id": job.job_id, "queued": is_queued, "serves": serves})
    trees = all_trees()
    fetched = {one.job_id: json_in(one.path / FETCHED, {}) for one in all_jobs()}
    return {"jobs": going, "trees": trees, "found": look(trees), "fetched": fetched}


def answer(action: str, job: str = "") -> dict[str, Any]:
    """Carry out an action and return what it prints. Raises OSError."""
    if action == "jobs":
        return all_of_head()
    if action == "trees":
        return {"trees": trees_of(JOBS / job)}
    told = json.loads(sys.stdin.buffer.read())
    if action == "fetched":
        note_fetched(JOBS / job, told["fetched"])
        return {}
    return {"found": look(told["trees"], named=action == "list")}


def main() -> None:
    try:
        print(json.dumps(answer(*sys.argv[1:])))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else str(error))
