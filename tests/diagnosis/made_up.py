"""Generated evidence of jobs of any size, and functions that change it into that of a fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clusterctl.diagnosis.evidence import (
    Evidence,
    Frame,
    HostEvidence,
    JobEvidence,
    ProcessEvidence,
    Sample,
    Socket,
    ThreadStack,
)
from clusterctl.node.jobs.spec import JobState

JOB = "20261123-004105-3f2a"
ENV = "/opt/clusterctl/training/lib/python3.12"
TF = f"{ENV}/site-packages/tensorflow/python"
SCRIPT = "/home/ubuntu/train.py"
MAIN = (Frame("<module>", SCRIPT, 161), Frame("main", SCRIPT, 120))
# TensorFlow's calls between a step and the place where it waits.
INNER = tuple(Frame(f"call_{n}", f"{TF}/eager/function.py", 10 * n) for n in range(20))
QUICK = Frame("quick_execute", f"{TF}/eager/execute.py", 53)
STEP = (*MAIN, Frame("step", SCRIPT, 77), *INNER, QUICK)
ALLREDUCE = (*MAIN, Frame("step", SCRIPT, 77), *INNER, Frame("horovod_allreduce", "<string>", 110))
INIT = (*MAIN, Frame("init", f"{ENV}/site-packages/horovod/common/basics.py", 56))
IMPORTS = (
    Frame("<module>", SCRIPT, 3),
    Frame("_find_and_load", "<frozen importlib._bootstrap>", 1176),
    Frame("<module>", f"{TF}/ops/math_ops.py", 90),
)
NEXT = (*MAIN, Frame("__next__", f"{TF}/data/ops/iterator_ops.py", 810)) + (
    Frame("_next_internal", f"{TF}/data/ops/iterator_ops.py", 773),
    Frame("iterator_get_next", f"{TF}/ops/gen_dataset_ops.py", 3028),
)
SHUTDOWN = (Frame("_shutdown", "/usr/lib/python3.12/threading.py", 1600),)
GIB = 1 << 30


def own(function: str, line: int = 30) -> tuple[Frame, ...]:
    """Return a stack that ends in the user's own code."""
    return (*MAIN, Frame(function, SCRIPT, line))


def samples(*frames: tuple[Frame, ...], state: str = "S", **more: object) -> tuple[Sample, ...]:
    """Return three samples, one second apart. A single stack is used for all three."""
    stacks = frames * 3 if len(frames) == 1 else frames
    more = {"syscall": "futex" if state == "S" else "running", **more}
    return tuple(
        Sample(
            at_s=float(at),
            state=state,
            cpu_s=10.0 + at,
            rss_bytes=GIB,
            threads=20,
            stacks=(ThreadStack("MainThread", 1, calls),) if calls else (),
            stack_source="py-spy" if calls else "",
            **more,  # type: ignore[arg-type]
        )
        for at, calls in enumerate(stacks)
    )


def file_system(path: str, free_bytes: int = 50 * GIB) -> dict[str, object]:
    """Return the facts of a file system of 100 GiB."""
    size = 100 * GIB
    sizes = {"size_bytes": size, "free_bytes": free_bytes, "used_bytes": size - free_bytes}
    return {"path": path, **sizes, "inodes": 9, "inodes_free": 5, "readonly": False}


def facts(host: str, **more: object) -> dict[str, object]:
    """Return the facts of a healthy host."""
    places = ("/", "/data", "/dev/shm")
    found = {
        "system": {"hostname": host, "cpus": 64},
        "limits": {"nofile": 1024},
        "filesystems": [file_system(path) for path in places],
        "kernel_log": [],
        "errors": {},
    }
    return {**found, **more}


def job_of(
    hosts: int = 4,
    per_host: int = 2,
    stack: tuple[Frame, ...] = ALLREDUCE,
    *,
    quiet_s: float = 214.0,
    log: tuple[str, ...] = ("step 7 loss 0.1",),
    **job: object,
) -> Evidence:
    """Return a job whose ranks all have the same stack. Its log has been silent for a time."""
    size = hosts * per_host
    found = []
    for index in range(hosts):
        ranks = [
            ProcessEvidence(
                pid=1000 + rank,
                role="rank",
                rank=rank,
                local_rank=rank % per_host,
                size=size,
                job_id=JOB,
                gpus=(rank % per_host,),
                cwd="/home/ubuntu",
                age_s=240.0,
                samples=samples(stack),
            )
            for rank in range(index * per_host, (index + 1) * per_host)
        ]
        role = "daemon" if index else "launcher"
        above = ProcessEvidence(
            pid=900, role=role, job_id=JOB, age_s=240.0, samples=samples((), syscall="poll")
        )
        found.append(
            HostEvidence(
                index=index,
                host=f"demo-{index}",
                address=address(index),
                slots=per_host,
                clock_offset_s=0.001,
                clock_error_s=0.002,
                processes=(above, *ranks),
                facts=facts(f"demo-{index}"),
            )
        )
    line = f"mpirun -np {size} --hostfile hosts --map-by slot python train.py"
    job = {"state": JobState.RUNNING, "age_s": 240.0, "size": size, "line": line, **job}
    return Evidence(
        cluster="demo",
        taken_at="2026-11-23T00:51:05+00:00",
        took_s=3.2,
        job=JobEvidence(
            job_id=JOB,
            started_at="2026-11-23T00:47:05+00:00",
            log_silent_s=quiet_s,
            log=log,
            hosts={one.address: per_host for one in found},
            **job,  # type: ignore[arg-type]
        ),
        hosts=tuple(found),
    )


def address(index: int) -> str:
    return f"10.0.{index // 250}.{index % 250 + 5}"


def with_host(evidence: Evidence, index: int, **changed: object) -> Evidence:
    """Return the evidence with changed fields of this host."""
    hosts = list(evidence.hosts)
    hosts[index] = replace(hosts[index], **changed)  # type: ignore[arg-type]
    return replace(evidence, hosts=tuple(hosts))


def with_job(evidence: Evidence, **changed: object) -> Evidence:
    return replace(evidence, job=replace(evidence.job, **changed))  # type: ignore[arg-type, type-var]


def with_processes(
    evidence: Evidence, change: Callable[[ProcessEvidence], ProcessEvidence | None]
) -> Evidence:
    """Return the evidence with each process changed by `change`. It removes a process by None."""
    hosts = tuple(
        replace(host, processes=tuple(filter(None, map(change, host.processes))))
        for host in evidence.hosts
    )
    return replace(evidence, hosts=hosts)


def with_rank(evidence: Evidence, *ranks: int, **changed: object) -> Evidence:
    """Return the evidence with changed fields of these ranks."""

    def change(one: ProcessEvidence) -> ProcessEvidence:
        return replace(one, **changed) if one.rank in ranks else one  # type: ignore[arg-type]

    return with_processes(evidence, change)


def socket_to(host: int, at: int = 0, **more: object) -> Socket:
    return Socket(local=f"{address(at)}:40000", peer=f"{address(host)}:1024", state="ESTAB", **more)  # type: ignore[arg-type]


def with_other_ends(evidence: Evidence) -> Evidence:
    """Return the evidence in which the next rank has the other end of each rank's connections."""
    ranks = [one for host in evidence.hosts for one in host.ranks]
    for one in ranks:
        ends = tuple(
            Socket(local=end.peer, peer=end.local, state=end.state)
            for end in one.samples[-1].sockets
        )
        [after] = [at for at in ranks if at.rank == ((one.rank or 0) + 1) % len(ranks)]
        [after] = [at for host in evidence.hosts for at in host.ranks if at.rank == after.rank]
        looks = tuple(replace(look, sockets=(*look.sockets, *ends)) for look in after.samples)
        evidence = with_rank(evidence, after.rank or 0, samples=looks)
    return evidence


def used(looks: tuple[Sample, ...], cpu_s: float = 1.0) -> tuple[Sample, ...]:
    """Return the samples with so much processor time of the main thread between each two."""
    return tuple(replace(one, main_cpu_s=cpu_s * at) for at, one in enumerate(looks))
