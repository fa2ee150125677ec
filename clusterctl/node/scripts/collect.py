"""Runs on the head node when a script-mode job has ended: copies what its programs left in model/
and output/ on every node into the job's folder on the head node, and to S3 if the job wants that.

    FOLDER [fetch NODE...]    the job's folder, with spec.json (node/jobs/spec.py). `fetch` also
                              names the nodes whose machines are gone

manifest.json is written last: if it exists, the collection is complete, and is not done again. Two
`fetch` at once wait for each other.

    {"model": [{"path", "bytes", "sha256", "host"}], "output": [...], "conflicts": [...]}

Files of the same path and content on several nodes are kept once. If contents differ, or a path is
a file on one node and a folder on another, that of the first node is kept, beginning with the head
node, and the others are in conflicts/HOST.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clusterctl.node.framed import FramedCommand
from clusterctl.node.jobs.folder import COLLECTED, MANIFEST, JobFolder
from clusterctl.node.jobs.recovery import AT_ONCE, SSH, nodes_of
from clusterctl.node.relay.base import Failure
from clusterctl.node.relay.s3files import NO_KEYS, TOOLS, Tool, explained, tool_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MODEL, OUTPUT, CONFLICTS = COLLECTED
# Links are followed, and dangling links left out: S3 has no links. find also lists folders that it
# cannot read, so that tar fails on them: the shell ignores find's exit status.
PACK = (
    'cd "$HOME"/.clusterctl/code/{} 2>/dev/null || exit 3; '
    "for top in {}; do [ ! -e $top ] || "
    "find -L $top '(' -type f -o -type d ! -readable ')' -print0; done | tar -chf - --null -T -"
)
NOTHING_THERE = 3  # the status of PACK on a node without the job's folder
CHUNK_BYTES = 1 << 20
KEY_BYTES = 1024  # the longest name in S3


class NotCollected(Exception):
    """Some files are still on a node, or were not uploaded to S3."""


def main() -> None:
    folder = Path(sys.argv[1])
    lock = os.open(folder, os.O_RDONLY)  # held until this process ends
    fcntl.flock(lock, fcntl.LOCK_EX)
    if (folder / MANIFEST).exists():
        return
    try:
        print(f"clusterctl: {collect(folder, sys.argv[3:])}", flush=True)
    except (NotCollected, OSError) as error:
        what = "what the job left is still on the nodes, in ~/.clusterctl/code/"
        then = "" if sys.argv[2:] else f"; {what}{folder.name}: fetch it with clusterctl fetch"
        sys.exit(f"clusterctl: the model was not collected: {error}{then}")
    url = JobFolder(folder).spec().model_dir or ""
    try:
        if url:
            print(f"clusterctl: all of it is at {upload(folder, url.rstrip('/'))}")
    except (NotCollected, OSError) as error:
        sys.exit(f"clusterctl: it did not get to {url}: {error}; fetch it with clusterctl fetch")


def collect(folder: Path, gone: Sequence[str] = ()) -> str:
    """Copy the files of all nodes of the latest attempt but those whose machines are `gone`. Return
    a summary for the log. Raises NotCollected, OSError."""
    job = JobFolder(folder)
    nodes = nodes_of(job.spec(), job.status().hosts)
    for name in (*COLLECTED, "collecting"):
        shutil.rmtree(folder / name, ignore_errors=True)
    staging = folder / "collecting"
    staging.mkdir()
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            there = pool.map(
                lambda node: (
                    node["name"] not in gone and fetch_results(node, nodes[0], folder.name, staging)
                ),
                nodes,
            )
            without = [node["name"] for node, is_there in zip(nodes, there) if not is_there]
        manifest = merge(folder, staging, [node["name"] for node in nodes])
    finally:
        # Frees the disk, so that the job's exit status can be written.
        shutil.rmtree(staging, ignore_errors=True)
    new = folder / (MANIFEST + ".new")
    new.write_text(json.dumps(manifest, indent=1))
    new.replace(folder / MANIFEST)
    amounts = {
        name: f"{len(files)} file{'s' * (len(files) != 1)} of {name} "
        f"({sum(one['bytes'] for one in files)} bytes)"
        for name, files in manifest.items()
    }
    message = f"collected {amounts[MODEL]} and {amounts[OUTPUT]}"
    if manifest[CONFLICTS]:
        message += f"; {len(manifest[CONFLICTS])} differ between nodes: see {CONFLICTS}"
    if without:
        message += f"; nothing of {', '.join(without)}, whose machine has no folder of this job"
    return message


def fetch_results(node: dict[str, Any], head: dict[str, Any], job_id: str, staging: Path) -> bool:
    """Copy one node's files into a folder with its name. Return False if the node has no folder of
    the job: it is a new machine. Raises NotCollected."""
    place = staging / node["name"]
    place.mkdir()
    frame = FramedCommand(PACK.format(job_id, f"{MODEL} {OUTPUT}"))
    argv = ["sh", "-c"] if node is head else [*SSH, node["address"]]
    pipe = subprocess.PIPE
    # They need no room on the disk.
    with os.fdopen(os.memfd_create("stderr"), "w+b") as errors, os.fdopen(
        os.memfd_create("tar"), "w+b"
    ) as unwritten:
        with subprocess.Popen(
            [*argv, frame.line], stdin=pipe, stdout=pipe, stderr=errors
        ) as sender:
            assert sender.stdin and sender.stdout
            out = sender.stdout.fileno()
            with contextlib.suppress(BrokenPipeError):
                sender.stdin.write(frame.stdin)
                sender.stdin.close()
            # tar fails on a stream that ends early, so an incomplete copy is always noticed.
            with subprocess.Popen(
                ["tar", "-xf", "-", "-C", str(place)], stdin=pipe, bufsize=0, stderr=unwritten
            ) as taken, contextlib.suppress(BrokenPipeError):
                assert taken.stdin
                for chunk in iter(lambda: os.read(out, 1 << 16), b""):
                    taken.stdin.write(frame.take("stdout", chunk))
        errors.seek(0)
        text = errors.read()
        if frame.process is not None:  # else it is ssh's, or of the login files
            text = frame.take("stderr", text)
        if frame.status == NOTHING_THERE:
            return False
        if frame.status == 0:  # a stream that broke off is not the fault of what reads it
            unwritten.seek(0)
            text += unwritten.read()
        sys.stderr.buffer.write(text)
        sys.stderr.flush()
    first = text.decode(errors="replace").strip().partition("\n")[0]
    if frame.status != 0:
        raise NotCollected(f"not all came from {node['name']}{first and f': {first}'}")
    if taken.returncode:  # tar has printed why
        raise NotCollected(f"not all that {node['name']} sent could be written here")
    return True


def merge(folder: Path, staging: Path, hosts: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Merge the nodes' files into one tree, in the nodes' order. Return the manifest."""
    manifest: dict[str, list[dict[str, Any]]] = {name: [] for name in COLLECTED}
    collected: dict[str, str] = {}
    for host in hosts:
        top = staging / host
        for path in sorted(one for one in top.rglob("*") if one.is_file()):
            name = path.relative_to(top).as_posix()
            digest = digest_of(path)
            if collected.get(name) == digest:
                continue
            kind, target = name.partition("/")[0], folder / name
            if kind == name:
                raise NotCollected(f"{name} is a file on {host}, where a folder was")
            if name in collected or is_taken(target):
                kind, target = CONFLICTS, folder / CONFLICTS / host / name
            collected.setdefault(name, digest)
            target.parent.mkdir(parents=True, exist_ok=True)
            size = path.stat().st_size
            path.replace(target)
            row = {"path": name, "bytes": size, "sha256": digest, "host": host}
            manifest[kind].append(row)
    return manifest


def is_taken(target: Path) -> bool:
    """Return whether no file can be created there: it is a folder, or a folder above is a file."""
    return target.is_dir() or any(one.is_file() for one in target.parents)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    content = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(CHUNK_BYTES), b""):
            content.update(chunk)
    return content.hexdigest()


def no_upload_to(request: str) -> str:
    """Return why an upload from this node to that URL in S3 will fail: no credentials, or no
    bucket. Empty if it may succeed. `call` runs it before a job, whose end is too late for it."""
    tool = upload_tool()
    listed = tool.run(_line(tool, "ls", f"{request.rstrip('/')}/"))
    text = listed.stderr.decode(errors="replace")
    certain = listed.returncode and re.search(f"{NO_KEYS}|NoSuchBucket", text)
    return str(explained(text, tool, request)) if certain else ""


def upload_tool() -> Tool:
    """Return the tool that uploads. Raises NotCollected."""
    try:
        return Tool({"tool": next(filter(tool_at, TOOLS), "s5cmd"), "sources": []})
    except Failure as failure:
        raise NotCollected(str(failure)) from failure


def upload(folder: Path, url: str) -> str:
    """Upload the files, then the manifest, to URL/JOB, which is returned. Raises NotCollected:
    before anything is uploaded if a name can be none in S3."""
    place = f"{url}/{folder.name}"
    prefix = place.split("/", 3)[3]
    for path in (one for name in COLLECTED for one in (folder / name).rglob("*")):
        name = os.fsencode(path.relative_to(folder)).decode(errors="backslashreplace")
        try:
            key = f"{prefix}/{path.relative_to(folder)}".encode()
        except UnicodeEncodeError:
            raise NotCollected(f"names in S3 are UTF-8, and this one is not: {name}") from None
        if len(key) > KEY_BYTES and not path.is_dir():
            raise NotCollected(f"S3 has names of at most {KEY_BYTES} bytes, not {len(key)}: {name}")
    tool = upload_tool()
    for name in COLLECTED:
        if (folder / name).is_dir():
            many = [] if tool.name == "s5cmd" else ["--recursive"]
            _run(tool, ["cp", *many, f"{folder / name}/", f"{place}/{name}/"])
    _run(tool, ["cp", str(folder / MANIFEST), f"{place}/{MANIFEST}"])
    return place


def _line(tool: Tool, *words: str) -> list[str]:
    return tool.line(*(["s3"] if tool.name == "aws" else []), *words)


def _run(tool: Tool, words: list[str]) -> None:
    done = tool.run(_line(tool, *words))
    if done.returncode:
        raise NotCollected(str(explained(done.stderr.decode(errors="replace"), tool, words[-1])))
