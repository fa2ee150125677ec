"""The mpirun line: a frozen value in, an argument list out. Nothing is run here.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/launcher).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from clusterctl.domain.errors import MissingTool

# Docker's bridge has the same address on every host, so ranks would talk to themselves over it.
NO_DATA_INTERFACES = "lo,docker0"
# Without keep-alives a silently cut link hangs mpirun for over ten minutes; a detached job must
# never wait for a password that nobody types.
SSH_ARGUMENTS = (
    "-o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=2 -o ServerAliveCountMax=3"
)
# From here Horovod's own launcher widens the fan-out too; Open MPI's default is 128 at a time.
MANY_HOSTS = 64
JOB_VARIABLE = "CLUSTERCTL_JOB"


class Dialect(Enum):
    """The two families of options: Open MPI 5 starts its daemons with PRRTE, 4 with ORTE."""

    OPEN_MPI_4 = 4
    OPEN_MPI_5 = 5


class Binding(Enum):
    """What a rank is tied to."""

    SOCKET = "socket"
    NONE = "none"


@dataclass(frozen=True)
class MpiRun:
    """An mpirun: its absolute path, which Open MPI takes as the prefix on every host."""

    path: str
    version: str

    @property
    def dialect(self) -> Dialect:
        return Dialect.OPEN_MPI_4 if self.version.startswith("4.") else Dialect.OPEN_MPI_5


@dataclass(frozen=True)
class MpiLaunch:
    """Everything the line is made of. `settings` are MCA parameters, `exports` variables.

    `alone`: all ranks on the host where the line is typed, whatever the hosts file says.
    """

    mpirun: MpiRun
    hosts: int
    ranks: int
    binding: Binding
    settings: tuple[tuple[str, str], ...]
    exports: tuple[tuple[str, str], ...]
    program: tuple[str, ...]
    alone: bool = False


def parse_mpirun_version(text: str) -> str:
    """`5.0.11` of `mpirun --version`. Raises MissingTool: not Open MPI, or one too old."""
    match = re.search(r"\(Open MPI\)\s+(\d+)\.(\d[\w.]*)", text)
    if not match:
        first = text.strip().splitlines()[:1] or ["nothing"]
        raise MissingTool(f"this mpirun is not Open MPI: it says {first[0]!r}")
    if int(match[1]) < 4:
        raise MissingTool(f"Open MPI {match[1]}.{match[2]} is too old", "install 4.0 or newer")
    return f"{match[1]}.{match[2]}"


def mpirun_argv(launch: MpiLaunch) -> list[str]:
    """The line, in the order of the tutorial's scripts. Ranks fill the head node first."""
    spawn, binding, transport = _DIALECTS[launch.mpirun.dialect]
    # Named with its slots: without them Open MPI counts cores, and may find too few.
    here = ["--host", f"localhost:{launch.ranks}"]
    where = here if launch.alone else ["--hostfile", "hosts", *spawn(launch.hosts)]
    return [
        launch.mpirun.path,
        *("-np", str(launch.ranks)),
        *where,
        *("--bind-to", binding[launch.binding]),
        *("--map-by", "slot"),
        *(word for name, value in launch.exports for word in ("-x", f"{name}={value}")),
        *(word for name, value in transport + launch.settings for word in ("--mca", name, value)),
        *launch.program,
    ]


# No tree: only the head node holds the key that logs in to the others. (Open MPI 5.0.11 also
# passes plm_ssh_args on to a tree's inner nodes cut off at the first "=".)
def _spawn_4(hosts: int) -> list[str]:
    wide = ["--mca", "plm_rsh_num_concurrent", str(hosts)] if hosts >= MANY_HOSTS else []
    no_tree = ["--mca", "plm_rsh_no_tree_spawn", "1"]
    return [*no_tree, *wide, "--mca", "plm_rsh_args", SSH_ARGUMENTS]


def _spawn_5(hosts: int) -> list[str]:
    wide = ["--prtemca", "plm_ssh_num_concurrent", str(hosts)] if hosts >= MANY_HOSTS else []
    no_tree = ["--prtemca", "plm_ssh_no_tree_spawn", "1"]
    return [*no_tree, *wide, "--prtemca", "plm_ssh_args", SSH_ARGUMENTS]


_TCP_ONLY = (("pml", "ob1"), ("btl_tcp_if_exclude", NO_DATA_INTERFACES))
_DIALECTS = {
    Dialect.OPEN_MPI_4: (
        _spawn_4,
        {Binding.SOCKET: "socket", Binding.NONE: "none"},
        (_TCP_ONLY[0], ("btl", "^openib"), _TCP_ONLY[1]),
    ),
    # openib and vader are gone, and a socket is called a package.
    Dialect.OPEN_MPI_5: (
        _spawn_5,
        {Binding.SOCKET: "package", Binding.NONE: "none"},
        (_TCP_ONLY[0], ("btl", "self,sm,tcp"), _TCP_ONLY[1]),
    ),
}
