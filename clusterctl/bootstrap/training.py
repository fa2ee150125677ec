"""The training environment on nodes: the script that installs it, running it, and the parser of
what it prints. The steps themselves are in shell/, which scripts/training-env uses, too.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from clusterctl.domain.errors import CommandFailed, UsageError
from clusterctl.domain.releases import FIRST_WITHOUT_KERNELS
from clusterctl.domain.results import CommandResult, FanoutResult
from clusterctl.transport.connections import Connections
from clusterctl.transport.dial import Target
from clusterctl.transport.fanout import fan_out

SHELL = Path(__file__).parent / "shell"
# The files in shell/ that make up the script, in order.
PARTS = ("base", "packages", "training", "training_wheels", "training_install", "training_node")
FOLDER = "/opt/clusterctl/training"
# Folders below the home folder of a node: all wheels, and those that the user has given.
WHEELS = ".cache/clusterctl/wheels"
GIVEN = ".cache/clusterctl/given-wheels"
# The path is used without quotes in the first lines of programs and in mpirun's shell commands.
_PLAIN = re.compile(r"/[A-Za-z0-9._+-]+(/[A-Za-z0-9._+-]+)+")


class EnvState(Enum):
    """The state of the environment's folder."""

    MISSING = "missing"
    READY = "ready"
    OTHER = "other"  # complete, with other versions
    PARTIAL = "partial"  # an installation that did not end
    FOREIGN = "foreign"  # not made by clusterctl


@dataclass(frozen=True)
class EnvRequest:
    """Where the environment is, for which flavor (cpu, gpu or auto), and the Python to make it
    with.

    Without a folder it is the one that the node remembers, else FOLDER. Without a Python the node
    chooses. `release` is a value of RELEASES; empty: that of the existing environment, or by the
    GPUs. `capabilities` are those of all nodes' GPUs, 90 for 9.0, ascending.
    """

    folder: str = ""
    flavor: str = "auto"
    python: str = ""
    release: str = ""
    capabilities: tuple[int, ...] = ()

    def command(self, verb: str, given: str = "", keep: bool = True) -> str:
        """Return the command line for a node's shell. Its stdin is `training_script`."""
        arguments = [verb, self.folder, self.flavor, self.python, given, "keep" if keep else "drop"]
        arguments += [self.release, ",".join(map(str, self.capabilities))]
        return shlex.join(["bash", "-s", "--", *arguments])


@dataclass(frozen=True)
class NodeEnv:
    """One node's environment, and what it can be made with. Sizes in bytes.

    `key` has all that Horovod's wheel depends on. `stamp` is the key and more of the installed
    environment. `chosen`: the launcher tries the environment in this folder first, and
    `remembered`: an installation set it. `gathered`: all wheels but Horovod's are there. `free`
    and `home_free` are the device and the free bytes of the folder's and the home folder's file
    systems. `capabilities` are those of the GPUs, 90 for 9.0. `no_toolkit` is why Horovod cannot be
    compiled for the GPUs.
    """

    host: str
    folder: str
    state: EnvState
    key: str
    flavor: str
    python: str = ""
    no_python: str = ""
    stamp: str = ""
    chosen: bool = True
    gathered: bool = False
    horovod_wheel: str = ""
    free: tuple[str, int] = ("", 0)
    home_free: tuple[str, int] = ("", 0)
    writable: bool = True
    installed: dict[str, str] = field(default_factory=dict)
    release: str = "default"
    capabilities: tuple[int, ...] = ()
    remembered: bool = False
    no_toolkit: str = ""
    json_names = ("host", "state", "key", "python", "installed")

    @property
    def without_kernels(self) -> tuple[int, ...]:
        """Capabilities of the GPUs for which the driver would compile TensorFlow's kernels."""
        first = FIRST_WITHOUT_KERNELS[self.release]
        return tuple(one for one in self.capabilities if one >= first and self.flavor == "gpu")

    @property
    def ready(self) -> bool:
        return self.state is EnvState.READY

    @property
    def wheels(self) -> str:
        """The folder of the wheels, below the home folder."""
        return f"{WHEELS}/{self.key}"


def check_request(request: EnvRequest) -> EnvRequest:
    """Return the request. Raises UsageError if its folder or its Python is not possible."""
    folder = request.folder
    if folder and (not _PLAIN.fullmatch(folder) or {".", ".."} & set(folder.split("/"))):
        raise UsageError(
            f"{folder!r} cannot be the training environment's folder",
            f"name a whole path without spaces, a folder of its own: {FOLDER}",
        )
    if request.python and not request.python.startswith("/"):
        raise UsageError(
            f"{request.python!r} is no whole path of an interpreter on the nodes",
            "for example /usr/bin/python3.11",
        )
    return request


@functools.cache
def training_script() -> bytes:
    """Return the script for `bash -s` on a node. bash reads all of it before it runs any of it."""
    # An environment is described and built without variables of the login.
    parts = ["unset PYTHONHOME PYTHONPATH PYTHONSTARTUP PYTHONOPTIMIZE PYTHONWARNINGS\n"]
    parts += [(SHELL / f"{name}.sh").read_text() for name in PARTS]
    parts.append(f"RANKS_CHECK={shlex.quote(ranks_check())}\n")
    return "".join([*parts, 'node_main "$@" </dev/null\n']).encode()


def ranks_check() -> str:
    """Return a Python program whose ranks meet and train one step together."""
    return (SHELL / "ranks.py").read_text()


def parse_environment(result: CommandResult) -> NodeEnv:
    """Parse the output of the step `inspect`. Raises CommandFailed if it is not complete."""
    lines = result.stdout.splitlines()
    if not result.ok or "looked" not in lines:
        raise failed(result, result.stderr)
    facts = dict(line.split("=", 1) for line in lines if "=" in line)
    installed = {
        name.removeprefix("installed_").replace("_cpu", ""): version
        for name, version in facts.items()
        if name.startswith("installed_")
    }
    return NodeEnv(
        host=result.host,
        folder=facts["folder"],
        state=EnvState(facts["state"]),
        key=facts["key"],
        flavor=facts["flavor"],
        python=facts.get("python", ""),
        no_python=facts.get("no_python", ""),
        stamp=facts["stamp"],
        chosen=facts["folder"] == (facts["chosen"] or FOLDER),
        gathered=facts["gathered"] == facts["requirements"],
        horovod_wheel=facts["horovod_wheel"],
        free=_room(facts["free"]),
        home_free=_room(facts["home_free"]),
        writable=facts["writable"] == "yes",
        installed=installed,
        release=facts["release"],
        capabilities=tuple(int(one) for one in facts["capabilities"].split(",") if one),
        remembered=bool(facts["chosen"]),
        no_toolkit=facts.get("no_toolkit", ""),
    )


def _room(text: str) -> tuple[str, int]:
    device, _, free = text.partition(" ")
    return device, int(free)


def failed(result: CommandResult, stderr: str) -> CommandFailed:
    """Return the error for a step that failed on a node: its last `error: ...` line, and the last
    line of its other output as a hint."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    reported = next((line for line in reversed(lines) if line.startswith("error: ")), "")
    before = [line for line in lines if line != reported]
    message = reported.removeprefix("error: ") or f"exit status {result.exit_status}"
    last = f"its last words: {before[-1]}" if before else ""
    return CommandFailed(result.host, f"the training environment: {message}", last)


INSPECT_TIMEOUT_S = 120.0
# On a slow machine: a download of 3 GB, and the build of Horovod.
STEP_TIMEOUT_S = 3600.0

Report = Callable[[str], None]


def inspect(
    connections: Connections, targets: Sequence[Target], request: EnvRequest
) -> FanoutResult[NodeEnv]:
    """Return the environment that each node has."""

    def one(target: Target) -> NodeEnv:
        return parse_environment(
            connections.run(
                target,
                request.command("inspect"),
                stdin=training_script(),
                timeout_s=INSPECT_TIMEOUT_S,
            )
        )

    return fan_out(one, targets)


def run_step(
    connections: Connections,
    targets: Sequence[Target],
    command: Callable[[Target], str],
    report: Report,
) -> FanoutResult[CommandResult]:
    """Run a step of the script on nodes, and pass on its progress through `report`, line by line.

    On KeyboardInterrupt the step is stopped on the nodes.
    """

    def one(target: Target) -> CommandResult:
        output = _Output(target.host, report)
        result = connections.run(
            target,
            command(target),
            stdin=training_script(),
            timeout_s=STEP_TIMEOUT_S,
            sink=output.take,
        )
        if not result.ok:
            raise failed(result, output.stderr.decode(errors="replace"))
        return result

    try:
        return fan_out(one, targets)
    except KeyboardInterrupt:
        connections.interrupt()
        raise


class _Output:
    """The script's output on one host: stdout goes to `report` line by line, stderr is kept."""

    def __init__(self, host: str, report: Report) -> None:
        self._host, self._report = host, report
        self._rest = b""
        self.stderr = b""

    def take(self, stream: str, chunk: bytes) -> None:
        """Take a piece of the output."""
        if stream == "stderr":
            self.stderr += chunk
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._report(f"{self._host}: {line.decode(errors='replace')}")
