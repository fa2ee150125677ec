"""Nodes that did not get ready in time, and what may help."""

from __future__ import annotations

from clusterctl.domain.cluster import Node
from clusterctl.domain.errors import HostError
from clusterctl.domain.units import format_duration
from clusterctl.operations.progress import Stage

_HINTS = {
    # cloud-init prints the host keys last, after the user data.
    Stage.CONSOLE: "if its user data needs longer, run `up` again with a larger --timeout; "
    "to see how far it is: aws ec2 get-console-output --latest --instance-id {id}. If the image "
    "prints no host keys: an --instance-profile with Systems Manager, or, trusting what the node "
    "shows, --accept-new-host-keys",
    Stage.LOGIN: "is SSH allowed from where you are? run `up` again with --ssh-from ADDRESS",
    Stage.CLOUD_INIT: "its user data may need longer: run `up` again with a larger --timeout",
}


class NodeNotReady(HostError):
    """A node has died or hangs."""

    exit_status = 1


def late(node: Node, stage: Stage, timeout_s: float, agents_reason: str = "") -> NodeNotReady:
    """The error for a node that hung at a stage.

    `agents_reason`: why Systems Manager has no host key of it, if it was asked.
    """
    asked = ""
    if stage is Stage.CONSOLE and agents_reason:
        asked = f"; over Systems Manager: {agents_reason}"
    return NodeNotReady(
        node.name,
        f"not ready after {format_duration(timeout_s)}: {stage.value}{asked}",
        _HINTS.get(stage, "").replace("{id}", node.instance_id),
    )
