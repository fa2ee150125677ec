"""What a launch cannot mend by adding: refused before anything is created. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError, MissingTool, UsageError
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.spec import ClusterSpec
from clusterctl.ec2.images import Image
from clusterctl.ec2.observe import Observed

# EC2's limit, before base64.
USER_DATA_BYTES = 16 * 1024


def check_request(spec: ClusterSpec, seen: Observed, public_key: str) -> None:
    """Raises where the cluster that is there is another one than the one asked for."""
    if len(spec.user_data) > USER_DATA_BYTES:
        raise UsageError(
            f"the user data has {len(spec.user_data)} bytes; EC2 takes {USER_DATA_BYTES}",
            "let it fetch the rest, for example from S3",
        )
    _check_numbers(spec, seen)
    _check_settings(spec, seen)
    _check_running(spec, seen)
    if seen.instances and seen.key_pair and not seen.key_pair.holds(public_key):
        raise MissingTool(
            f"the key of cluster {spec.name} is not on this machine",
            "copy the cluster's folder from the machine that ran `up`, "
            f"or begin anew: clusterctl down {spec.name}",
        )


def _check_numbers(spec: ClusterSpec, seen: Observed) -> None:
    indices = Counter(found.node.index for found in seen.instances)
    twice = [f"{spec.name}-{index}" for index, count in indices.items() if count > 1]
    if twice:
        raise ClusterctlError(
            f"there are several instances for {fold_hosts(twice)}: two `up` ran at once",
            f"remove the cluster and launch it again: clusterctl down {spec.name}",
        )
    surplus = [found.node.name for found in seen.instances if found.node.index >= spec.nodes]
    if surplus:
        raise UsageError(
            f"cluster {spec.name} has more nodes than the {spec.nodes} asked for: "
            f"{fold_hosts(surplus)}",
            f"ask for --nodes {max(indices) + 1}, or remove it first: clusterctl down {spec.name}",
        )


def _check_settings(spec: ClusterSpec, seen: Observed) -> None:
    for found in seen.instances:
        node = found.node
        if node.instance_type != spec.instance_type:
            raise UsageError(
                f"{node.name} is a {node.instance_type}, not a {spec.instance_type}",
                f"a cluster has one type: ask for {node.instance_type}, "
                f"or remove it first: clusterctl down {spec.name}",
            )
        if spec.ssh_user and found.ssh_user != spec.ssh_user:
            raise UsageError(
                f"cluster {spec.name} was launched with user {found.ssh_user}, not {spec.ssh_user}",
                f"give --user {found.ssh_user}",
            )
        if spec.image and found.image_id != spec.image:
            raise UsageError(
                f"{node.name} has image {found.image_id}, not {spec.image}",
                f"leave --image out, or remove the cluster first: clusterctl down {spec.name}",
            )


def _check_running(spec: ClusterSpec, seen: Observed) -> None:
    stopped = [
        found.node
        for found in seen.instances
        if found.node.state in (NodeState.STOPPED, NodeState.STOPPING)
    ]
    if stopped:
        ids = " ".join(node.instance_id for node in stopped)
        raise ClusterctlError(
            f"stopped: {fold_hosts([node.name for node in stopped])}",
            f"start them (aws ec2 start-instances --instance-ids {ids}) and run `up` again, "
            f"or remove the cluster: clusterctl down {spec.name}",
        )


def check_launch(spec: ClusterSpec, seen: Observed) -> Image:
    """The image to launch. Raises where it does not exist or cannot run on the type."""
    if seen.image is None:
        wanted = spec.image or "Deep Learning AMI"
        raise AwsError(
            "InvalidAMIID.NotFound",
            f"there is no image {wanted} in this region",
            "image ids are regional: check --image and --region",
        )
    known = seen.machine.architectures
    if known and seen.image.architecture and seen.image.architecture not in known:
        raise UsageError(
            f"image {seen.image.image_id} is for {seen.image.architecture}, "
            f"{seen.machine.name} is {' or '.join(known)}",
            "choose another with --image",
        )
    return seen.image


def check_settled(spec: ClusterSpec, seen: Observed, tokens: Iterable[str]) -> None:
    """Raises where a launch of unknown outcome is not among those sent again with `tokens`."""
    if {sent.token for sent in seen.unsettled} - set(tokens):
        raise ClusterctlError(
            f"an earlier `up` of {spec.name} with other settings was cut off; "
            "whether it launched anything is not known yet",
            f"run that `up` again, or remove what there is: clusterctl down {spec.name}",
        )
