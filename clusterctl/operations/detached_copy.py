"""A copy that continues without this machine: a job on the head node copies to the other nodes.

If SRC is on this machine, it is copied to the head node first, and the job copies from there. From
URLs, the nodes fetch it themselves.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.bootstrap.head_programs import FOLDER, put_programs
from clusterctl.copy.fetch import UrlAccess, send_tools, url_sources
from clusterctl.copy.report import new_state
from clusterctl.copy.request import CopyRequest, is_s3
from clusterctl.copy.s3 import KEYS_VARIABLE, AccessKeys
from clusterctl.domain.errors import UsageError
from clusterctl.domain.results import HostOutcome
from clusterctl.jobs.deploy import HOSTS_PATH
from clusterctl.jobs.detached import job_running_error, start_job
from clusterctl.jobs.plan import new_job_id
from clusterctl.node.jobs.folder import COPIED
from clusterctl.node.jobs.jobs import Submission
from clusterctl.node.jobs.spec import COPY, JobSpec, JobStep
from clusterctl.node.record import to_json
from clusterctl.node.relay.compare import FoundDestination, find_destination
from clusterctl.node.relay.manifest import FOLDER as A_FOLDER
from clusterctl.node.relay.scan import SourceError, scan
from clusterctl.operations.access import Access
from clusterctl.operations.copy import sender
from clusterctl.operations.logs import running_jobs
from clusterctl.transport.call import NodeCall, call
from clusterctl.transport.dial import Target

PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class DetachedCopy:
    """A copy that a job on the head node can do. `targets` are the nodes that the job copies to.

    `origin` is the node that the job copies from, empty for the head node itself. `names` are for
    copyclust's --files-from. For a source on this machine they list everything in it: the job
    copies from DST on the head node, which may contain other files, too. `single` means that the
    source is one file, to which DST may give another name.
    """

    request: CopyRequest
    targets: tuple[Target, ...]
    origin: str = ""
    names: tuple[bytes, ...] = ()
    single: bool = False

    @property
    def needs_this_machine(self) -> bool:
        """Whether SRC is on this machine."""
        return self.request.from_node is None and not self.request.has_urls


@dataclass(frozen=True)
class StartedCopy:
    """A copy whose job has been started. `tools` names the tools for S3 in use, `failures` are the
    errors of nodes that did not answer or could get no tool."""

    job: JobSpec
    tools: str = ""
    failures: tuple[HostOutcome[None], ...] = ()


def plan_detached_copy(
    access: Access, targets: Sequence[Target], request: CopyRequest
) -> DetachedCopy:
    """Plan the job's part of a copy. Nothing is copied yet.

    Raise UsageError if the copy cannot be detached, JobRunning if a job copies to the same DST.
    """
    if request.dry_run:
        raise UsageError("--detach and --dry-run exclude each other", "leave out --detach")
    head, origin = access.head, ""
    if request.has_urls:
        url_sources(request)
        copy = DetachedCopy(request, tuple(targets), "", request.names or ())
    elif request.from_node is None:
        rest = tuple(target for target in targets if target != head)
        if len(rest) == len(targets):
            raise UsageError(
                "--detach copies the data to the head node first, which is not among these nodes",
                "name it in --nodes, too",
            )
        if not rest:
            raise UsageError("there is no node but the head node to copy to", "leave out --detach")
        copy = DetachedCopy(request, rest, "", *_found_here(request))
    else:
        (source,) = access.select((request.from_node,))
        if source != head:
            origin = source.host
            if source not in targets:
                raise UsageError(
                    f"with --detach, {origin} has to be among the nodes to copy to",
                    "name it in --nodes, too",
                )
        copy = DetachedCopy(request, tuple(targets), origin, request.names or ())
    copies = [job for job in running_jobs(access) if job.spec.preset == COPY]
    place = _on_head(access, request).real if copies else ""
    for job in copies:
        if job.spec.destination == place:
            raise job_running_error(job.job_id, access.cluster.name, place)
    return copy


def _on_head(access: Access, request: CopyRequest) -> FoundDestination:
    """Return where DST is on the head node. Raises HostError."""
    find = NodeCall(find_destination, request.destination, "finding DST", PROBE_TIMEOUT_S)
    return call(access.connections, access.head, find)


def _found_here(request: CopyRequest) -> tuple[tuple[bytes, ...], bool]:
    """Return the names of all entries in the sources, and whether the source is a single file.

    Raise UsageError.
    """
    sources = [os.fsencode(os.path.expanduser(one)) for one in request.sources]  # noqa: PTH111
    try:
        found = scan(sources, request.names, os.fsencode(Path.cwd()))
    except SourceError as error:
        raise UsageError(str(error)) from None
    # --files-from copies a named folder with all that it contains. So only empty folders are named;
    # the others come with their files.
    full = {entry.path.rpartition(b"/")[0] for entry in found.entries} | {b"."}
    names = [one.path for one in found.entries if one.kind != A_FOLDER or one.path not in full]
    if not names:
        raise UsageError(f"there is nothing in {request.sources[0]!r}", "leave out --detach")
    return tuple(names), found.single


def start_copy_job(
    access: Access,
    copy: DetachedCopy,
    *,
    urls: UrlAccess,
    offline: bool,
    mirror: bool = False,
    options: Sequence[str] = (),
) -> StartedCopy:
    """Start the job. Raise JobRunning, HostError, and the error of the first node if no node can
    fetch from S3.

    Nodes without a tool for S3 get one first. `urls` is how they access it. `mirror`:
    --delete has made DST on the head node identical to the source on this machine, so the job can
    copy all of DST with --delete. `options` are further options for copyclust. For `offline` see
    put_programs.
    """
    tools = ""
    failures: tuple[HostOutcome[None], ...] = ()
    if any(map(is_s3, copy.request.sources)):
        send = sender(access.connections)
        ready = send_tools(access.connections, copy.targets, copy.request, urls, send)
        tools = ready.plan["tool"]
        failures = tuple(HostOutcome[None](node.host, error=node.error) for node in ready.failed)
        if len(failures) == len(copy.targets) and failures[0].error:
            raise failures[0].error
    # The head node may have an older copyclust, if an older clusterctl launched it.
    put_programs(access.connections, access.head, HOSTS_PATH, access.folder.home, offline)
    request = _submission(copy, _on_head(access, copy.request), urls, mirror, options)
    start_job(access.connections, access.head, request, access.cluster.name)
    return StartedCopy(request.spec, tools, failures)


def _submission(
    copy: DetachedCopy,
    there: FoundDestination,
    urls: UrlAccess,
    mirror: bool,
    options: Sequence[str],
) -> Submission:
    """Return the job that runs copyclust on the head node, where `there` is DST."""
    home, job_id = there.home, new_job_id()
    folder = f"{home}/.clusterctl/jobs/{job_id}"
    hosts = [target.host for target in copy.targets]
    files = {"hosts": "".join(f"{host}\n" for host in hosts), COPIED: new_state(hosts)}
    if copy.names and (there.is_folder or not copy.single) and not mirror:
        names = b"".join(name + b"\0" for name in copy.names)
        files["names"] = names.decode("utf-8", "surrogateescape")
    words = [*options, *copyclust_options(copy, urls, mirror), "--state-file", f"{folder}/{COPIED}"]
    if "names" in files:
        words += ["-0", "--files-from", f"{folder}/names"]
    sources, destination = copy.request.sources, copy.request.destination
    if copy.needs_this_machine:
        slash = "/" if there.is_folder else ""
        destination = destination.rstrip("/") + slash
        sources = (there.path.rstrip("/") + slash,)
    private = temporary_keys(urls)
    program = f"{home}/{FOLDER}/bin/copyclust"
    spec = JobSpec(
        job_id,
        preset=COPY,
        steps=(JobStep((program, *words, "--", f"{folder}/hosts", *sources, destination)),),
        workdir=home,
        claims=(f"{COPY}:{there.real}",),
        destination=there.real,
        sources=copy.request.sources,
        variables=dict.fromkeys(private),
    )
    return Submission(spec, private=private, files=files)


def temporary_keys(urls: UrlAccess) -> dict[str, str]:
    """Return the private variable that has the temporary credentials: they are in no file."""
    keys = urls.credentials
    return {KEYS_VARIABLE: to_json(keys)} if isinstance(keys, AccessKeys) else {}


def copyclust_options(copy: DetachedCopy, urls: UrlAccess, mirror: bool) -> list[str]:
    """Return the request as options for the job's copyclust. Pure."""
    request = copy.request
    words = ["--from", copy.origin] if copy.origin else []
    words += [f"--{one}" for one in ("checksum", "verify", "encrypt") if getattr(request, one)]
    if request.delete and (mirror or not copy.needs_this_machine):
        words.append("--delete")
    numbers = {"streams": request.streams, "block-size": request.block_bytes, "port": request.port}
    words += [
        word for name, value in numbers.items() if value for word in (f"--{name}", str(value))
    ]
    if request.has_urls:
        keys = urls.credentials
        words += ["--credentials", "mine" if isinstance(keys, AccessKeys) else keys or "profile"]
        words += ["--tool", urls.tool]
        words += ["--s3-endpoint", urls.endpoint] if urls.endpoint else []
        words += ["--s3-region", urls.region] if urls.region else []
    if request.link_rate:
        words += ["--link-rate", f"{request.link_rate * 8 / 1e6:f}mbit"]
    return words
