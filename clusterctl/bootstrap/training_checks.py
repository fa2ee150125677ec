"""Plans the installation of a training environment, and finds what is in its way. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusterctl.bootstrap.training import FOLDER, EnvRequest, EnvState, NodeEnv
from clusterctl.domain.findings import Finding, folded
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.releases import NAMES, NEWEST_FROM, RUNS_ON, dotted
from clusterctl.domain.units import format_bytes

# Bytes that an environment and its wheels need, by flavor.
REQUIRED_BYTES = {"cpu": (1_900_000_000, 450_000_000), "gpu": (7_000_000_000, 3_500_000_000)}


@dataclass(frozen=True)
class EnvPlan:
    """The steps of an installation, in this order. Hosts are in the cluster's order."""

    gather: bool
    build: bool
    copy_to: tuple[str, ...]
    install: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not self.install


def choose_release(request: EnvRequest, nodes: Sequence[NodeEnv]) -> EnvRequest:
    """Return the request with its release, the GPUs' capabilities, and the folder if it is known.

    A release that the request names is kept, and so is that of an environment which the request
    names or an installation left. Otherwise the GPUs with the highest capability decide. All nodes
    get the same release. `nodes` begin with the head node.
    """
    head, capabilities = nodes[0], gpu_capabilities(nodes)
    release = request.release
    if not release and (request.folder or head.remembered) and head.state is not EnvState.MISSING:
        release = head.release
    if not release:
        is_new = max(capabilities, default=0) >= NEWEST_FROM
        release = "newest" if is_new else head.release
    # The node named FOLDER for want of another one: a release has a folder of its own.
    is_known = request.folder or (not request.release and head.folder != FOLDER)
    folder = head.folder if is_known or release == head.release else ""
    return replace(request, folder=folder, release=release, capabilities=capabilities)


def gpu_capabilities(nodes: Sequence[NodeEnv]) -> tuple[int, ...]:
    """Return the compute capabilities of the nodes' GPUs, ascending: 90 for 9.0."""
    found = {one for node in nodes if node.flavor == "gpu" for one in node.capabilities}
    return tuple(sorted(found))


def choice_line(request: EnvRequest, nodes: Sequence[NodeEnv]) -> str:
    """Return a line on the release that was chosen for the GPUs; empty if they made no difference.

    `request` is the one before the choice.
    """
    chosen = choose_release(request, nodes)
    if request.release or chosen.release == nodes[0].release:
        return ""
    low, high = chosen.capabilities[0], chosen.capabilities[-1]
    least = f", the highest of the cluster; the lowest is {dotted(low)}" if low != high else ""
    return (
        f"--tensorflow {NAMES[chosen.release]}, for compute capability {dotted(high)} on "
        f"{_with(nodes, high)}{least}"
    )


def release_findings(nodes: Sequence[NodeEnv]) -> list[Finding]:
    """Return an error if the release does not run on the lowest or on the highest GPUs."""
    release, capabilities = nodes[0].release, gpu_capabilities(nodes)
    if not capabilities:
        return []
    first, last = RUNS_ON[release]
    low, high = capabilities[0], capabilities[-1]
    if high > last:
        text = (
            "TensorFlow 2.15's CUDA 12.2 and cuDNN 8.9 have no code for compute capability "
            f"{dotted(high)}"
        )
        hint = f"clusterctl env install NAME --tensorflow {NAMES['newest']}"
        return [Finding.error("env.gpus", text, hint, _with(nodes, high))]
    if low < first:
        text = (
            f"the libraries of --tensorflow {NAMES[release]} begin with compute capability "
            f"{dotted(first)}, and these GPUs have {dotted(low)}"
        )
        older = RUNS_ON["default"]
        runs = release != "default" and low >= older[0]
        hint = "launch a newer instance type"
        if runs and high <= older[1]:
            hint = f"clusterctl env install NAME --tensorflow {NAMES['default']}"
        elif runs:
            hint = f"no environment runs on {dotted(low)} and {dotted(high)}: take one type"
        return [Finding.error("env.gpus", text, hint, _with(nodes, low))]
    return []


def _with(nodes: Sequence[NodeEnv], capability: int) -> str:
    return fold_hosts([node.host for node in nodes if capability in node.capabilities])


def plan_install(nodes: Sequence[NodeEnv], given: Sequence[str] = ()) -> EnvPlan:
    """Plan what makes the environment of every node ready. The head node is the first of `nodes`.

    `given` are the file names of the wheels that the user has.
    """
    head, *workers = nodes
    missing = [node for node in nodes if not node.ready]
    # A node may have the environment while its launcher uses another folder.
    install = [node.host for node in nodes if not (node.ready and node.chosen)]
    name = head.key.partition("+")[0]
    has_wheel = head.horovod_wheel or any(
        wheel.startswith(f"{name}-") and wheel.endswith(".whl") for wheel in given
    )
    return EnvPlan(
        gather=bool(missing) and bool(given or not (head.gathered and head.horovod_wheel)),
        build=bool(missing) and not has_wheel,
        copy_to=tuple(node.host for node in workers if not node.ready),
        install=tuple(install),
    )


def plan_lines(plan: EnvPlan, head: NodeEnv, folder: str) -> list[str]:
    """Return the plan as text, a line per step."""
    all_of = fold_hosts(plan.install)
    steps = [
        (plan.gather, f"{head.host}: get the wheels, once for all nodes"),
        (plan.build, f"{head.host}: build Horovod's wheel, once for all nodes"),
        (plan.copy_to, f"copy the wheels from {head.host} to {fold_hosts(plan.copy_to)}"),
        (plan.install, f"{all_of}: install into {folder}, and test it with two ranks"),
        (plan.install and head.without_kernels, f"{head.host}: {_kernels(head)}"),
    ]
    return [text for is_due, text in steps if is_due]


def _kernels(head: NodeEnv) -> str:
    hint = ""
    if head.release == "default" and max(head.without_kernels, default=0) < 100:
        hint = "; --tensorflow NEWEST has them"
    return (
        f"compile TensorFlow's kernels for {kernels_for(head)}, up to half an hour, and copy them "
        f"to all{hint}"
    )


def kernels_for(head: NodeEnv) -> str:
    """Return `compute capability 9.0`: those for which TensorFlow's wheels have no kernels."""
    named = ", ".join(map(dotted, head.without_kernels))
    return f"compute capability {named}"


def obstacles(nodes: Sequence[NodeEnv], folder: str, needs_build: bool = False) -> list[Finding]:
    """Return all that keeps nodes from having the environment. The head node is the first.

    `needs_build`: Horovod has to be compiled there.
    """
    head = nodes[0]
    found = []
    if head.no_toolkit and needs_build:
        found.append(_error(head, "env.toolkit", *_split(head.no_toolkit)))
    for node in nodes:
        if node.no_python:
            found.append(_error(node, "env.python", node.no_python, "name another with --python"))
        elif node.key != head.key and head.python:
            found.append(
                _error(
                    node,
                    "env.alike",
                    f"it would need {node.key}, the head node {head.key}",
                    "all nodes need the same Python and architecture, and GPUs or none: see "
                    "--python and --preset",
                )
            )
        if node.ready:
            continue
        if node.state is EnvState.FOREIGN:
            message = f"{folder} holds something that clusterctl has not put there"
            found.append(
                _error(
                    node, "env.folder", message, "remove it, or name another folder with --prefix"
                )
            )
        if not node.writable:
            message = f"{folder} cannot be written to, and sudo needs a password"
            found.append(_error(node, "env.folder", message, "name another folder with --prefix"))
        found += _room_findings(node)
    return folded(found)


def _split(reason: str) -> tuple[str, str]:
    """Divide the script's `what: what to do` into message and hint."""
    what, _, hint = reason.rpartition(": ")
    return what, hint


def _room_findings(node: NodeEnv) -> list[Finding]:
    env, wheels = REQUIRED_BYTES[node.flavor]
    if node.state in (EnvState.OTHER, EnvState.PARTIAL):
        env = 0  # it replaces the existing environment
    if node.gathered:
        wheels = 0
    (device, free), (home_device, home_free) = node.free, node.home_free
    needs = [(node.folder, free, env + (wheels if device == home_device else 0))]
    if device != home_device:
        needs.append(("~/.cache/clusterctl", home_free, wheels))
    return [
        _error(
            node,
            "env.room",
            f"{path}: {format_bytes(has)} are free, {format_bytes(need)} are needed",
            "see `clusterctl disk` and `clusterctl clean-logs`",
        )
        for path, has, need in needs
        if has < need
    ]


def state_findings(nodes: Sequence[NodeEnv], folder: str, cluster: str) -> list[Finding]:
    """Return the problems for `env status`. Nodes with the same problem share one finding."""
    found = [_not_ready(node, folder, cluster) for node in nodes if not node.ready]
    found += release_findings(nodes) if nodes else []
    keys = {node.key for node in nodes if node.ready}
    if len(keys) > 1:
        message = f"the nodes' environments are of {len(keys)} kinds: {', '.join(sorted(keys))}"
        hint = "mpirun needs the same on all: see --python and --preset of `env install`"
        found.append(Finding.error("env.alike", message, hint))
    return folded(found)


def _not_ready(node: NodeEnv, folder: str, cluster: str) -> Finding:
    if node.state is EnvState.FOREIGN:
        message = f"what is in {folder} was not put there by clusterctl"
        return _error(node, "env.state", message, "training uses it if it has Horovod")
    message = {
        EnvState.MISSING: f"there is no training environment in {folder}",
        EnvState.PARTIAL: f"an installation into {folder} did not end",
        EnvState.OTHER: f"{folder} is {node.stamp}, not {node.key}",
    }[node.state]
    return _error(node, "env.state", message, f"clusterctl env install {cluster}")


def _error(node: NodeEnv, check: str, message: str, hint: str) -> Finding:
    return Finding.error(check, message, hint, node.host)
