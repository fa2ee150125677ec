"""The mpirun command line, made from a frozen value. Nothing is run here.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from clusterctl.domain.errors import MissingTool, UsageError
from clusterctl.node.procfs import JOB_VARIABLE

# Interfaces that Open MPI must not use, for clusters whose network is unknown. Docker's bridge has
# the same address on every host, so over it a rank would connect to itself.
NO_DATA_INTERFACES = "lo,docker0,virbr0"
# Without keep-alives, mpirun hangs for over ten minutes when a link is cut silently. With these,
# ssh ends after 60 s of silence (10 s x 5). Shorter settings end jobs for passing trouble: a host
# that EC2 moves or that is out of memory, a link that is down for a moment (2 s x 3 ended a session
# after 7.5 s). Busy processors do not silence sshd: with 128 busy loops on 2 cores it answered
# within 6 ms. BatchMode, because a detached job must not wait for a password that is never typed.
SSH_ARGUMENTS = (
    "-o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=10 -o ServerAliveCountMax=5"
)
# From this many hosts on, mpirun starts all daemons at once, as Horovod's launcher does. Open MPI's
# default is 128 at a time.
MANY_HOSTS = 64
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
SECRET_WORDS = {"KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASS", "CREDENTIALS"}
# Options of mpirun that users may not give, and why: the argument GPUS, the hosts file or an option
# of clusterctl sets them.
OWN_OPTIONS = {
    **dict.fromkeys(("np", "n", "c"), "GPUS is the number of ranks"),
    **dict.fromkeys(("host", "H", "hostfile", "machinefile"), "the ranks run on the cluster"),
    "x": "variables are given with -x",
    **dict.fromkeys(
        ("wdir", "wd"), "`fetch` copies what is in the job's own folder, or in --output"
    ),
}
# Options of mpirun that change the format or the place of its output.
OUTPUT_OPTIONS = {
    *("output", "tag-output", "timestamp-output", "output-filename", "xml"),
    "merge-stderr-to-stdout",
}
MCA_OPTIONS = ("mca", "gmca", "omca", "prtemca", "pmixmca")


class Dialect(Enum):
    """The two families of mpirun's options: Open MPI 5 has PRRTE as its runtime, 4 has ORTE."""

    OPEN_MPI_4 = 4
    OPEN_MPI_5 = 5


# Options of mpirun that bind ranks to processors. Measured with 4.1.4 and 5.0.11: together with
# `--bind-to none` they have no effect, or Open MPI 5 refuses both. So has --map-by with
# BINDING_WORDS.
BINDING_OPTIONS = {
    *("cpu-set", "cpu-list", "rankfile", "rf", "npersocket", "cpus-per-proc", "cpus-per-rank"),
    *("bind-to-core", "bind-to-socket", "bind-to-none"),
}
# Those that place ranks. Together with --map-by mpirun refuses most of them.
MAPPING_OPTIONS = {
    *("cpu-set", "cpu-list", "rankfile", "rf", "npersocket", "npernode", "pernode", "ppr", "N"),
    *("bynode", "byslot"),
}
# MCA parameters that do the same. Open MPI 5 ignores those of 4, and 4 those of 5.
BINDING_PARAMETERS = {
    Dialect.OPEN_MPI_4: {
        *("hwloc_base_binding_policy", "hwloc_base_cpu_set", "hwloc_base_cpu_list"),
        "rmaps_rank_file_path",
    },
    Dialect.OPEN_MPI_5: {"hwloc_default_binding_policy"},
}
MAPPING_PARAMETERS = {
    Dialect.OPEN_MPI_4: {
        *("hwloc_base_cpu_set", "hwloc_base_cpu_list", "rmaps_rank_file_path"),
        "rmaps_base_mapping_policy",
    },
    Dialect.OPEN_MPI_5: {"rmaps_default_mapping_policy"},
}
BINDING_WORDS = re.compile(r"\b(pe|pe-list)=|\brankfile\b", re.IGNORECASE)


@dataclass(frozen=True)
class MpiRun:
    """An mpirun. `path` is absolute: Open MPI then has its files there on every host."""

    path: str
    version: str

    @property
    def dialect(self) -> Dialect:
        return Dialect.OPEN_MPI_4 if self.version.startswith("4.") else Dialect.OPEN_MPI_5


@dataclass(frozen=True)
class Variable:
    """An environment variable for all ranks.

    The value of a private one is not on mpirun's command line, which every user of the node can
    read, but in mpirun's environment.
    """

    name: str
    value: str
    private: bool = False

    def __post_init__(self) -> None:
        name = self.name
        if not (isinstance(name, str) and VARIABLE_NAME.fullmatch(name)):
            raise UsageError(
                f"-x {name!r}: not the name of a variable", "-x NAME=VALUE, or -x NAME"
            )
        if name == JOB_VARIABLE:
            raise UsageError(f"-x {name}: that is the mark of the job's processes", "leave it out")


@dataclass(frozen=True)
class MpiLaunch:
    """The parts of an mpirun command line. `settings` are MCA parameters, `exports` variables.

    An export of None takes its value from mpirun's environment. `arguments` are the user's options,
    which replace ours. `on_head_only`: run all ranks on this host and ignore the hosts file.
    `folder`: the ranks' working folder; if empty, mpirun's. `per_host`: ranks per host; 0 for as
    many as the host has slots. `network`: the one that all hosts are in, such as 10.0.0.0/24; empty
    if unknown.
    """

    mpirun: MpiRun
    hosts: int
    ranks: int
    settings: tuple[tuple[str, str], ...]
    exports: tuple[tuple[str, str | None], ...]
    program: tuple[str, ...]
    on_head_only: bool = False
    arguments: tuple[str, ...] = ()
    network: str = ""
    folder: str = ""
    per_host: int = 0


def parse_mpirun_version(text: str) -> str:
    """Return the version, such as `5.0.11`, in the output of `mpirun --version`.

    Raises MissingTool if it is not Open MPI, or older than 4.0.
    """
    match = re.search(r"\(Open MPI\)\s+(\d+)\.(\d[\w.]*)", text)
    if not match:
        first = text.strip().splitlines()[:1] or ["nothing"]
        raise MissingTool(f"this mpirun is not Open MPI: it reports {first[0]!r}")
    if int(match[1]) < 4:
        raise MissingTool(f"Open MPI {match[1]}.{match[2]} is too old", "install 4.0 or newer")
    return f"{match[1]}.{match[2]}"


def mpirun_argv(launch: MpiLaunch) -> list[str]:
    """Return the command line, in the order of the tutorial's scripts.

    Ranks fill the slots host by host, in the order of the hosts file.
    """
    spawning, transport = _DIALECTS[launch.mpirun.dialect]
    over = ("include", launch.network) if launch.network else ("exclude", NO_DATA_INTERFACES)
    interfaces = (f"btl_tcp_if_{over[0]}", over[1])
    # With a number of slots: otherwise Open MPI counts cores, and may find too few.
    here = ["--host", f"localhost:{launch.ranks}"]
    where = (
        [here]
        if launch.on_head_only
        else [["--hostfile", "hosts"], *_spawn(*spawning, launch.hosts)]
    )
    exports = (name if value is None else f"{name}={value}" for name, value in launch.exports)
    ours = [
        *where,
        # mpirun has no input. Open MPI 5 passes its end on to all ranks but 0, which would wait for
        # it without an end (measured with 5.0.11).
        ["--stdin", "none"],
        # Each rank binds itself, next to its GPU (node/affinity.py). mpirun does not know which GPU
        # a rank uses, and Open MPI 5 would bind all ranks of a node to its first socket.
        ["--bind-to", "none"],
        ["--map-by", f"ppr:{launch.per_host}:node" if launch.per_host else "slot"],
        *([["--wdir", launch.folder]] if launch.folder else []),
        *(["-x", export] for export in exports),
        *(["--mca", name, value] for name, value in (*transport, interfaces, *launch.settings)),
    ]
    theirs = _replaced_by(launch.mpirun, launch.arguments)
    # If an option is given twice, Open MPI 5 fails, and 4 takes the last one or fails.
    kept = (option for option in ours if _option_name(option) not in theirs)
    return [
        *(launch.mpirun.path, "-np", str(launch.ranks)),
        *(word for option in kept for word in option),
        *launch.arguments,
        *launch.program,
    ]


def mpirun_arguments(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the words in values of --mpi-arg, split as a shell splits them. Raises UsageError."""
    words: list[str] = []
    for text in texts:
        try:
            words += shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--mpi-arg {text!r}: {error}", "quote it as for a shell") from None
    check_mpirun_words(words)
    return tuple(words)


def check_mpirun_words(words: Sequence[str]) -> None:
    """Raise UsageError if these are no options of mpirun, or have one that a job needs itself."""
    if words and not words[0].startswith("-"):
        raise UsageError(
            f"--mpi-arg {words[0]!r} is no option of mpirun: it would be run as the program",
            "--mpi-arg '--mca NAME VALUE'",
        )
    for option in _options(words):
        name = option[0].lstrip("-").partition("=")[0]
        if name in OWN_OPTIONS:
            raise UsageError(f"--mpi-arg {option[0]}: {OWN_OPTIONS[name]}", "leave it out")


def sets_binding(mpirun: MpiRun, arguments: tuple[str, ...]) -> bool:
    """Return whether the user's options say to what mpirun binds ranks, which may be nothing."""
    return "bind-to" in _replaced_by(mpirun, arguments)


def maps_ranks(mpirun: MpiRun, arguments: tuple[str, ...]) -> bool:
    """Return whether the user's options say how many ranks each host gets."""
    return "map-by" in _replaced_by(mpirun, arguments)


def _replaced_by(mpirun: MpiRun, arguments: tuple[str, ...]) -> set[str]:
    """Return the names of the options of ours that the user's options replace."""
    mapping = MAPPING_OPTIONS | MAPPING_PARAMETERS[mpirun.dialect]
    binding = BINDING_OPTIONS | BINDING_PARAMETERS[mpirun.dialect]
    replaced = set()
    for option in _options(arguments):
        name = _option_name(option)
        maps = name == "map-by" or name in mapping
        replaced |= {name, "map-by"} if maps else {name}
        if name in binding or (maps and BINDING_WORDS.search(" ".join(option))):
            replaced.add("bind-to")
    return replaced


def tag_end(mpirun: MpiRun, arguments: tuple[str, ...]) -> str:
    """Return the end of the tag that --tag-output puts before each line, as this mpirun writes it.

    Empty if the user's options change the output: then lines cannot be assigned to ranks.
    """
    if OUTPUT_OPTIONS.intersection(map(_option_name, _options(arguments))):
        return ""
    return ":" if mpirun.dialect is Dialect.OPEN_MPI_4 else ": "


def parse_variable(text: str, environ: Mapping[str, str]) -> Variable:
    """Return the variable in `NAME=VALUE`, or `NAME` with its value from `environ`.

    It is private if the value is from `environ`, or if the name is like that of a secret. Raises
    UsageError.
    """
    name, given, value = text.partition("=")
    secret = bool(SECRET_WORDS.intersection(name.upper().split("_")))
    found = Variable(name, value if given else environ.get(name, ""), not given or secret)
    if not given and name not in environ:
        raise UsageError(f"-x {name}: it has no value here", f"export it, or -x {name}=VALUE")
    return found


def _options(words: Iterable[str]) -> list[list[str]]:
    """Group words by option: each with its values. An MCA parameter has three words always."""
    options: list[list[str]] = []
    for word in words:
        inside = options and options[-1][0].lstrip("-") in MCA_OPTIONS and len(options[-1]) < 3
        if options and (inside or not word.startswith("-")):
            options[-1].append(word)
        else:
            options.append([word])
    return options


def _option_name(option: list[str]) -> str:
    """Return what identifies an option: the MCA parameter's name, the variable's, or its own."""
    name = option[0].lstrip("-").partition("=")[0]
    if name in MCA_OPTIONS:
        parameter = "".join(option[1:2])
        # btl_tcp_if_include and btl_tcp_if_exclude are one: Open MPI accepts only one of the two.
        return "btl_tcp_if" if parameter.startswith("btl_tcp_if_") else parameter
    return "-x " + option[1] if name == "x" else name


def _spawn(option: str, launcher: str, hosts: int) -> list[list[str]]:
    """Return the options for starting a daemon on each host over SSH."""
    wide = [[option, f"{launcher}_num_concurrent", str(hosts)]] if hosts >= MANY_HOSTS else []
    # The daemons must not be started as a tree: only the head node has the key that logs in to the
    # others. (Open MPI 5.0.11 also cuts plm_ssh_args off at the first "=" on a tree's inner nodes.)
    no_tree = [option, f"{launcher}_no_tree_spawn", "1"]
    return [no_tree, *wide, [option, f"{launcher}_args", SSH_ARGUMENTS]]


_DIALECTS = {
    Dialect.OPEN_MPI_4: (("--mca", "plm_rsh"), (("pml", "ob1"), ("btl", "^openib"))),
    # Open MPI 5 has no openib and no vader.
    Dialect.OPEN_MPI_5: (("--prtemca", "plm_ssh"), (("pml", "ob1"), ("btl", "self,sm,tcp"))),
}
