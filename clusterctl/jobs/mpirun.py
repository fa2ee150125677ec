"""The mpirun line: a frozen value in, an argument list out. Nothing is run here.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from clusterctl.domain.errors import MissingTool, UsageError

# Where the cluster's network is not known. Docker's bridge has the same address on every host, so
# ranks would talk to themselves over it.
NO_DATA_INTERFACES = "lo,docker0,virbr0"
# Without keep-alives a silently cut link hangs mpirun for over ten minutes. Busy processors do not
# silence sshd: with 128 busy loops on 2 cores it answered within 6 ms. A machine that stands still
# (moved by EC2, out of memory) and a link that is down for a moment do: 2 x 3 ended the session
# after 7.5 s, 10 x 5 ends it after 60 s. A job of hours should outlive what passes.
# A detached job must never wait for a password that nobody types.
SSH_ARGUMENTS = (
    "-o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=10 -o ServerAliveCountMax=5"
)
# What mpirun says when a node's daemon is gone: the node went down, or the daemon was killed.
# Open MPI 5 ends with exit status 0 then (PRRTE 3.0, errmgr_dvm.c, proc_errors), or with 255 where
# the end of ssh is noticed first. A pattern for `grep -E` and for Python alike.
LOST_DAEMON = "lost communication with a remote daemon|A daemon failed to report back"
# From here Horovod's own launcher widens the fan-out too; Open MPI's default is 128 at a time.
MANY_HOSTS = 64
JOB_VARIABLE = "CLUSTERCTL_JOB"
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
SECRET_WORDS = {"KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASS", "CREDENTIALS"}
# What GPUS and the hosts file decide, and what has an option of its own.
OWN_OPTIONS = {
    **dict.fromkeys(("np", "n", "c"), "GPUS says how many ranks there are"),
    **dict.fromkeys(("host", "H", "hostfile", "machinefile"), "the ranks run on the cluster"),
    "x": "variables are given with -x",
}
# By these the user asks for mpirun's output in another way.
OUTPUT_OPTIONS = {
    *("output", "tag-output", "timestamp-output", "output-filename", "xml"),
    "merge-stderr-to-stdout",
}
MCA_OPTIONS = ("mca", "gmca", "omca", "prtemca", "pmixmca")


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
class Variable:
    """An environment variable for all ranks.

    A private one is not on mpirun's line, which every user of the node can read: its value is in
    mpirun's own environment.
    """

    name: str
    value: str
    private: bool = False


@dataclass(frozen=True)
class MpiLaunch:
    """Everything the line is made of. `settings` are MCA parameters, `exports` variables.

    An export of None has the value that it has in mpirun's environment. `arguments` are options
    of the user's own, which replace ours. `alone`: all ranks on the host where the line is typed,
    whatever the hosts file says. `folder`: where the ranks run; empty for where the line is typed.
    `per_host`: so many ranks on each host; 0 for as many as it has slots. `network`: the one that
    all hosts are in, such as 10.0.0.0/24; empty where it is not known.
    """

    mpirun: MpiRun
    hosts: int
    ranks: int
    binding: Binding
    settings: tuple[tuple[str, str], ...]
    exports: tuple[tuple[str, str | None], ...]
    program: tuple[str, ...]
    alone: bool = False
    arguments: tuple[str, ...] = ()
    network: str = ""
    folder: str = ""
    per_host: int = 0


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
    over = ("include", launch.network) if launch.network else ("exclude", NO_DATA_INTERFACES)
    interfaces = (f"btl_tcp_if_{over[0]}", over[1])
    # Named with its slots: without them Open MPI counts cores, and may find too few.
    here = ["--host", f"localhost:{launch.ranks}"]
    where = [here] if launch.alone else [["--hostfile", "hosts"], *spawn(launch.hosts)]
    exports = (name if value is None else f"{name}={value}" for name, value in launch.exports)
    ours = [
        *where,
        ["--bind-to", binding[launch.binding]],
        ["--map-by", f"ppr:{launch.per_host}:node" if launch.per_host else "slot"],
        *([["--wdir", launch.folder]] if launch.folder else []),
        *(["-x", export] for export in exports),
        *(["--mca", name, value] for name, value in (*transport, interfaces, *launch.settings)),
    ]
    theirs = [_option_name(option) for option in _options(launch.arguments)]
    # Given an option twice, Open MPI 5 ends at once, and 4 takes the last or ends, too.
    kept = (option for option in ours if _option_name(option) not in theirs)
    return [
        *(launch.mpirun.path, "-np", str(launch.ranks)),
        *(word for option in kept for word in option),
        *launch.arguments,
        *launch.program,
    ]


def mpirun_arguments(texts: Iterable[str]) -> tuple[str, ...]:
    """The words of options of mpirun, each text split as a shell does. Raises UsageError."""
    words: list[str] = []
    for text in texts:
        try:
            words += shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--mpi-arg {text!r}: {error}", "quote it as for a shell") from None
    if words and not words[0].startswith("-"):
        raise UsageError(
            f"--mpi-arg {words[0]!r} is no option of mpirun: it would be run as the program",
            "--mpi-arg '--mca NAME VALUE'",
        )
    for option in _options(words):
        name = option[0].lstrip("-").partition("=")[0]
        if name in OWN_OPTIONS:
            raise UsageError(f"--mpi-arg {option[0]}: {OWN_OPTIONS[name]}", "leave it out")
    return tuple(words)


def tag_end(mpirun: MpiRun, arguments: tuple[str, ...]) -> str:
    """What ends the tag that --tag-output puts before a rank's line, for these options of the
    user's; empty where they ask for other output."""
    if OUTPUT_OPTIONS.intersection(map(_option_name, _options(arguments))):
        return ""
    return ":" if mpirun.dialect is Dialect.OPEN_MPI_4 else ": "


def parse_variable(text: str, environ: Mapping[str, str]) -> Variable:
    """The variable of `NAME=VALUE`, or of `NAME` with its value in `environ`, which is private.

    So is one whose name looks like a secret's. Raises UsageError.
    """
    name, given, value = text.partition("=")
    if not VARIABLE_NAME.fullmatch(name):
        raise UsageError(f"-x {name!r}: not the name of a variable", "-x NAME=VALUE, or -x NAME")
    if name == JOB_VARIABLE:
        raise UsageError(f"-x {name}: that is the mark of the job's processes", "leave it out")
    if not given and name not in environ:
        raise UsageError(f"-x {name}: it has no value here", f"export it, or -x {name}=VALUE")
    secret = bool(SECRET_WORDS.intersection(name.upper().split("_")))
    return Variable(name, value if given else environ[name], private=not given or secret)


def _options(words: Iterable[str]) -> list[list[str]]:
    """The words, cut before each option. Those of an MCA parameter are three, whatever they are."""
    options: list[list[str]] = []
    for word in words:
        inside = options and options[-1][0].lstrip("-") in MCA_OPTIONS and len(options[-1]) < 3
        if options and (inside or not word.startswith("-")):
            options[-1].append(word)
        else:
            options.append([word])
    return options


def _option_name(option: list[str]) -> str:
    """By what an option is known: a parameter's name, a variable's, or that of the option."""
    name = option[0].lstrip("-").partition("=")[0]
    if name in MCA_OPTIONS:
        parameter = "".join(option[1:2])
        # Open MPI takes one of the two.
        return "btl_tcp_if" if parameter.startswith("btl_tcp_if_") else parameter
    return "-x " + option[1] if name == "x" else name


# No tree: only the head node holds the key that logs in to the others. (Open MPI 5.0.11 also
# passes plm_ssh_args on to a tree's inner nodes cut off at the first "=".)
def _spawn_4(hosts: int) -> list[list[str]]:
    wide = [["--mca", "plm_rsh_num_concurrent", str(hosts)]] if hosts >= MANY_HOSTS else []
    no_tree = ["--mca", "plm_rsh_no_tree_spawn", "1"]
    return [no_tree, *wide, ["--mca", "plm_rsh_args", SSH_ARGUMENTS]]


def _spawn_5(hosts: int) -> list[list[str]]:
    wide = [["--prtemca", "plm_ssh_num_concurrent", str(hosts)]] if hosts >= MANY_HOSTS else []
    no_tree = ["--prtemca", "plm_ssh_no_tree_spawn", "1"]
    return [no_tree, *wide, ["--prtemca", "plm_ssh_args", SSH_ARGUMENTS]]


_DIALECTS = {
    Dialect.OPEN_MPI_4: (
        _spawn_4,
        {Binding.SOCKET: "socket", Binding.NONE: "none"},
        (("pml", "ob1"), ("btl", "^openib")),
    ),
    # openib and vader are gone, and a socket is called a package.
    Dialect.OPEN_MPI_5: (
        _spawn_5,
        {Binding.SOCKET: "package", Binding.NONE: "none"},
        (("pml", "ob1"), ("btl", "self,sm,tcp")),
    ),
}
