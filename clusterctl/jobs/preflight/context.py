"""A job and what its nodes have: what the checks before a training run look at.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterctl.domain.errors import ClusterctlError, unquoted_home
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count
from clusterctl.jobs.plan import JobPlan


@dataclass(frozen=True)
class NodeLook:
    """What `node/jobs/preflight.py` saw on one node. Files by name with their bytes; steps
    ascending.

    `records` of the files that were counted, -1 for one that ends within a record. `script_error`
    is why Python could not read the user's own program. `in_lab`: its `cpus` are those of the
    machine that all hosts of the lab run on.
    """

    host: str
    training: Mapping[str, int] = field(default_factory=dict)
    validation: Mapping[str, int] = field(default_factory=dict)
    data_error: str = ""
    records: Mapping[str, int] = field(default_factory=dict)
    checkpoints: tuple[int, ...] = ()
    checkpoint_bytes: int = 0
    free_bytes: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    script_error: str = ""
    cpus: int | None = None
    in_lab: bool = False


@dataclass(frozen=True)
class JobContext:
    """A job and its nodes, the head node first. `readers`: those of them that have ranks.

    `callers_home`: the home folder on the machine where the job was asked for, if that is no node.
    """

    plan: JobPlan
    nodes: tuple[NodeLook, ...]
    readers: tuple[NodeLook, ...]
    callers_home: str = ""

    @property
    def head(self) -> NodeLook:
        return self.nodes[0]


class NotReady(ClusterctlError):
    """A job that could not do what it is for. Nothing was started."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(
            f"nothing is trained: {count(len(errors(findings)), 'thing')} to mend first"
        )
        self.findings = tuple(findings)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Those that keep a job from being started."""
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def question(plan: JobPlan) -> dict[str, Any]:
    """What to ask every node of the job."""
    local = plan.work.data_dir if plan.work and not is_remote(plan.work.data_dir) else None
    return {
        "python": plan.python,
        "mpirun": plan.argv[0],
        "data_dir": local,
        "log_dir": plan.log_dir,
        "script": plan.script_path,
    }


def is_remote(data_dir: str | None) -> bool:
    """Whether TensorFlow reads it from elsewhere: s3://, gs://."""
    return data_dir is not None and "://" in data_dir


def quote_hint(context: JobContext, option: str, path: str) -> str:
    """What to do about a ~ that the caller's shell made their own home of; empty: it did not."""
    home = context.callers_home.rstrip("/")
    return "" if home == context.plan.home else unquoted_home(path, home, option)


def parse_look(host: str, answer: Mapping[str, Any]) -> NodeLook:
    """A node's answer, as a value."""
    return NodeLook(
        host=host,
        training=answer["training"],
        validation=answer["validation"],
        data_error=answer["data_error"],
        records=answer["records"],
        checkpoints=tuple(answer["checkpoints"]),
        checkpoint_bytes=answer["checkpoint_bytes"],
        free_bytes=answer["free_bytes"],
        versions=answer["versions"],
        script_error=answer["script_error"],
        cpus=answer["cpus"],
        in_lab=answer["in_lab"],
    )


def together(
    check_id: str,
    said: Iterable[tuple[str, str]],
    hint: str = "",
    severity: Severity = Severity.ERROR,
) -> list[Finding]:
    """One finding per message, with all hosts of which it holds."""
    hosts: dict[str, list[str]] = {}
    for host, message in said:
        hosts.setdefault(message, []).append(host)
    return [
        Finding(check_id, severity, message, fold_hosts(names), hint)
        for message, names in hosts.items()
    ]
