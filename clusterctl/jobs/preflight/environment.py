"""What speaks against the nodes' software: other versions than the head node's, or none, and a
program of the user's own that is not there.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from clusterctl.domain.errors import MissingTool
from clusterctl.domain.findings import Finding
from clusterctl.jobs.mpirun import parse_mpirun_version
from clusterctl.jobs.preflight.context import JobContext, NodeLook, quote_hint, together

TRAINERS_TENSORFLOW = r"2\."
_NAMES = {
    "mpirun": "Open MPI",
    "python": "Python",
    "tensorflow": "TensorFlow",
    "horovod": "Horovod",
}
_INSTALL = "install the same on every node: clusterctl env install NAME"


def environment_findings(context: JobContext) -> list[Finding]:
    """Every node has to have what the head node has, at the same place."""
    paths = {"mpirun": context.plan.argv[0], "python": context.plan.python}
    missing = [
        (node.host, f"{path} does not start there")
        for node in context.nodes
        for key, path in paths.items()
        if key not in node.versions
    ]
    other = [
        (node.host, text)
        for node in context.nodes[1:]
        if not paths.keys() - node.versions.keys()
        for text in _differences(node, context.head)
    ]
    built = [
        (node.host, text)
        for node in context.nodes
        for text in _built_for_another(node.versions, context.plan.work is not None)
    ]
    return [
        *together("env.missing", missing, _INSTALL),
        *together("env.differs", other, _INSTALL),
        *together("env.mismatch", built, _INSTALL),
    ]


def script_findings(context: JobContext) -> list[Finding]:
    """A program of the user's own has to be on every node with ranks."""
    path = context.plan.script_path
    said = [
        (node.host, f"cannot run {path}: {node.script_error}")
        for node in context.readers
        if node.script_error
    ]
    return together("script.missing", said, _script_hint(context))


def _script_hint(context: JobContext) -> str:
    given = context.plan.script
    quote = quote_hint(context, "--script", given)
    if quote:
        return quote
    copy = "put it there on every node (clusterctl copy NAME FILE DIR)"
    if given.startswith("/"):
        return copy
    return (
        f"a relative PATH is below {context.plan.workdir} on the nodes: {copy}, or name it from ~/"
    )


def _differences(node: NodeLook, head: NodeLook) -> Iterable[str]:
    for key, name in _NAMES.items():
        wanted, there = (_comparable(key, one.versions.get(key)) for one in (head, node))
        if wanted and there != wanted:
            what = f"{name} {there}" if there else f"no {name}"
            yield f"has {what}, {head.host} has {wanted}"


def _comparable(key: str, version: str | None) -> str | None:
    if not version:
        return None
    if key == "python":
        return _series(version)  # its patch release does not matter to what was built for it
    if key != "mpirun":
        return version
    try:
        return parse_mpirun_version(version)
    except MissingTool:
        return version


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _built_for_another(versions: Mapping[str, str], is_trainer: bool) -> Iterable[str]:
    tensorflow, built_for = versions.get("tensorflow"), versions.get("horovod_built_for")
    if tensorflow and built_for and _series(tensorflow) != _series(built_for):
        yield f"Horovod was built for TensorFlow {built_for}, and {tensorflow} is installed"
    if is_trainer and tensorflow and not re.match(TRAINERS_TENSORFLOW, tensorflow):
        yield f"the trainer needs TensorFlow 2, and {tensorflow} is installed"
    elif is_trainer and int(versions.get("keras", "2").partition(".")[0]) > 2:
        yield (
            f"the trainer needs Keras 2, and {versions['keras']} comes with TensorFlow {tensorflow}"
        )
