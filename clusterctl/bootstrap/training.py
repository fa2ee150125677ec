"""The training environment on nodes: the script that makes it, and what nodes say of theirs.

Pure. The steps themselves are in shell/, which scripts/training-env shares.
"""

from __future__ import annotations

import functools
import re
import shlex
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from clusterctl.domain.errors import CommandFailed, UsageError
from clusterctl.domain.results import CommandResult

SHELL = Path(__file__).parent / "shell"
PARTS = ("base", "packages", "training", "training_wheels", "training_install", "training_node")
FOLDER = "/opt/clusterctl/training"
# Below the home folder of a node.
WHEELS = ".cache/clusterctl/wheels"
GIVEN = ".cache/clusterctl/given-wheels"
# The word of `--tensorflow` for each release of shell/training.sh.
RELEASES = {"2.15": "default", "NEWEST": "newest"}
# The first compute capability for which TensorFlow's wheels have no kernels (`tf.sysconfig
# .get_build_info()`): the driver compiles them when they are first used.
FIRST_WITHOUT_KERNELS = {"default": 90, "newest": 100}
# Interpreters' first lines and mpirun's own shell commands hold the path as it is.
_PLAIN = re.compile(r"/[A-Za-z0-9._+-]+(/[A-Za-z0-9._+-]+)+")


class EnvState(Enum):
    """What is in the folder."""

    MISSING = "missing"
    READY = "ready"
    OTHER = "other"  # complete, of other versions
    PARTIAL = "partial"  # an installation that did not end
    FOREIGN = "foreign"  # nothing of clusterctl's


@dataclass(frozen=True)
class EnvRequest:
    """Where, for what, and with which interpreter it is made.

    Without a folder it is where the node has it, else FOLDER; without an interpreter the node's.
    `release` is one of RELEASES; without one it is that of the environment which is there.
    """

    folder: str = ""
    flavor: str = "auto"
    python: str = ""
    release: str = ""

    def command(self, verb: str, given: str = "", keep: bool = True) -> str:
        """For a node's shell; `training_script` is its input."""
        arguments = [verb, self.folder, self.flavor, self.python, given, "keep" if keep else "drop"]
        arguments.append(self.release)
        return shlex.join(["bash", "-s", "--", *arguments])


@dataclass(frozen=True)
class NodeEnv:
    """One node's environment, and what it could be made with. Sizes in bytes.

    `key` is what Horovod's wheel depends on there; `chosen`: the launcher looks here first; `free`
    and `home_free` are a file system's device and room. `capabilities` are the GPUs', 90 for 9.0.
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

    @property
    def without_kernels(self) -> tuple[int, ...]:
        """The capabilities for which the driver would compile TensorFlow's kernels."""
        first = FIRST_WITHOUT_KERNELS[self.release]
        return tuple(one for one in self.capabilities if one >= first and self.flavor == "gpu")

    @property
    def ready(self) -> bool:
        return self.state is EnvState.READY

    @property
    def wheels(self) -> str:
        """The folder of wheels, below the home folder."""
        return f"{WHEELS}/{self.key}"


def check_request(request: EnvRequest) -> EnvRequest:
    """The same. Raises UsageError for a folder that an environment cannot be in."""
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
    """For `bash -s` on a node. All of it is read before any of it runs."""
    parts = [(SHELL / f"{name}.sh").read_text() for name in PARTS]
    parts.append(f"RANKS_CHECK={shlex.quote(ranks_check())}\n")
    return "".join([*parts, 'node_main "$@" </dev/null\n']).encode()


def ranks_check() -> str:
    """The Python program whose ranks meet and train a step."""
    return (SHELL / "ranks.py").read_text()


def parse_look(result: CommandResult) -> NodeEnv:
    """What `look` printed. Raises CommandFailed when it did not get to its end."""
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
    )


def _room(text: str) -> tuple[str, int]:
    device, _, free = text.partition(" ")
    return device, int(free)


def failed(result: CommandResult, stderr: str) -> CommandFailed:
    """The error of a step that failed on a node, from what it wrote: output, `error: ...`."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if line.startswith("error: ")), "")
    before = [line for line in lines if line != said]
    message = said.removeprefix("error: ") or f"exit status {result.exit_status}"
    last = f"its last words: {before[-1]}" if before else ""
    return CommandFailed(result.host, f"the training environment: {message}", last)
