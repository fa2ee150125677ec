"""Lines of launchers that are near a signature's, and what `explain` must not take them for."""

from __future__ import annotations

import pytest

from clusterctl.explain.catalogue import catalogue
from clusterctl.explain.engine import explain
from clusterctl.explain.explanation import LogFinding

BLOCK = (
    "mpirun was unable to find the specified executable file, and therefore\n"
    "did not launch the job.  This error was first reported for process\n"
    "rank 0; it may have occurred for other processes as well.\n\n"
    "Node:       demo-0\nExecutable: {}\n"
)


def answer(log: str) -> str:
    lead = explain([log]).lead
    return lead.signature.id if lead else ""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        # An option that mpirun itself does not know is no second version; the daemon's is.
        ('mpirun: Error: unknown option "--nosuch"\n', "mpi.bad-option"),
        ('prted: Error: unknown option "--tree-spawn"\n', "mpi.daemon-option"),
        ('convert: unknown option "x"\n', ""),
        ("curl: unrecognized argument proxy\n", ""),
        # A program may have a name of capitals; a value or an option is none.
        (BLOCK.format("WRF"), "mpi.executable-not-found"),
        (BLOCK.format("IMB-MPI1"), "mpi.executable-not-found"),
        (BLOCK.format("LD_LIBRARY_PATH"), "mpi.misread-option"),
        (BLOCK.format("-x"), "mpi.misread-option"),
        (BLOCK.format("demo-0:4,demo-1:4"), "mpi.misread-option"),
        # The working directory is no program.
        (
            "mpirun was unable to launch the specified application as it could not\n"
            "change to the specified working directory:\n\n"
            "Working directory: /job\nNode: demo-1\n",
            "mpi.working-directory",
        ),
        # A port that is in use is no Unix socket, and the other way round.
        (
            "[W socket.cpp:426] The server socket has failed to bind to [::]:29500 "
            "(errno: 98 - Address already in use).\n",
            "net.address-in-use",
        ),
        (
            "[demo-0:29020] [[2752,0],1] bind() failed on error Address already in use (98)\n",
            "mpi.unix-socket",
        ),
        # NCCL's truncated message is not MPI's.
        ("NCCL WARN Message truncated : received 1024 bytes instead of 256\n", "nccl.truncated"),
        # A peer on another host that refuses is no loopback.
        (
            "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] "
            "timed out connecting: SO_ERROR: Connection refused, remote=[10.0.0.7]:14215\n",
            "gloo.full-mesh",
        ),
        # The end of a task is no lack of memory.
        ("srun: error: demo-0: task 4: Killed\n", "system.killed"),
        ("srun: error: demo-0: task 4: Out Of Memory\n", "slurm.oom"),
        (
            "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2024-01-01T00:00:00 ***\n",
            "slurm.step-ended",
        ),
        # A name that does not resolve is no `host:slots`.
        ("ssh: Could not resolve hostname demo-1: Name or service not known\n", "ssh.resolve"),
        ("ssh: Could not resolve hostname demo-1:4: Name or service not known\n", "ssh.host-slots"),
        ("ssh: Could not resolve hostname fe80::1:2: Name or service not known\n", "ssh.resolve"),
        # The component that is missing may be any; only psec/munge is Slurm's.
        (
            "A requested component was not found, or was unable to be opened.\n\n"
            "Host:      demo-0\nFramework: btl\nComponent: openib\n",
            "mpi.component",
        ),
        # A refused connection to mpiexec may have an end of mpiexec before it.
        (
            '[proxy:0:1@b] HYDU_sock_connect (utils/sock/sock.c:145): unable to connect from "b" '
            'to "a" (Connection refused)\n',
            "mpich.connect-refused",
        ),
        # OpenFabrics is harmless without InfiniBand, and not if it ran out of lockable memory.
        (
            "The OpenFabrics (openib) BTL failed to initialize while trying to\n"
            "allocate some locked memory.\n",
            "mpi.memlock",
        ),
        ("UCX  ERROR ibv_reg_mr(address=0x1) failed: Bad address\n", "mpi.ucx"),
        # More devices than before, and enough memory, are no reason to drain a node.
        ("slurmctld: _node_config_validate: gres/gpu: Count changed on node n1 (4 != 3)\n", ""),
        ("slurmd: Node n1 has real_memory size 63622\n", ""),
        ("srun: Job 7 step creation disabled\n", ""),
        ("A request was made to bind memory to the process\n", ""),
        ("hwloc 2.11.2 is linked\n", ""),
        # 20 is EFA's code in a completion; elsewhere "Not a directory" is about a folder.
        ("NET/OFI Request 0x7f completed with error. RC: 21. Error: x\n", "efa.request-error"),
        # Hydra's words about a rank are not about its proxy.
        ("[mpiexec@a] unable to run the program on localhost (pid 12)\n", ""),
        ("srun: error: Unable to create step for job 7: Job step binding\n", "slurm.refused"),
        ("ib_mlx5_log.c:139  Remote access error on mlx5_0:1/IB (synd 0x13)\n", "ucx.completion"),
    ],
)
def test_a_line_is_not_taken_for_its_neighbour(log, expected):
    assert answer(log) == expected


def test_values_of_the_log_are_in_cause_and_remedy():
    """Host, status and folder that the lines name are used, and no brace is left."""
    log = (
        "A daemon failed to report back after being spawned. This could\n"
        "be due to several factors, including inability to find the\n"
        "daemon executable.\n\n"
        "  Local host:    demo-0\n  Remote host:   demo-7\n  Daemon exit status: 127\n"
    )
    lead = explain([log]).lead
    assert lead and "demo-7" in lead.cause and "did not find the daemon" in lead.cause
    assert "`ssh demo-7 true`" in lead.remedy and "{" not in lead.remedy
    lead = explain(["Offending ECDSA key in /home/u/.ssh/known_hosts:27\n"]).lead
    assert lead and "/home/u/.ssh/known_hosts, line 27" in lead.cause


def test_every_cause_and_remedy_can_be_filled():
    """A brace too many in the catalogue would end the command and not be a line of its answer."""
    for signature in catalogue():
        finding = LogFinding(signature, 1, "")
        assert finding.cause and finding.remedies, signature.id
        for sample in signature.samples:
            for found in explain([sample]).findings:
                assert " not in the log)" not in found.cause + found.remedy, (signature.id, sample)


def test_ssh_tells_why_a_daemon_is_silent():
    """mpirun's own words are the consequence of those of ssh, whatever the order."""
    silent = "A daemon failed to report back after being spawned. This could\n"
    refused = "ssh: connect to host demo-1 port 22: Connection refused\n"
    assert answer(refused + silent) == answer(silent + refused) == "ssh.refused"
