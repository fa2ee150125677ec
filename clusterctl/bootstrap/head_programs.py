"""Installs programs on the head node: `runclust` and `copyclust`, which the tutorial types there
(docs/runclust.md), and the watchdog of jobs (`train --watchdog`).

Their libraries are copied from this machine if the head node has the same Python, else pip installs
them there.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import shlex
import sys
import sysconfig
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, requires
from pathlib import Path

import clusterctl
from clusterctl.domain.errors import ClusterctlError, CommandFailed
from clusterctl.domain.files import write_file
from clusterctl.transport.connections import Connections
from clusterctl.transport.dial import Target

PACKAGE = Path(clusterctl.__file__).parent
# The module of each program.
PROGRAMS = {
    "runclust": "cli.runclust",
    "copyclust": "cli.copyclust",
    "clusterctl-watchdog": "operations.watchdog",
}
# Packages that are not copied: the programs do not call AWS.
NOT_THERE = ("ec2", "lab")
# Programs, and the catalogue of `explain`, which `diagnose` reads.
SUFFIXES = {".py", ".toml"}
LIBRARIES = ("ahocorasick-rs", "click", "paramiko", "rich", "tomli")
# Dependencies that the programs do not use: 7 of 30 MB.
UNUSED = {"invoke", "markdown-it-py", "mdurl", "pycparser", "pygments"}
# Below the home folder: this needs no root, and replaces no other program.
FOLDER = ".local/share/clusterctl"
OLDEST_PYTHON = (3, 9)
CHECK_TIMEOUT_S = 30.0
# An upload of 8 MB over a home connection, or pip on the head node.
PUT_TIMEOUT_S = 180.0

_FACTS = """\
import sys, sysconfig
print("python", sys.executable, sysconfig.get_config_var("SOABI"), *sys.version_info[:2])
"""
_LAUNCHER = """\
#!{python} -I
import os, sys
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + "/lib")
from clusterctl.entry import run
run("clusterctl.{module}")
"""
_ON_PATH = f'PATH="$PATH:$HOME/{FOLDER}/bin"  # runclust and copyclust, by clusterctl'
# For a command given to ssh, bash reads only .bashrc, and Ubuntu's ends at once for such a shell.
# So the line has to be the first. It is checked at every `up`: the user may have replaced .bashrc.
_PUT_ON_PATH = f"""\
line={shlex.quote(_ON_PATH)}
for file in .bashrc .profile; do
    if [ "$(head -n 1 $file 2>/dev/null)" = "$line" ]; then continue; fi
    # A login shell reads one of these, and those of the images read .bashrc.
    if [ $file = .profile ] && [ -e .profile -o -e .bash_profile -o -e .bash_login ]; then break; fi
    # A link stays one.
    file=$(realpath -m $file)
    {{ echo "$line"; grep -avxF "$line" "$file" 2>/dev/null || :; }} >"$file.clusterctl"
    [ ! -e "$file" ] || chmod --reference="$file" "$file.clusterctl"
    mv "$file.clusterctl" "$file"
done
"""
_PIP = """\
if ! "$python" -m pip --version >/dev/null 2>&1; then
    "$python" -m venv $new/venv
    python=$new/venv/bin/python
fi
"$python" -m pip install --quiet --disable-pip-version-check --no-input --retries 0 --timeout 10 \
    --only-binary :all: --target $new/lib """


@dataclass(frozen=True)
class Interpreter:
    """A Python on the head node. `abi` is its SOABI: version, processor and C library."""

    path: str
    abi: str
    version: tuple[int, int]


def start_installation(
    connections: Connections, head: Target, hosts_path: str, cache: Path, offline: bool
) -> Callable[[], str]:
    """Start to install the programs in the background. Return a function that waits for the end and
    returns the reason if they are not installed, else an empty text."""
    reason_of: Future[str] = Future()

    def work() -> None:
        reason = "it ended early"
        try:
            put_programs(connections, head, hosts_path, cache, offline)
            reason = ""
        except ClusterctlError as error:
            reason = error.message
        except Exception as error:  # whatever it is: the cluster works without the programs
            reason = f"{type(error).__name__}: {error}"
        finally:
            reason_of.set_result(reason)

    # A daemon thread: after an interrupt this program must not wait for a silent host.
    threading.Thread(target=work, daemon=True).start()
    return reason_of.result


def put_programs(
    connections: Connections, head: Target, hosts_path: str, cache: Path, offline: bool
) -> None:
    """Install the programs on the head node unless they are there. Raises ClusterctlError.

    `hosts_path` is the cluster's hosts file, below the home folder of the node. `cache` is a local
    folder that keeps the packed archive. With `offline` pip uses no package index, only the places
    that its configuration names.
    """
    stamp = own_stamp()
    check = check_script(stamp).encode()
    checked = connections.run(head, "sh -s", stdin=check, timeout_s=CHECK_TIMEOUT_S)
    if checked.stdout == "current\n":
        return
    found = parse_interpreters(checked.stdout)
    own = next((one for one in found if one.abi == own_abi()), None)
    failed = f"it has no Python {sys.version_info[0]}.{sys.version_info[1]} like this machine's"
    if own:
        try:
            archive = _whole_archive(cache / f"head-programs-{stamp}.tar.gz")
            _put(connections, head, put_script(stamp, own, hosts_path), archive)
            return
        except CommandFailed as error:  # for example, the node's C library is older
            failed = error.message
    other = next((one for one in found if one.version >= OLDEST_PYTHON), None)
    if other is None:
        raise CommandFailed(head.host, "it has no Python 3.9 or newer")
    try:
        # The libraries with the versions in clusterctl's own metadata.
        wanted = [one for one in requires("clusterctl") or () if _name(one) in LIBRARIES]
        arguments = [*(["--no-index"] if offline else []), *wanted]
        script = put_script(stamp, other, hosts_path, arguments)
        _put(connections, head, script, _archive(own_files()))
    except CommandFailed as error:
        raise CommandFailed(head.host, f"{failed}; and pip there: {error.message}") from None


def own_abi() -> str:
    return str(sysconfig.get_config_var("SOABI"))


def check_script(stamp: str) -> str:
    """Return a script for `sh -s` that prints `current` if the programs are installed, else a line
    for each Python it finds."""
    names = [f"python3.{minor}" for minor in (sys.version_info[1], *range(14, 8, -1))]
    return f"""\
cd
if [ "$(cat {FOLDER}/stamp 2>/dev/null)" = {stamp} ]; then
{_PUT_ON_PATH}echo current
exit
fi
for name in {names[0]} python3 {" ".join(names[1:])}; do
    ! command -v $name >/dev/null || $name -I -c {shlex.quote(_FACTS)} </dev/null
done
"""


def parse_interpreters(stdout: str) -> list[Interpreter]:
    """Return the interpreters that `check_script` printed, in the order in which they are tried."""
    lines = [line.split() for line in stdout.splitlines()]
    return [
        Interpreter(words[1], words[2], (int(words[3]), int(words[4])))
        for words in lines
        # A path with spaces would not work in the first line of a program.
        if len(words) == 5 and words[0] == "python"
    ]


def put_script(stamp: str, python: Interpreter, hosts_path: str, pip: Sequence[str] = ()) -> str:
    """Return the installation script for `sh`. It reads the archive from stdin, and keeps an
    existing installation until the new one is complete."""
    launchers = "".join(
        f"printf %s {shlex.quote(_LAUNCHER.format(python=python.path, module=module))} "
        f">$new/bin/{program}\n"
        for program, module in PROGRAMS.items()
    )
    return f"""\
set -eu
umask 077
cd
new={FOLDER}.new python={shlex.quote(python.path)}
rm -rf $new
trap 'rm -rf $new' EXIT
mkdir -p $new/bin
tar -xzf - -C $new
{_PIP + shlex.join(pip) if pip else ""}
{launchers}chmod +x $new/bin/*
# Whether its C library will do. To import them all would take longer than the rest of this.
"$python" -I -c '
import ctypes, pathlib, sys
for library in pathlib.Path(sys.argv[1]).rglob("*.so"):
    ctypes.CDLL(str(library))' $new/lib
rm -rf $new/venv
echo {stamp} >$new/stamp
{_PUT_ON_PATH}[ -e hosts ] || ln -sf {hosts_path} hosts
rm -rf {FOLDER}
mv $new {FOLDER}
echo complete
"""


def own_stamp() -> str:
    """Return a hash that changes with everything that is installed."""
    digest = hashlib.sha256((_LAUNCHER + own_abi()).encode())
    for name, path in own_files().items():
        digest.update(f"\0{name}\0".encode() + path.read_bytes())
    for found in installed():
        digest.update(f"\0{found.metadata['Name']} {found.version}".encode())
    return digest.hexdigest()[:20]


def own_files() -> Mapping[str, Path]:
    """Return this package's files by their path in the archive."""
    return {
        f"lib/{path.relative_to(PACKAGE.parent).as_posix()}": path
        for path in sorted(PACKAGE.rglob("*.*"))
        if path.relative_to(PACKAGE).parts[0] not in NOT_THERE and path.suffix in SUFFIXES
    }


def libraries() -> Mapping[str, Path]:
    """Return the files of the libraries installed here, by their path in the archive."""
    return {
        f"lib/{file.as_posix()}": Path(str(found.locate_file(file)))
        for found in installed()
        for file in found.files or ()
        # Files outside the package folder are programs and manual pages; __pycache__ is made again.
        if not {"..", "__pycache__"} & set(file.parts)
    }


def installed() -> Iterator[Distribution]:
    """Yield LIBRARIES and their dependencies, as installed here."""
    todo, done = list(LIBRARIES), set(UNUSED)
    while todo:
        name = _name(todo.pop())
        if name in done:
            continue
        done.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:  # a dependency of other Python versions
            continue
        yield found
        todo += [one for one in found.requires or () if "extra ==" not in one]


def _name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def _put(connections: Connections, head: Target, script: str, archive: bytes) -> None:
    result = connections.run(
        head, shlex.join(["sh", "-c", script]), stdin=archive, timeout_s=PUT_TIMEOUT_S
    )
    if not result.ok or not result.stdout.endswith("complete\n"):
        lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        raise CommandFailed(head.host, lines[-1] if lines else f"exit status {result.exit_status}")


def _whole_archive(path: Path) -> bytes:
    """Return the archive with libraries, kept at `path`: packing takes longer than sending."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    content = _archive({**own_files(), **libraries()})
    with contextlib.suppress(OSError):
        for older in path.parent.glob("head-programs-*"):
            older.unlink()
        write_file(path, content)
    return content


def _archive(files: Mapping[str, Path]) -> bytes:
    # A higher level saves a tenth of the size and takes three times as long.
    content = io.BytesIO()
    # A link of the checkout's leads nowhere on the node.
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1, dereference=True) as tar:
        for name, path in files.items():
            tar.add(path, name, recursive=False)
    return content.getvalue()
