"""`runclust` and `copyclust` on the head node, where the tutorial types them (docs/runclust.md),
and what looks after jobs there (`train --watchdog`).

Their libraries are those of this machine where the head node has the same Python, else pip's there.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import queue
import re
import shlex
import sys
import sysconfig
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, requires
from pathlib import Path

import clusterctl
from clusterctl.domain.errors import ClusterctlError, CommandFailed
from clusterctl.transport.connections import Connections
from clusterctl.transport.target import Target

PACKAGE = Path(clusterctl.__file__).parent
PROGRAMS = {
    "runclust": "cli.runclust",
    "copyclust": "cli.copyclust",
    "clusterctl-watchdog": "operations.watchdog",
}
# They import neither: they do not ask AWS.
NOT_THERE = ("ec2", "lab")
LIBRARIES = ("ahocorasick-rs", "click", "paramiko", "rich")
# What these can do without, for what they are used for here: 7 of 30 MB.
UNUSED = {"invoke", "markdown-it-py", "mdurl", "pycparser", "pygments"}
# Below the home folder. Nobody has to be root, and no other program is replaced.
FOLDER = ".local/share/clusterctl"
OLDEST_PYTHON = (3, 9)
LOOK_TIMEOUT_S = 30.0
# 8 MB over a home's uplink; or pip on the head node.
PUT_TIMEOUT_S = 180.0

_FACTS = """\
import sys, sysconfig
print("python", sys.executable, sysconfig.get_config_var("SOABI"), *sys.version_info[:2])
"""
_LAUNCHER = """\
#!{python} -I
import os, sys
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + "/lib")
from clusterctl.{module} import main
main()
"""
_ON_PATH = f'PATH="$PATH:$HOME/{FOLDER}/bin"  # runclust and copyclust, by clusterctl'
# Of all files a shell that runs one command of ssh's reads .bashrc alone, up to where Ubuntu's ends
# for it: so the line is the first. A .bashrc that its owner brought later may not have it at all.
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
    """A Python of the head node. `abi` is its SOABI: version, processor, C library."""

    path: str
    abi: str
    version: tuple[int, int]


def start_putting(
    connections: Connections, head: Target, hosts_path: str, cache: Path, offline: bool
) -> Callable[[], str]:
    """Begin to put the programs there, beside other work. What it returns waits for the end, and
    says why they are not there; empty where they are."""
    said: queue.SimpleQueue[str] = queue.SimpleQueue()

    def work() -> None:
        reason = "it ended early"
        try:
            put_programs(connections, head, hosts_path, cache, offline)
            reason = ""
        except ClusterctlError as error:
            reason = error.message
        except Exception as error:  # whatever it is: the cluster can be used without
            reason = f"{type(error).__name__}: {error}"
        finally:
            said.put(reason)

    # A daemon: an interrupted program must not wait for a host that does not answer.
    threading.Thread(target=work, daemon=True).start()
    return said.get


def put_programs(
    connections: Connections, head: Target, hosts_path: str, cache: Path, offline: bool
) -> None:
    """Both programs on the head node, unless they are there. Raises ClusterctlError.

    `hosts_path` is its hosts file, below the home folder. In `cache`, a folder, lies what was
    packed before. `offline`: pip may use what its configuration names, but no index.
    """
    stamp = own_stamp()
    look = look_script(stamp).encode()
    looked = connections.run(head, "sh -s", stdin=look, timeout_s=LOOK_TIMEOUT_S)
    # A .bashrc may have printed before.
    if looked.stdout.endswith("current\n"):
        return
    found = parse_look(looked.stdout)
    own = next((one for one in found if one.abi == own_abi()), None)
    failed = f"it has no Python {sys.version_info[0]}.{sys.version_info[1]} like this machine's"
    if own:
        try:
            archive = _whole_archive(cache / f"head-programs-{stamp}.tar.gz")
            _put(connections, head, put_script(stamp, own, hosts_path), archive)
            return
        except CommandFailed as error:  # for example an older C library
            failed = error.message
    other = next((one for one in found if one.version >= OLDEST_PYTHON), None)
    if other is None:
        raise CommandFailed(head.host, "it has no Python 3.9 or newer")
    try:
        script = put_script(stamp, other, hosts_path, pip_arguments(offline))
        _put(connections, head, script, _archive(own_files()))
    except CommandFailed as error:
        raise CommandFailed(head.host, f"{failed}; and pip there: {error.message}") from None


def own_abi() -> str:
    return str(sysconfig.get_config_var("SOABI"))


def look_script(stamp: str) -> str:
    """For `sh -s`: `current`, or a line for each Python there is."""
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


def parse_look(stdout: str) -> list[Interpreter]:
    """The interpreters in the order they are tried."""
    lines = [line.split() for line in stdout.splitlines()]
    return [
        Interpreter(words[1], words[2], (int(words[3]), int(words[4])))
        for words in lines
        # A path with spaces can be in no program's first line.
        if len(words) == 5 and words[0] == "python"
    ]


def put_script(stamp: str, python: Interpreter, hosts_path: str, pip: Sequence[str] = ()) -> str:
    """For `sh`, with the archive as its input. What was there stays until the new one is whole."""
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


def pip_arguments(offline: bool) -> list[str]:
    """What pip is to install, as clusterctl's own metadata has it."""
    wanted = [one for one in requires("clusterctl") or () if _name(one) in LIBRARIES]
    return [*(["--no-index"] if offline else []), *wanted]


def own_stamp() -> str:
    """Changes with every change of what is put there."""
    digest = hashlib.sha256((_LAUNCHER + own_abi()).encode())
    for name, path in own_files().items():
        digest.update(f"\0{name}\0".encode() + path.read_bytes())
    for found in installed():
        digest.update(f"\0{found.metadata['Name']} {found.version}".encode())
    return digest.hexdigest()[:20]


def own_files() -> Mapping[str, Path]:
    """Path in the archive -> file, of this package."""
    return {
        f"lib/{path.relative_to(PACKAGE.parent).as_posix()}": path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in NOT_THERE
    }


def libraries() -> Mapping[str, Path]:
    """The same, of what it imports, as it is installed here."""
    return {
        f"lib/{file.as_posix()}": Path(str(found.locate_file(file)))
        for found in installed()
        for file in found.files or ()
        # Programs and manual pages lie outside, and compiled modules come with their sources.
        if not {"..", "__pycache__"} & set(file.parts)
    }


def installed(unused: Iterable[str] = UNUSED) -> Iterator[Distribution]:
    """LIBRARIES and what they need, as it is installed here."""
    todo, seen = list(LIBRARIES), set(unused)
    while todo:
        name = _name(todo.pop())
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:  # for another Python than this one
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
        said = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        raise CommandFailed(head.host, said[-1] if said else f"exit status {result.exit_status}")


def _whole_archive(path: Path) -> bytes:
    """All that the programs need; kept at `path`, since to pack it takes longer than to send it."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    content = _archive({**own_files(), **libraries()})
    with contextlib.suppress(OSError):
        for older in path.parent.glob("head-programs-*"):
            older.unlink()
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_bytes(content)
        draft.replace(path)
    return content


def _archive(files: Mapping[str, Path]) -> bytes:
    # Compressed more, it is a tenth smaller and takes three times as long.
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as tar:
        for name, path in files.items():
            tar.add(path, name, recursive=False)
    return content.getvalue()
