"""The table of launchers, by the variables that each of them sets."""

from __future__ import annotations

import pytest

from clusterctl.node.jobs.launchers import job_of_daemon, rank_identity
from clusterctl.node.jobs.processes import Process, role_of

SRUN = "SLURM_JOB_ID=17 SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=4"
TORCH = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=n1 MASTER_PORT=29500"
MPI = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0"
CASES = {
    # Recorded under Open MPI 5.0 and 4.1, MPICH 4.0; the others from the launchers' documentation.
    "Open MPI": (f"{MPI} PMIX_NAMESPACE=prterun-n1-77@1", ("Open MPI", 2, 4, 0, "prterun-n1-77@1")),
    "Open MPI in a job of Slurm": (f"{SRUN} {MPI}", ("Open MPI", 2, 4, 0, "")),
    "MPICH": ("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1", ("MPICH or Intel MPI", 1, 2, 1, "")),
    "srun --mpi=pmi2": (f"{SRUN} PMI_RANK=3 PMI_SIZE=4 PMI_JOBID=17.0",
        ("MPICH or Intel MPI", 3, 4, 1, "17.0")),
    "srun": (SRUN, ("srun", 3, 4, 1, "17:0")),
    "torchrun under srun": (f"{SRUN} {TORCH} TORCHELASTIC_RUN_ID=none",
        ("torchrun", 5, 8, 1, "none:n1:29500")),
    # Recorded under Horovod 0.28.
    "horovodrun --gloo": (
        "HOROVOD_RANK=1 HOROVOD_SIZE=3 HOROVOD_LOCAL_RANK=0 HOROVOD_GLOO_RENDEZVOUS_ADDR=10.0.0.4 "
        "HOROVOD_GLOO_RENDEZVOUS_PORT=37477",
        ("horovodrun", 1, 3, 0, "10.0.0.4:37477"),
    ),
    "deepspeed": (TORCH, ("torch", 5, 8, 1, "n1:29500")),
    "a batch script": ("SLURM_JOB_ID=17 SLURM_PROCID=0 SLURM_NTASKS=4", None),
    "srun --pty bash": (f"{SRUN[:-1]}1", None),
    "a variable of that name": ("RANK=captain WORLD_SIZE=1", None),
    "a rank without its agreement": ("RANK=1 WORLD_SIZE=2", None),
}  # fmt: skip


def environ(text: str) -> dict[bytes, bytes]:
    return dict(word.encode().split(b"=", 1) for word in text.split())


@pytest.mark.parametrize(("text", "place"), CASES.values(), ids=CASES)
def test_what_the_environment_tells(text, place):
    assert rank_identity(environ(text)) == place


@pytest.mark.parametrize(
    ("argv", "job"),
    [
        ("/usr/bin/hydra_pmi_proxy --control-port n1:44883 --rmk user --proxy-id 0", "n1:44883"),
        ('ssh -x n2 "/usr/bin/hydra_pmi_proxy" --control-port n1:44883 --rmk user', "n1:44883"),
        ("hydra_bstrap_proxy --upstream-host n1 --upstream-port 4321 --pgid 0", "n1:4321"),
        ("prted --prtemca ess_base_nspace prterun-n1-77@0 --prtemca a b", "prterun-n1-77@1"),
        ('ssh -x n2 prted --prtemca ess_base_nspace "prterun-n1-77@0"', "prterun-n1-77@1"),
        ("python train.py --port 3", ""),
    ],
)
def test_the_job_of_a_daemon(argv, job):
    assert job_of_daemon(argv.split()) == job


@pytest.mark.parametrize(
    ("name", "text", "role"),
    [
        ("a.out", SRUN, "rank"),
        ("prted", SRUN, "daemon"),
        ("hydra_bstrap_pr", SRUN, "daemon"),
        ("mpirun.mpich", "", "launcher"),
        ("srun", "", "launcher"),
        ("python3", TORCH, "rank"),
        ("vim", TORCH, ""),
    ],
)
def test_its_role(name, text, role):
    # The kernel keeps 15 characters of a name; the program's own is whole.
    program = "hydra_bstrap_proxy" if name.startswith("hydra") else name
    process = Process(7, 1, name, [name], environ(text), program)
    assert role_of(process, any_launcher=True) == role
    # `kill` ends what it has always ended, and nothing because of another launcher.
    assert role_of(process) == ("daemon" if name == "prted" else "")
