"""Signatures of messages of Open MPI, its launchers, PMIx and MPICH.

Open MPI's launcher is ORTE up to 4.1 and PRRTE since 5.0.
"""

from __future__ import annotations

import re

from clusterctl.domain.findings import Severity
from clusterctl.explain.signature import Role, Signature

_HELP4 = "open-mpi/ompi v4.1: orte/tools/orterun/help-orterun.txt, orte/mca/*/base/help-*.txt"
_HELP5 = "openpmix/prrte: src/mca/errmgr/base/help-errmgr-base.txt"
_TCP = "open-mpi/ompi: opal/mca/btl/tcp/help-mpi-btl-tcp.txt"
_FIRST = (
    "the process that mpirun names is the first that it saw, and may be a victim: find the first "
    "traceback or crash among all ranks' lines, then the hosts' dmesg"
)
_INTERFACES = (
    "--mca btl_tcp_if_include and --mca oob_tcp_if_include (5.0: --prtemca oob_tcp_if_include) "
    "with "
    "the nodes' private network, for example 10.0.0.0/16; open all ports in the security group for "
    "the cluster itself"
)
# What a rank's death by a signal means, by the signal's number.
_SIGNALS = {
    "4": "an instruction that this CPU does not have (a build for another CPU), or an abort",
    "6": "the program ended itself (abort): an assertion or an uncaught exception, told above",
    "7": "a bus error: memory behind a file that could not be filled, usually /dev/shm or a disk "
    "that is full",
    "8": "an arithmetic error (a division by zero)",
    "9": "killed from outside: by the kernel for want of memory, by a scheduler, or by hand. "
    "Only a kernel line tells which",
    "11": "a segmentation fault: usually libraries that do not fit each other",
    "15": "ended from outside (SIGTERM): a scheduler, a shutdown of the host, or somebody's kill",
    "13": "a broken pipe: whoever read its output is gone",
}


def _signal(text: str) -> dict[str, str]:
    """Return the meaning of the signal in mpirun's report of a killed rank."""
    found = re.search(r"on\s+signal\s+(\d+)", text)
    return {"meaning": _SIGNALS.get(found[1] if found else "", "see signal(7)")}


def _field(block: str, *names: str) -> str:
    """Return the value of a line `Name: value`, or "" if none is there.

    `names` are in lower case; the first one that has a line counts.
    """
    for name in names:
        for line in block.splitlines():
            head, colon, value = line.partition(":")
            if colon and head.strip().lower() == name:
                return value.strip()
    return ""


def _hosts(block: str) -> dict[str, str]:
    """Return the local and the remote host that a help message of Open MPI names."""
    local, remote = _field(block, "local host"), _field(block, "remote host")
    return {"local": local or "a host", "remote": remote or "another", "host": local or "a host"}


def _message(block: str) -> dict[str, str]:
    """Return the local host that a help message of Open MPI names, if any."""
    local = _field(block, "local host")
    return {"host": local} if local else {}


def _remote(block: str) -> dict[str, str]:
    """Return the host of the remote daemon that a help message of Open MPI names."""
    node = _field(block, "remote daemon").rpartition("on node ")[2]
    return {"remote": node, "host": node} if node else {"remote": "a host"}


SIGNATURES = (
    Signature(
        "mpi.not-enough-slots",
        r"[Tt]here are not enough slots available in the system to satisfy the (?P<slots>\d+)"
        r"|(?:not enough|insufficient) slots available",
        "more ranks are asked for than the hosts have slots; `--host a,b` gives one slot each",
        "slots=GPUs on each line of the hosts file (`clusterctl hosts NAME`), or --host a:8,b:8; "
        "fewer ranks with -np",
        _HELP4,
        lines=3,
    ),
    Signature(
        "mpi.slots-twice",
        r"hostfile was provided that contains multiple definitions of\s+the slot count",
        "the hosts file has a host twice, and slots=N in one of its lines",
        "one line per host, with all of its slots: `clusterctl hosts NAME > hosts`",
        "open-mpi/ompi#11136",
        lines=2,
    ),
    Signature(
        "mpi.hosts-not-allocated",
        r"[Ss]ome of the requested hosts are not included in the\s+current allocation"
        r"|host that was not included in the\s+(?:current )?allocation",
        "a host of the command line is not in the hosts file (or the scheduler's allocation)",
        "`clusterctl hosts NAME > hosts`, and use the names that are in it",
        _HELP4,
        lines=3,
    ),
    Signature(
        "mpi.no-slots-host",
        r"All nodes which are allocated for this job are already filled"
        r"|No nodes are available for this job, either due to a failure|[Uu]nable to (?:find"
        r"|allocate) (?:any )?(?:available )?nodes for",
        "every slot of the allocation is taken",
        "fewer ranks, or more slots in the hosts file",
        _HELP4,
    ),
    Signature(
        "mpi.orted-not-found",
        r"\b(?P<daemon>orted): (?:[Cc]ommand |)(?:not found|No such file|[Pp]ermission denied"
        r"|cannot execute)"
        r"|\b(?P<daemon2>prted): (?:[Cc]ommand |)(?:not found|No such file|[Pp]ermission denied"
        r"|cannot execute)",
        "a remote host has no Open MPI where mpirun looks for it: logins without a terminal have "
        "another PATH, or it is not installed at that place",
        "call mpirun by its whole path (or --prefix DIR), with Open MPI at the same place on every "
        "node; `clusterctl env install NAME` does that",
        "horovod/horovod#527; open-mpi/ompi: docs/launching-apps/ssh.rst",
        mistaken_for="a network problem",
    ),
    Signature(
        "mpi.orted-library",
        r"(?:orted|prted): error while loading shared libraries: (?P<library>\S+):"
        r"|(?:orted|prted): symbol lookup error: (?P<where>\S+):",
        "Open MPI's daemon does not find a library on a remote host",
        "call mpirun by its whole path, or with --prefix; the same Open MPI on every node",
        "open-mpi/ompi: docs/launching-apps/prerequisites.rst",
    ),
    Signature(
        "mpi.library-missing",
        r"(?P<library>lib(?:mpi|mpi_cxx|open-rte|open-pal|orte|prrte"
        r"|pmix)[\w.-]*\.so[.\d]*): cannot open shared object"
        r"|(?P<library2>libmpi\w*\.so[.\d]*) => not found",
        "{library} is not there: another Open MPI than the one this was built with, or none in the "
        "library path (5.0 has no libmpi_cxx)",
        "LD_LIBRARY_PATH to the Open MPI of the build, passed with -x LD_LIBRARY_PATH; or build "
        "the "
        "program (Horovod) again with the one that is there",
        "spack/spack#40913, horovod/horovod: docs/troubleshooting.rst",
    ),
    Signature(
        "mpi.mixed-versions",
        r"undefined symbol: (?P<symbol>(?:ompi|opal|orte|mca|pmix|prte|PMIx|MPI)_\w+)"
        r"|Symbol `(?P<symbol2>(?:ompi|opal|orte|mca|pmix"
        r"|prte)_\w+)\' has different size in shared object",
        "two versions of Open MPI are mixed: one's library does not have the other's {symbol}",
        "one Open MPI: `ldd` shows which libmpi is loaded; mpirun, PATH and LD_LIBRARY_PATH of the "
        "same installation; build Horovod again with it",
        "measured: Horovod of 4.1.4 with mpirun 5.0.11; open-mpi/ompi#6853",
    ),
    Signature(
        "mpi.version-differs",
        r"mpirun detected that the version of|A version mismatch (?:was )?detected"
        r"|different (?:major )?versions? of (?:Open MPI|OMPI|PRRTE|PMIx)"
        r"|[Uu]nable to find the (?:requested )?PMIx (?:server|version)|unpack (?:past"
        r"|would read past) end of buffer"
        r"|Data unpack failed",
        "the nodes (or mpirun and the program) have different versions of Open MPI or PMIx",
        "the same Open MPI at the same path on all nodes; call mpirun by its whole path",
        "open-mpi/ompi#6853; https://www.open-mpi.org/faq/?category=running",
        mistaken_for="a damaged message or a network fault",
        role=Role.SYMPTOM,
    ),
    Signature(
        "mpi.executable-not-found",
        r"(?:mpirun|prterun|mpiexec|orterun)(?:\.real)? was unable to launch the specified"
        r" application|was unable to find the specified executable"
        r"|(?:mpirun|prterun|prun|PRTE|The launcher|PRRTE) was unable to find"
        r" (?:the|an?) executable",
        "the program is not at that path on a node",
        "copy it to the same path on every node (`clusterctl copy`), or name an interpreter that "
        "all have",
        _HELP4,
        lines=14,
    ),
    Signature(
        "mpi.working-directory",
        r"could not change to the (?:specified )?working directory|unable to (?:change to"
        r"|access) the (?:specified )?working directory"
        r"|WARNING: could not find working directory|working directory could not be (?:found|used)",
        "the folder that mpirun was started in is not on a node",
        "copy it to the same path on every node, or --wdir DIR",
        _HELP4,
    ),
    Signature(
        "mpi.as-root",
        r"has detected an attempt to run as root",
        "Open MPI refuses to run as root",
        "run it as another user; in a container --allow-run-as-root",
        _HELP4,
        lines=2,
    ),
    Signature(
        "mpi.bad-option",
        r"(?:mpirun|prterun|mpiexec|orterun): Error: unknown option \"?(?P<option>[^\s\"]+)"
        r"|[Uu]nrecognized (?:command line )?option:? *\S*\s*(?:was given )?.*(?:mpirun|prterun)"
        r"|unknown option \"(?P<word>[^\"]+)\""
        r"|The (?:specified )?(?:mapping|ranking|binding) (?:policy|directive"
        r"|modifier) is not recognized"
        r"|unrecognized (?:mapping|binding|ranking) ",
        "mpirun does not know an option: Open MPI 4 and 5 differ, and MPICH's has others",
        "`mpirun --version`, and `mpirun --help`; `clusterctl train NAME N --dry-run` shows a "
        "line that fits",
        _HELP4,
        lines=2,
    ),
    Signature(
        "mpi.double-prefix",
        r"both --prefix and an absolute path|[Bb]oth a prefix was supplied"
        r"|conflicting? (?:--)?prefix",
        "mpirun was called by a whole path and with --prefix too",
        "leave one out",
        "open-mpi/ompi v4.1: help-orterun.txt",
        severity=Severity.WARNING,
    ),
    Signature(
        "mpi.binding-cores",
        r"would result in binding more\s+processes than cpus"
        r"|bind more processes than there are (?:cpus|cores)",
        "there are fewer CPU cores on a host than ranks to bind there",
        "--bind-to none, or fewer slots on that host",
        "open-mpi/ompi v4.1: orte/mca/rmaps/base/help-orte-rmaps-base.txt",
        lines=4,
    ),
    Signature(
        "mpi.binding-denied",
        r"Open MPI tried to bind a (?:new )?process, but something went wrong"
        r"|Setting processor affinity failed"
        r"|an error occurred while trying to bind|unable to bind (?:memory|process)",
        "the system did not let mpirun bind a rank to a CPU (containers, cgroups)",
        "--bind-to none",
        "open-mpi/ompi v4.1: help-orte-odls-default.txt",
        lines=2,
    ),
    Signature(
        "mpi.hostfile",
        r"(?:ORTE|PRTE|PRRTE|Open RTE"
        r"|The runtime) (?:was )?unable to (?:open|read) (?:the )?hostfile"
        r"|unable to open the hostfile|[Aa]n error was detected while parsing the hostfile"
        r"|parse error in (?:the )?hostfile",
        "the hosts file is missing or has a line that mpirun cannot read",
        "`clusterctl hosts NAME > hosts`: one line `ADDRESS slots=N` for each node",
        "open-mpi/ompi v4.1: orte/util/hostfile/help-hostfile.txt",
        lines=2,
    ),
    Signature(
        "mpi.help-file",
        r"I couldn't open the help file",
        "Open MPI wanted to say something and does not find the file with its own words: the "
        "topic's name "
        "stands two lines above; its installation is incomplete, moved (OPAL_PREFIX), or its "
        "disk fails",
        "the topic's name; the same path and version of Open MPI on all nodes",
        "open-mpi/ompi#10622: opal/util/show_help.c",
        role=Role.SYMPTOM,
    ),
    Signature(
        "mpi.session-dir",
        r"unable to create (?:the )?(?:session|job) director|orte_session_dir.*failed"
        r"|[Uu]nable to create a? ?sub-directory .*(?:/tmp|ompi|prte|openmpi)"
        r"|orte_init: .*session|opal_os_dirpath_create|pmix_mkdir|help-(?:orte|prte"
        r"|opal)-?\w*.*session_dir|ERROR_LOG: Error in file \S*session_dir\.c",
        "Open MPI cannot make its folder in the temporary directory: it is full, or another user's",
        "`df -h /tmp; ls -ld /tmp/ompi.* /tmp/prte.*` on that host; TMPDIR to a folder of yours",
        "open-mpi/ompi v4.1: orte/util/session_dir.c; #4510",
    ),
    Signature(
        "mpi.backing-file",
        r"[Ii]t appears as if there is not enough space for"
        r"|there is not enough space for (?P<path>/\S+)"
        r"|[Aa] system call failed during shared memory initialization"
        r"|unable to allocate shared memory|shmem: mmap: an error occurred"
        r"|PMIX ERROR: OUT-OF-RESOURCE in file gds_",
        "the temporary directory or /dev/shm has no room for Open MPI's shared memory",
        "`df -h /tmp /dev/shm` on that host; remove what dead jobs left; TMPDIR to a disk with "
        "room",
        "open-mpi/ompi: opal/mca/shmem/mmap/help-opal-shmem-mmap.txt",
        lines=4,
    ),
    Signature(
        "mpi.cma",
        r"Linux kernel CMA support was requested|cma-permission-denied"
        r"|Read -1, expected \d+, errno = 1\b",
        "ranks of one host may not read each other's memory (Yama's ptrace_scope, or a container): "
        "Open MPI takes a slower way",
        "--mca btl_vader_single_copy_mechanism none (5.0: --mca smsc ^cma), or ptrace_scope 0, or "
        "--cap-add SYS_PTRACE",
        "open-mpi/ompi: opal/mca/btl/vader/help-btl-vader.txt; #4948",
        role=Role.HARMLESS,
    ),
    Signature(
        "mpi.openib",
        r"unable to find any relevant network interfaces|OpenFabrics \(openib\)|no (?:preset"
        r"|device) parameters were found for|"
        r"No OpenFabrics connection schemes reported"
        r"|there was an error initializing an OpenFabrics device|btl_openib_(?:warn|allow)\w*"
        r"|help-mpi-btl-openib\S* / ",
        "Open MPI looks for InfiniBand and does not use what it finds",
        "--mca btl ^openib silences it",
        "the tutorial; open-mpi/ompi: help-mpi-btl-base.txt",
        role=Role.HARMLESS,
    ),
    Signature(
        "mpi.fork",
        r"A process has executed an operation involving a call\s*(?:to the \"fork|$)"
        r"|executed an operation involving a call to the\s+\"fork\(\)\"",
        "a rank forked (a data loader, a subprocess). Over TCP that does no harm",
        "--mca mpi_warn_on_fork 0 silences it; with EFA FI_EFA_USE_HUGE_PAGE=0",
        "open-mpi/ompi: ompi/runtime/help-mpi-runtime.txt",
        role=Role.HARMLESS,
        lines=2,
    ),
    Signature(
        "mpi.pmix-noise",
        r"PMIX ERROR: (?:NOT-SUPPORTED|OUT-OF-RESOURCE in file (?:client/)?dstore"
        r"|ERROR in file gds_ds12_lock_pthread)"
        r"|PMIX ERROR: (?:NO-PERMISSIONS|INIT|UNREACHABLE) in file (?:dstore|gds|psec)",
        "PMIx tries modules that this machine does not have",
        "nothing; PMIX_MCA_gds=hash or PMIX_MCA_psec=native silences it",
        "open-mpi/ompi#7516, openpmix/openpmix#1189",
        role=Role.HARMLESS,
    ),
    Signature(
        "mpi.help-aggregate",
        r"more process(?:es)? (?:has|have) sent help message (?P<file>\S+) / (?P<topic>.+)"
        r"|to see all help / error messages",
        "other ranks said the same",
        "--mca orte_base_help_aggregate 0 (5.0: --prtemca prte_base_help_aggregate 0) shows all",
        "open-mpi/ompi: orte/util/show_help.c",
        role=Role.HARMLESS,
    ),
    Signature(
        "mpi.component",
        r"[Aa] requested component was not found, or was unable to be opened"
        r"|mca_base_component_repository_open: unable to open",
        "Open MPI does not have, or cannot load, a part that it was told to use (--mca pml, btl, "
        "mtl)",
        "`Component:` in the lines after it names it: take it out of the --mca options, or "
        "install what "
        "its library misses (`ldd`); 5.0 has no openib and no vader",
        "open-mpi/ompi: opal/mca/base/help-mca-base.txt",
        lines=10,
        severity=Severity.WARNING,
    ),
    Signature(
        "mpi.no-pml",
        r"No (?:components were able to be opened in|available) (?:the )?pml"
        r"|PML (?P<pml>\w+) cannot be selected"
        r"|At least one pair of MPI processes are unable to reach each other",
        "ranks have no transport by which all can reach each other: the --mca options leave "
        "none, or "
        "the hosts' interfaces do not meet",
        "fewer --mca options (btl needs self); the same build on all nodes; " + _INTERFACES,
        "open-mpi/ompi: ompi/mca/pml/base, ompi/mca/bml/r2/help-mpi-bml-r2.txt",
        lines=2,
    ),
    Signature(
        "mpi.tcp-firewall",
        r"[Aa] process or daemon was unable to complete a TCP connection",
        "Open MPI's daemon on {local} cannot connect back to {remote}: a firewall or security "
        "group, or an address that cannot be reached from there",
        _INTERFACES,
        "open-mpi/ompi#12103, #10535",
        lines=6,
        read=_hosts,
        mistaken_for="an SSH problem: the login has worked",
    ),
    Signature(
        "mpi.tcp-connect",
        r"Open MPI failed to TCP connect to a peer MPI process"
        r"|WARNING: Open MPI failed to TCP connect"
        r"|btl_tcp_endpoint\.c:\d+:mca_btl_tcp_endpoint_\w*connect\w*\] connect\(\) to "
        r"(?P<address>\S+) failed: (?P<error>[^(\n]+)",
        "ranks cannot connect to each other: usually Open MPI has chosen an interface that the "
        "other "
        "host cannot reach (docker0, virbr0, 169.254…), or a firewall is between",
        _INTERFACES,
        _TCP,
        lines=9,
        read=_message,
    ),
    Signature(
        "mpi.tcp-unexpected",
        r"Open MPI detected an inbound MPI TCP connection request"
        r"|received unexpected process identifier"
        r"|dropped inbound connection|help-mpi-btl-tcp\.txt / (?:dropped|server)",
        "a connection came from an address that Open MPI did not expect: hosts with several "
        "networks, "
        "or NAT between them",
        _INTERFACES,
        _TCP,
    ),
    Signature(
        "mpi.tcp-handshake",
        r"help-mpi-btl-tcp\.txt / (?:client handshake fail|client connect fail)",
        "ranks connect to something that is not a rank of this job: a wrong interface, or a port "
        "scanner",
        _INTERFACES,
        _TCP,
        role=Role.SYMPTOM,
    ),
    Signature(
        "mpi.tcp-accept",
        r"[Oo]pen MPI failed to accept an incoming TCP|accept\(\) failed: Too many open files"
        r"|help-mpi-btl-tcp\.txt / accept failed",
        "a rank has no file descriptors left for more peers",
        "raise nofile (ulimit -n) for the logins by which mpirun starts its daemons",
        _TCP,
    ),
    Signature(
        "mpi.tcp-peer-hung-up",
        r"An MPI communication peer process has unexpectedly disconnected|peer hung up",
        "the rank at the other end ended or crashed: this one is a victim",
        "`Remote host` in the lines after it: its ranks' last lines, its dmesg",
        _TCP,
        role=Role.CONSEQUENCE,
        lines=8,
    ),
    Signature(
        "mpi.tcp-timeout",
        r"mca_btl_tcp_frag_recv: readv failed: Connection timed out",
        "the link to a peer went silent while data were under way: its host is frozen or gone, "
        "or the "
        "network is cut",
        "look at the peer's host (EC2's state, ping from the others)",
        "open-mpi/ompi: opal/mca/btl/tcp/btl_tcp_frag.c",
        role=Role.SYMPTOM,
    ),
    Signature(
        "mpi.tcp-reset",
        r"mca_btl_tcp_frag_(?:recv|send): (?:readv|writev) (?:failed|error)"
        r"|mca_btl_tcp_\w+: \w+ failed: (?:Connection reset|Broken pipe)"
        r"|mca_btl_tcp_endpoint_recv_\w+: (?:recv|readv)?.*(?:Connection reset|failed|error)"
        r"|btl_tcp_frag\.c:\d+",
        "the connection to another rank broke: that rank is gone",
        "find the rank that ended first: its last lines and its host's dmesg",
        "open-mpi/ompi: opal/mca/btl/tcp/btl_tcp_frag.c",
        role=Role.CONSEQUENCE,
        mistaken_for="a fault of the network",
    ),
    Signature(
        "mpi.signal",
        r"(?:mpirun|prterun|orterun"
        r"|mpiexec)(?:\.real)? noticed that process rank (?P<rank>\d+) with PID (?P<pid>\d+) on"
        r" node\s+(?P<host>\S+)\s+exited\s+on\s+signal\s+(?P<signal>\d+)"
        r"|noticed that process rank (?P<rank2>\d+) with PID",
        "{rank} on {host} was the first to end by a signal: {meaning}",
        "dmesg of {host} around that time (an OOM line, a segfault line, an Xid), and that "
        "rank's own "
        "last lines. " + _FIRST[0].upper() + _FIRST[1:],
        _HELP4 + "; " + _HELP5,
        role=Role.SYMPTOM,
        mistaken_for="proof of an OOM kill: signal 9 is none without a kernel line",
        lines=2,
        read=_signal,
    ),
    Signature(
        "mpi.exit-improper",
        r"(?:mpirun|prterun|orterun"
        r"|mpiexec)(?:\.real)? has exited due to process rank (?P<rank>\d+) with PID "
        r"(?P<pid>\d+) on node\s+(?P<host>\S+) exiting\s+improperly"
        r"|has exited due to process rank (?P<rank2>\d+) with PID",
        "{rank} on {host} ended without MPI's finalize: it left early (sys.exit, an exception "
        "that was "
        "swallowed, a crash at its end)",
        "that rank's own last lines",
        _HELP4 + "; " + _HELP5,
        role=Role.SYMPTOM,
        lines=2,
    ),
    Signature(
        "mpi.aborted",
        r"MPI_ABORT was invoked on rank (?P<rank>\d+)|PRTE_ABORT was invoked|MPI_Abort\(",
        "{rank} ended the job itself: the program, or Horovod, or mpi4py called abort after an "
        "error",
        "that rank's lines above this one say why",
        "open-mpi/ompi: ompi/mpi/help-mpi-api.txt",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "mpi.errors-fatal",
        r"MPI_ERRORS_ARE_FATAL|\*\*\* An error occurred in (?P<call>MPI_\w+)|mpi_errors_are_fatal",
        "an MPI call failed, and that ends the job",
        "the line `MPI_ERR_…` beside it, and the first line of any rank before it",
        "open-mpi/ompi: ompi/errhandler",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "mpi.init-before",
        r"The (?P<call>MPI_\w+)\(\) function was called (?P<when>before MPI_INIT"
        r"|after MPI_FINALIZE)",
        "the program calls {call} {when}",
        "init first and finalize last: with Horovod and mpi4py together, import order and atexit "
        "handlers",
        "open-mpi/ompi: ompi/mpi/help-mpi-errors.txt",
        lines=2,
    ),
    Signature(
        "mpi.init-failed",
        r"It looks like (?P<call>MPI_INIT|opal_init|orte_init|MPI_INIT_THREAD|prte_init"
        r"|PMIx_Init) failed for some reason",
        "{call} failed: the lines above and below say in which part",
        "the first lines that Open MPI wrote before it",
        "open-mpi/ompi: ompi/runtime/help-mpi-runtime.txt",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "mpi.srun-pmi",
        r"The application appears to have been direct launched using \"?srun"
        r"|OMPI was not built with SLURM's PMI support",
        "srun starts the ranks, and this Open MPI has no support for Slurm's PMI",
        "srun --mpi=pmix with an Open MPI that has PMIx, or mpirun within the allocation",
        "open-mpi/ompi: help-orte-ess-pmi; #7236",
        lines=2,
    ),
    Signature(
        "mpi.exit-code",
        r"detected that one or more processes exited with\s+non-zero status",
        "a rank ended with an error of its own; " + _FIRST.partition(":")[0],
        "find the first traceback or crash among all ranks' lines, then the hosts' dmesg",
        _HELP4 + "; measured: rank 1 raised, and mpirun named rank 0",
        role=Role.CONSEQUENCE,
        mistaken_for="the name of the culprit",
        lines=2,
    ),
    Signature(
        "mpi.primary-job",
        r"Primary job +terminated normally, but (?P<n>\d+) process(?:es)? returned",
        "a rank ended with an error of its own",
        "that rank's own last lines, above",
        _HELP4,
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "mpi.child-ended",
        r"Per user-direction, the job has been aborted|mpirun: killing job"
        r"|mpirun: abort is already in progress|forwarding signal \d+ to job",
        "mpirun ends the other ranks",
        "what ended first is above",
        _HELP4,
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "mpi.daemon-start",
        r"(?:ORTE|PRTE|PRRTE|Open RTE) was unable to reliably start one or more daemons"
        r"|[Aa]n ORTE daemon has unexpectedly failed after launch"
        r"|(?:PRTE|PRRTE|ORTE) daemon has unexpectedly failed",
        "a daemon did not start on some host: SSH, a library or a path; this line does not say "
        "which",
        "the lines above it (ssh's and the shell's own words). If there are none: `ssh HOST "
        "true` for "
        "each host, `ssh HOST ls DIR/bin/prted` (orted), and whether HOST can connect back to "
        "this one",
        _HELP4,
        role=Role.CONSEQUENCE,
        mistaken_for="a list of facts: what follows it are guesses",
    ),
    Signature(
        "mpi.daemon-status",
        r"[Aa] daemon \(pid \d+\) died unexpectedly (?:with status (?P<status>\d+)|on signal)",
        "a daemon's ssh ended with status {status}: 127 is a missing program or library, 255 is "
        "ssh itself",
        "the lines above it",
        _HELP4,
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "mpi.daemon-lost",
        r"(?:ORTE|PRTE|PRRTE|Open RTE) has lost communication with a remote daemon",
        "the connection to the daemon on {remote} was lost: that host is gone (spot, power, "
        "kernel), or "
        "its daemon was killed, or the network is cut",
        "the state of {remote} in EC2 (`clusterctl status NAME`) and its dmesg",
        _HELP4 + "; " + _HELP5,
        role=Role.SYMPTOM,
        lines=5,
        read=_remote,
    ),
    Signature(
        "mpi.daemon-connect",
        r"(?:ORTE|PRTE|PRRTE) is unable to establish a communication connection"
        r"|unable to (?:establish|complete) a (?:TCP )?connection (?:to|with) (?:the )?(?:HNP"
        r"|daemon|remote)"
        r"|tcp_peer_send_blocking: send\(\) to socket \d+ failed"
        r"|(?:mca_)?oob_tcp_\w+: .*(?:Connection refused|timed out|No route)"
        r"|oob_tcp_peer_complete_connect: connection failed",
        "daemons cannot connect to each other",
        _INTERFACES,
        _HELP4,
        role=Role.SYMPTOM,
    ),
    Signature(
        "mpi.error-log",
        r"(?:ORTE|PRTE|OPAL"
        r"|PMIX)[_ ]ERROR(?:_LOG)?: (?P<error>.+?) in file (?P<file>\S+) at line \d+",
        "a part of Open MPI failed: {error}, in {file}",
        "the text above and below it in words; with none, the same Open MPI and PMIx on all "
        "nodes, and "
        "`mpirun` by its whole path",
        "open-mpi/ompi: ORTE_ERROR_LOG; openpmix/prrte: PRTE_ERROR_LOG",
        role=Role.SYMPTOM,
    ),
    Signature(
        "mpi.rsh-agent",
        r"plm_rsh_agent.*(?:not found|could not)|unable to (?:find|locate) (?:a |the )?(?:launch"
        r"|rsh) agent|agent path NULL"
        r"|The value of the MCA parameter \"plm_\w+_agent\" was set to a path"
        r"|the (?:plm_)?(?:rsh|ssh)_agent .*could not be found",
        "mpirun finds no ssh on this machine",
        "install openssh-client (in the container too), or --mca plm_rsh_agent /usr/bin/ssh",
        "open-mpi/ompi: orte/mca/plm/rsh/help-plm-rsh.txt",
        lines=3,
    ),
    Signature(
        "mpi.ucx-cma",
        r"process_vm_(?:readv|writev)\(.*returned -1: (?P<error>Operation not permitted"
        r"|Bad address)",
        "ranks of one host may not read each other's memory ({error}): they are in different "
        "containers or user namespaces, or Yama's ptrace_scope forbids it",
        "UCX_TLS=^cma, or --mca pml ob1 --mca btl tcp,self; else one container for all ranks of a "
        "host, --cap-add SYS_PTRACE, ptrace_scope 0",
        "openucx/ucx#8958",
    ),
    Signature(
        "mpi.ucx",
        r"UCX  ERROR (?!.*max locked memory)(?P<error>.{3,100})"
        r"|pml_ucx\.c:\d+ +Error(?P<error2>.{3,100})",
        "UCX, Open MPI's InfiniBand layer, failed: {error}",
        "on EC2 leave it out: --mca pml ob1 --mca btl tcp,self (5.0 adds sm)",
        "openucx/ucx",
        role=Role.SYMPTOM,
    ),
    Signature(
        "mpi.mtl-ofi",
        r"mtl_ofi_component\.c:\d+|MTL OFI|OFI (?:fi_\w+|call \w+) failed"
        r"|ofi_\w+\.c:\d+: .* failed",
        "Open MPI's libfabric layer failed",
        "--mca mtl ^ofi --mca pml ob1 leaves it out; else look at libfabric's own words",
        "open-mpi/ompi: ompi/mca/mtl/ofi",
        role=Role.SYMPTOM,
    ),
    Signature(
        "mpi.bad-termination",
        r"BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        "a rank under MPICH's or Intel MPI's mpiexec ended with an error (EXIT CODE 9 is a kill, "
        "139 a "
        "segmentation fault)",
        "that rank's own last lines; dmesg of its host",
        "pmodels/mpich: hydra",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "mpi.mpich-stack",
        r"Fatal error in (?:P?MPI_\w+|internal_\w+): (?P<error>.+?)(?:, error stack)?:?$"
        r"|MPID_nem_tcp_connpoll",
        "an MPI call of MPICH's failed: a rank cannot reach another, or it is gone",
        "whether the hosts can resolve and reach each other's names; that all ranks run",
        "pmodels/mpich#5762",
        role=Role.SYMPTOM,
    ),
    Signature(
        "mpi.segfault-header",
        r"\*\*\* Process received signal \*\*\*",
        "a rank crashed: the next lines name signal and address, and the functions it was in",
        "the first line below with a library of yours; libraries that do not fit each other are "
        "the "
        "most frequent cause",
        "open-mpi/ompi: opal/util/stacktrace.c",
        role=Role.SYMPTOM,
    ),
    Signature(
        "mpi.timeout",
        r"The user-provided time limit for job execution has been\s*(?:reached)?",
        "mpirun's --timeout has ended the job",
        "see what it did until then; --get-stack-traces shows where the ranks were",
        _HELP4,
    ),
)
