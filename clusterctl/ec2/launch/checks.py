"""What a launch cannot mend by adding: refused before anything is looked at more closely. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from clusterctl.domain.cluster import Node
from clusterctl.domain.errors import ClusterctlError, MissingTool, UsageError
from clusterctl.domain.ranges import fold_hosts, format_indices
from clusterctl.domain.spec import ClusterSpec
from clusterctl.ec2.instances import members_of
from clusterctl.ec2.launch.observe import Observed

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
    if seen.instances and seen.key_pair and not seen.key_pair.holds(public_key):
        raise MissingTool(
            f"the key of cluster {spec.name} is not on this machine",
            "copy the cluster's folder from the machine that ran `up`, "
            f"or begin anew: clusterctl down {spec.name}",
        )


def check_twins(name: str, members: Iterable[Node]) -> None:
    """Raises ClusterctlError for indices that several of a cluster's members have."""
    counted = Counter(node.index for node in members)
    twice = sorted(index for index, number in counted.items() if number > 1)
    if twice:
        command = "down" if twice[0] == 0 else "remove"
        indices = "" if twice[0] == 0 else f" {' '.join(map(str, twice))}"
        raise ClusterctlError(
            f"there are several instances for {fold_hosts([f'{name}-{one}' for one in twice])}: "
            "two commands launched at once, from two machines",
            f"remove them, and launch again: clusterctl {command} {name}{indices}",
        )


def _check_numbers(spec: ClusterSpec, seen: Observed) -> None:
    members = [found.node for found in members_of(seen.instances)]
    check_twins(spec.name, members)
    indices = {node.index for node in members}
    if spec.nodes < len(indices):
        raise UsageError(
            f"cluster {spec.name} has {len(indices)} nodes, more than the {spec.nodes} asked for",
            f"take nodes away by their index: clusterctl remove {spec.name} "
            f"{format_indices(sorted(indices)[spec.nodes :])}, or ask for --nodes {len(indices)}",
        )


def check_settled(spec: ClusterSpec, seen: Observed, tokens: Iterable[str]) -> None:
    """Raises where a launch of unknown outcome is not among those sent again with `tokens`."""
    if {sent.token for sent in seen.unsettled} - set(tokens):
        raise ClusterctlError(
            f"an earlier `up` of {spec.name} with other settings was cut off; "
            "whether it launched anything is not known yet",
            f"run that `up` again, or remove what there is: clusterctl down {spec.name}",
        )
