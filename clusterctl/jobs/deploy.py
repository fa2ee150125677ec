"""Puts the tutorial's examples, hosts file and launcher, and users' programs on every node."""

from __future__ import annotations

import ast
import base64
import errno
import gzip
import hashlib
import io
import json
import os
import shlex
import subprocess
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from clusterctl.domain.errors import CommandFailed, UsageError
from clusterctl.domain.results import CommandResult, FanoutResult, last_line
from clusterctl.domain.units import count, format_bytes
from clusterctl.jobs.plan import (
    CODE_FOLDER,
    OTHER_LANGUAGE,
    RANK_PROGRAM,
    START_RANK_PATH,
    TORCH_RANK_PATH,
    is_on_nodes,
)
from clusterctl.node.facts.training import COMPILED, ELF
from clusterctl.node.jobs.folder import LIST_SHIPPED, SCRIPT_FOLDERS, START_DAEMON_PATH
from clusterctl.node.jobs.unpack import SHIPPED, DeployedFiles, ShippedFile
from clusterctl.node.packer import program_of
from clusterctl.node.paths import CONTRACT, EXAMPLES_FOLDER
from clusterctl.node.record import to_json
from clusterctl.transport.call import record_in
from clusterctl.transport.connections import Connections
from clusterctl.transport.dial import Target
from clusterctl.transport.fanout import fan_out

# In the checkout this is a link to examples/horovod, in an installed package a folder. The hyphen
# in its name keeps Python from importing the programs in it as modules of this package.
EXAMPLES = Path(__file__).parent / "shipped-examples"
UTILS = Path(__file__).parent / "shipped-utils"  # likewise, a link to utils/
LAUNCHER_PATH = ".clusterctl/launch.pyz"  # what train.sh runs: jobs/train_sh.py
HOSTS_PATH = f"{EXAMPLES_FOLDER}/hosts"
UNPACK = program_of("clusterctl.node.jobs.unpack")
UNPACK_TIMEOUT_S = 60.0
# Unpacks the first archive on a new node. All nodes of a cluster do that at once, so it starts no
# Python. If it fails, `unpack` follows, fails for the same reason, and reports it.
FIRST = f"""cd && if [ -e {SHIPPED} ] || [ -e examples/horovod ]; then
cat >/dev/null; else tar -xpzmf - 2>/dev/null && echo first; fi"""


def deploy_files(
    connections: Connections,
    targets: Sequence[Target],
    hosts_text: str,
    script_of: Callable[[Target], str] | None = None,
) -> FanoutResult[CommandResult]:
    """Put ~/examples/horovod, its utils, its hosts file and train.sh's launcher on every node.

    `script_of` returns a script for `sh` that a node, perhaps a new one, runs first, in the same
    command; it prints "complete" at its end. Then a new node needs one command, a node that has our
    files two. Files that are the same stay as they are, and so do those that the user changed on
    the node, except the hosts file, the launcher and what starts ranks. A node whose script fails
    has a CommandFailed as its outcome. Read the other results with `deployed_files`.
    """
    files = {**example_files(), HOSTS_PATH: hosts_text.encode()}
    first, update = first_archive(files) if script_of else b"", UNPACK.stdin(archive(files))
    generated = (HOSTS_PATH, LAUNCHER_PATH, TORCH_RANK_PATH, START_RANK_PATH, START_DAEMON_PATH)
    all_written = to_json(DeployedFiles(tuple(files))) + "\n"
    run = partial(connections.run, timeout_s=UNPACK_TIMEOUT_S)

    def one(target: Target) -> CommandResult:
        if script_of:
            script = script_of(target).encode()
            result = run(target, first_command(len(script)), stdin=script + first)
            if "complete" not in result.stdout.splitlines():
                reason = result.stderr.strip() or f"exit status {result.exit_status}"
                raise CommandFailed(
                    target.host,
                    f"could not be prepared: {reason}",
                    "make room on its disk" if os.strerror(errno.ENOSPC) in reason else "",
                )
            if result.stdout.endswith("first\n"):
                return replace(result, stdout=all_written)
        return run(target, UNPACK.command(*generated), stdin=update)

    return fan_out(one, targets)


def deployed_files(result: CommandResult) -> DeployedFiles:
    """Return what `deploy_files` did on a node. Raises CommandFailed, e.g. if the disk is full."""
    return record_in(DeployedFiles, result, "putting the examples there")


def first_command(script_bytes: int) -> str:
    """Return a command that runs the script at the start of its stdin, then unpacks the archive.

    The first `script_bytes` bytes of stdin are the script.
    """
    # `head -c` reads no byte more than that. The script comes on stdin, since for clusters of
    # hundreds of nodes it is too long for an argument. It runs in a subshell, so that its options
    # and its working folder do not affect what follows.
    script = f'(eval "$(head -c {script_bytes})")\n[ $? = 0 ] || exit 1\n'
    return shlex.join(["sh", "-c", script + FIRST])


def first_archive(files: Mapping[str, bytes]) -> bytes:
    """Return a compressed tar archive for FIRST. Each node gets it through the user's uplink.

    The record of the files is the last member: if unpacking is interrupted, it is missing, and all
    files are written again.
    """
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    record = {SHIPPED: to_json(digests).encode()}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, data in {**files, **record}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), _mode(name)
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(content.getvalue(), 6)


def _mode(name: str) -> int:
    return 0o755 if name.endswith(".sh") else 0o644


@lru_cache(maxsize=1)
def example_files() -> Mapping[str, bytes]:
    """Return the files to deploy, except the hosts file, by their paths in the home folder."""
    return {
        **_below("examples/horovod", EXAMPLES, "*/*"),
        **_below(f"{EXAMPLES_FOLDER}/utils", UTILS, "*"),
        LAUNCHER_PATH: program_of("clusterctl.jobs.train_sh").zipapp(compress=True),
        TORCH_RANK_PATH: program_of("clusterctl.node.jobs.torch_rank").text.encode(),
        START_RANK_PATH: program_of("clusterctl.node.jobs.start_rank").text.encode(),
        START_DAEMON_PATH: program_of("clusterctl.node.jobs.start_daemon").text.encode(),
    }


def _below(place: str, folder: Path, pattern: str) -> dict[str, bytes]:
    # The patterns are those of `package_data` in setup.cfg. In a checkout, a run of the trainer
    # leaves logs and checkpoints in folders next to it, which must not be deployed.
    return {
        f"{place}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in sorted(folder.glob(pattern))
        if path.is_file()
    }


def archive(files: Mapping[str, bytes]) -> bytes:
    """Return the files as compressed JSON, which `unpack` reads. Shell scripts are executable."""
    described = {
        name: ShippedFile(_mode(name), base64.b64encode(data).decode())
        for name, data in files.items()
    }
    return zlib.compress(to_json(described).encode())


# Limits of a program's folder: it is sent to each node separately, through the user's uplink.
MOST_CODE_BYTES = 64 << 20
MOST_CODE_FILES = 10_000
CODE_TIMEOUT_S = 600.0
# Folders that are not shipped if the program is in no git work tree. Neither are virtual
# environments, nor names that begin with a dot.
NO_CODE = {"__pycache__", "node_modules", "venv"}


@dataclass(frozen=True)
class Code:
    """A program on this machine and the files that are shipped with it.

    `script` and `files` are paths below `folder`. `commit` is that of the git work tree, `changed`
    lists the files that differ from it, a line each; both are empty outside of a work tree.
    """

    folder: Path
    script: str
    files: tuple[str, ...]
    size_bytes: int
    commit: str = ""
    changed: str = ""

    def __str__(self) -> str:
        more = f" and {count(len(self.files) - 1, 'other file')}" if len(self.files) > 1 else ""
        return f"{self.script}{more} from here ({format_bytes(self.size_bytes)})"

    def as_data(self) -> dict[str, Any]:
        """Return the values for the job's record."""
        return {**vars(self), "folder": str(self.folder), "changed": self.changed.splitlines()}

    def archive(self, below: str = "", more: Mapping[str, bytes] = MappingProxyType({})) -> bytes:
        """Return a compressed tar archive of the files, with the prefix `below`, and of `more`.

        Raises UsageError for a file that cannot be read.
        """
        content = io.BytesIO()
        try:
            with tarfile.open(fileobj=content, mode="w:gz", compresslevel=6) as tar:
                for name in self.files:
                    tar.add(shipped_for(self.folder, name), below + name, recursive=False)
                for name, data in more.items():
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        except OSError as error:
            raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None
        return content.getvalue()


def shipped_for(folder: Path, name: str) -> Path:
    """Return the path of the file that is shipped as `name`.

    For a link to a file outside the folder it is that file, which the nodes do not have.
    """
    path = folder / name
    there = path.resolve() if path.is_symlink() and path.is_file() else path
    return path if there.is_relative_to(folder) else there


def program_to_ship(
    script: str, source_dir: str | None = None, in_script_mode: bool = False
) -> Code | None:
    """Return the program that --script names, with its folder; None for a program on the nodes.

    `source_dir` is a folder that contains the program's, shipped in its place. In a git work tree
    the files are those that git tracks or would add, elsewhere all except NO_CODE. Raises
    UsageError if there is no such program, if it cannot be Python (in script mode it may be a shell
    script), if an absolute path is that of a file in this user's home folder, or if the folder is
    too large to be shipped.
    """
    path = Path(script)
    if is_on_nodes(script):
        if path.is_relative_to(Path.home()) and path.is_file():  # as a shell expands `~`
            there = shlex.quote(f"~/{path.relative_to(Path.home())}")
            raise UsageError(
                f"--script {script}: is the program here meant, or that of the nodes?",
                f"cd {shlex.quote(str(path.parent))} and --script {shlex.quote(path.name)} ships "
                f"what is here; --script {there} runs what is on the nodes",
            )
        return None
    option = "entry_point" if source_dir else "--script"
    if not path.is_file():
        what, hint = "there is no such file here", "name a Python program"
        next_to_it = "one next to it that starts a module (docs/scripts.md)"
        if path.is_dir():
            what = "is a folder"
            hint += f" in it, or for a package {next_to_it}"
        elif {"-m", "--module"} & {*script.split()}:
            hint = f"a module is not named; for a package name {next_to_it}"
        elif source_dir:
            hint += " in source_dir"
        else:
            hint += f"; one of the nodes is {shlex.quote(f'~/{path.name}')}, quoted"
        raise UsageError(f"{option} {script}: {what}", hint)
    is_shell = in_script_mode and path.suffix == ".sh"
    if not is_shell and (wrong := _not_python(path)):
        raise UsageError(f"{option} {script}: {wrong}", OTHER_LANGUAGE)
    folder = Path(source_dir).resolve() if source_dir else path.resolve().parent
    name = Path(os.path.relpath(path.parent.resolve() / path.name, folder)).as_posix()
    if name.startswith("../"):
        raise UsageError(f"{script} is not in {source_dir}", "name a program below source_dir")
    if folder in (Path.home().resolve(), *Path.home().resolve().parents):
        raise UsageError(
            f"--script {script}: its folder is {folder}, and would be shipped whole",
            "put the program into a folder of its own",
        )
    files, size = _files_to_ship(script, folder, name)
    commit = _git(folder, "rev-parse", "HEAD").strip()
    changed = _git(folder, "status", "--porcelain", "--", ".") if commit else ""
    return Code(folder, name, files, size, commit, changed)


def _files_to_ship(script: str, folder: Path, name: str) -> tuple[tuple[str, ...], int]:
    """Return the files below `folder`, that of the program `name` first, and their bytes in all.
    Raises UsageError if they are too many or too large."""
    listed = _git(folder, "ls-files", "-z", "-co", "--exclude-standard").split("\0")[:-1]
    names = sorted(set(listed) or _walk(folder))
    found = [one for one in names if (folder / one).is_symlink() or (folder / one).is_file()]
    # The program itself is shipped even if git ignores it: the user requested it.
    files = tuple(dict.fromkeys([name, *found]))
    sizes = Counter[str]()
    for one in files:
        sizes[one.partition("/")[0]] += shipped_for(folder, one).lstat().st_size
    size = sum(sizes.values())
    if size > MOST_CODE_BYTES or len(files) > MOST_CODE_FILES:
        largest = ", ".join(f"{one} ({format_bytes(n)})" for one, n in sizes.most_common(3))
        raise UsageError(
            f"--script {script}: {count(len(files), 'file')} of {format_bytes(size)} in {folder} "
            f"are too much to ship; at most {MOST_CODE_FILES} of {format_bytes(MOST_CODE_BYTES)} "
            f"in all. The largest: {largest}",
            "name what the program does not need in .gitignore of a git work tree, or move it out "
            "of the folder; data comes to the nodes with `clusterctl copy`",
        )
    return files, size


def _not_python(path: Path) -> str:
    """Return why a file here cannot be a Python program; empty if it may be one.

    What is named .py may have the syntax of another Python than this one, and Python also runs its
    own compiled files and zip files.
    """
    try:
        content = path.read_bytes()
        if content.startswith(ELF):
            return COMPILED
        if path.suffix != ".py" and b"\0" not in content:
            ast.parse(content)
    except OSError as error:
        return f"cannot read it: {error.strerror}"
    except SyntaxError as error:
        return f"it is not in Python: line {error.lineno}: {error.msg}"
    return ""


def _git(folder: Path, *arguments: str) -> str:
    """Return git's output; empty if it fails or is not installed."""
    argv = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(argv, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        return ""
    return os.fsdecode(done.stdout) if done.returncode == 0 else ""


def _walk(folder: Path) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in NO_CODE
            and not Path(place, name, "pyvenv.cfg").exists()
        ]
        for name in names:
            if not name.startswith(".") and not name.endswith(".pyc"):
                yield Path(place, name).relative_to(folder).as_posix()


def ship_code(
    connections: Connections,
    targets: Sequence[Target],
    code: Code,
    job_id: str,
    contract: Mapping[str, Any] | None = None,
) -> FanoutResult[CommandResult]:
    """Put a program and its files into a folder of the job's own on every node.

    So nothing changes what the job imports while it runs. With a `contract`, for a script-mode
    program, the folder has the layout of SageMaker's /opt/ml. If a node fails, for example because
    its disk is full, its outcome is a CommandFailed.
    """
    archive, place, links = code.archive(), f"{CODE_FOLDER}/{job_id}", ""
    channels: dict[str, str] = {}
    if contract is not None:
        program = program_of("clusterctl.node.scripts.rank").zipapp(compress=True)
        contract_text = json.dumps(contract, indent=1).encode()
        archive = code.archive("code/", {RANK_PROGRAM: program, CONTRACT: contract_text})
        channels = {
            name: str(one["source"])
            for name, one in contract["channels"].items()
            if one["mode"] == "File" and str(one["source"]).startswith(("~", "/"))
        }
        links = _channel_links(place, channels)

    def one(target: Target) -> CommandResult:
        unpack = f"mkdir -p {place} && tar -xzf - -C {place} && (cd {place} && {LIST_SHIPPED})"
        script = f"cd && umask 077 && {unpack}{links}"
        command = shlex.join(["sh", "-c", script])
        result = connections.run(target, command, stdin=archive, timeout_s=CODE_TIMEOUT_S)
        if not result.ok:
            reported = last_line(result.stderr)
            absent = next(
                (one for one in channels if reported == _absent(one, channels[one])), None
            )
            if absent:
                raise CommandFailed(target.host, reported, _data_hint(channels[absent], code.files))
            raise CommandFailed(target.host, f"cannot put {code.script} there: {reported}")
        return result

    return fan_out(one, targets)


def remove_code(connections: Connections, targets: Sequence[Target], job_id: str) -> None:
    """Remove a program, with its channels, whose job was not started, from all nodes that answer;
    `clean-logs --jobs` removes it from the others."""
    connections.run_all(targets, f"cd && rm -rf {CODE_FOLDER}/{job_id}", timeout_s=CODE_TIMEOUT_S)


def _absent(name: str, source: str) -> str:
    return f"channel {name}: there is no folder {source} on this node"


def _data_hint(source: str, files: Sequence[str]) -> str:
    """Return how a channel's data get to the nodes. `files` are those shipped with the
    program."""
    place = shlex.quote(f"{source.rstrip('/')}/")
    hint = f"copy the data there: clusterctl copy NAME FOLDER/ {place}"
    makers = [name for name in files if Path(name).name.startswith("make_sample_")]
    if makers:
        copy = f"clusterctl copy NAME --from 0 {place} {place}"
        hint += f"; or make some on the head node with {makers[0]} (docs/examples.md), then: {copy}"
    return hint


def _channel_links(place: str, channels: Mapping[str, str]) -> str:
    """Return the shell commands that link channels, which are folders on the nodes. `channels` are
    these folders by name.

    The links are in the job's folder, as SageMaker's /opt/ml/input/data has the channels. A folder
    that is missing is an error.
    """
    script = f" && cd {place} && mkdir -p {' '.join(SCRIPT_FOLDERS)}"
    for name, source in channels.items():
        path = '"$HOME"' + shlex.quote(source[1:]) if source[0] == "~" else shlex.quote(source)
        absent = shlex.quote(_absent(name, source))
        script += (
            f" && {{ [ -d {path} ] || {{ echo {absent} >&2; false; }}; }}"
            f" && ln -s {path} input/data/{name}"
        )
    return script
