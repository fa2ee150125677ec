"""The tutorial's folder on every node: examples, utils, the hosts file, what train.sh starts."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import io
import json
import shlex
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.domain.errors import CommandFailed
from clusterctl.domain.results import CommandResult, FanoutResult, json_lines
from clusterctl.jobs.plan import EXAMPLES_FOLDER
from clusterctl.node.packer import program_of
from clusterctl.transport.connections import Connections
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.target import Target

# In the checkout a link to examples/horovod, in an installed package a folder. The hyphen keeps
# the programs in it from being taken for modules of this package.
EXAMPLES = Path(__file__).parent / "shipped-examples"
UTILS = Path(__file__).parent / "shipped-utils"  # likewise, utils/
LAUNCHER_PATH = ".clusterctl/launch.pyz"
HOSTS_PATH = f"{EXAMPLES_FOLDER}/hosts"
UNPACK = program_of("clusterctl.node.jobs.unpack")
UNPACK_TIMEOUT_S = 60.0
RECORD_PATH = ".clusterctl/shipped.json"
# All nodes of a new cluster at once, so without an interpreter. What goes wrong here goes wrong
# again in `unpack`, which says what it is.
FIRST = f"""cd && if [ -e {RECORD_PATH} ] || [ -e examples/horovod ]; then
cat >/dev/null; else tar -xpzmf - 2>/dev/null && echo first; fi"""


@dataclass(frozen=True)
class DeployedFiles:
    """What came of it on one node. `kept` files differ: the user changed them there."""

    written: tuple[str, ...]
    same: tuple[str, ...]
    kept: tuple[str, ...]


def deploy_files(
    connections: Connections,
    targets: Sequence[Target],
    hosts_text: str,
    script_of: Callable[[Target], str] = lambda target: "",
) -> FanoutResult[CommandResult]:
    """Put ~/examples/horovod, its utils, its hosts file and train.sh's launcher on every node.

    `script_of` gives what a node runs before, in the same command: a script for `sh` that prints
    "complete" when it is done. One command on a new node, two on one that has files of ours. Those
    that are the same are left alone, and so are those that the user changed there (but for the
    hosts file). Read a result with `deployed_files`.
    """
    files = {**example_files(), HOSTS_PATH: hosts_text.encode()}
    first, update = first_archive(files), archive(files)
    all_written = json.dumps({"written": list(files)}) + "\n"

    def one(target: Target) -> CommandResult:
        script = script_of(target).encode()
        result = connections.run(
            target, first_command(len(script)), stdin=script + first, timeout_s=UNPACK_TIMEOUT_S
        )
        if script and "complete" not in result.stdout.splitlines():
            reason = result.stderr.strip() or f"exit status {result.exit_status}"
            raise CommandFailed(
                target.host,
                f"could not be prepared: {reason}",
                "is its disk full? run `up` again once it is mended",
            )
        if result.stdout.endswith("first\n"):
            return replace(result, stdout=all_written)
        return _update(connections, target, update)

    return fan_out(one, targets)


def deployed_files(result: CommandResult) -> DeployedFiles:
    """What `deploy_files` did on one node. Raises CommandFailed, for example on a full disk."""
    [report] = json_lines(result, "putting the examples there") or [{}]
    return DeployedFiles(*(tuple(report.get(key, ())) for key in ("written", "same", "kept")))


def _update(connections: Connections, target: Target, payload: bytes) -> CommandResult:
    return connections.run(
        target,
        UNPACK.command(HOSTS_PATH, LAUNCHER_PATH),
        stdin=UNPACK.stdin(payload),
        timeout_s=UNPACK_TIMEOUT_S,
    )


def first_command(script_bytes: int) -> str:
    """Run the script that comes first on standard input, then unpack the archive behind it."""
    # `head` takes no byte more than it is told to. The script is too long for an argument where
    # the cluster has hundreds of nodes, and in a subshell its options and folder stay its own.
    script = f'(eval "$(head -c {script_bytes})")\n[ $? = 0 ] || exit 1\n' if script_bytes else ""
    return shlex.join(["sh", "-c", script + FIRST])


def first_archive(files: Mapping[str, bytes]) -> bytes:
    """A tar archive for FIRST, compressed: each node gets one, through a home's uplink.

    The record of what was put there comes last: without it, what an interrupted first time left is
    written anew.
    """
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    record = {RECORD_PATH: json.dumps(digests, indent=1).encode()}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, data in {**files, **record}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), _mode(name)
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(content.getvalue(), 6)


def _mode(name: str) -> int:
    return 0o755 if name.endswith(".sh") else 0o644


@functools.lru_cache(maxsize=1)
def example_files() -> Mapping[str, bytes]:
    """Path in the home folder -> content, for everything but the hosts file."""
    return {
        **_below("examples/horovod", EXAMPLES),
        **_below(f"{EXAMPLES_FOLDER}/utils", UTILS),
        LAUNCHER_PATH: program_of("clusterctl.jobs.train_sh").zipapp(compress=True),
    }


def _below(place: str, folder: Path) -> dict[str, bytes]:
    return {
        f"{place}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def archive(files: Mapping[str, bytes]) -> bytes:
    """The files as `unpack` on the node reads them, compressed; shell scripts are executable."""
    described = {
        name: {
            "mode": _mode(name),
            "content": base64.b64encode(data).decode(),
        }
        for name, data in files.items()
    }
    return zlib.compress(json.dumps(described).encode())
