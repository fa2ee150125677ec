"""A cluster's own role and instance profile: found, and deleted with the cluster.

IAM has no regions, and a name is taken once in an account. So name and path have the region as well
as the cluster's name. Lists of IAM show no tags: there the path shows whose a role is.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError
from clusterctl.domain.timeouts import Polling, Timeouts
from clusterctl.ec2.errors import throttled, translated
from clusterctl.ec2.policy import BOUNDARY, Bounds, Policy
from clusterctl.ec2.tags import Creations

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients

# Characters of a role's name (IAM's quotas).
MOST_CHARACTERS = 64
# The role's inline policy.
POLICY = "clusterctl"
GONE = "NoSuchEntity"
TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "ec2.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ],
    }
)


@contextmanager
def with_policy_hint() -> Iterator[None]:
    """Add to a refusal by IAM which permissions roles take, and how to do without."""
    try:
        yield
    except AwsError as error:
        if not error.code.startswith("AccessDenied"):
            raise
        raise AwsError(
            error.code,
            error.message,
            "it takes what `clusterctl iam-policy roles` prints; without that, send the nodes your "
            "keys (--credentials mine), or give them a profile that exists (--instance-profile)",
        ) from error


def role_name(cluster: str, region: str) -> str:
    """Return the name of a cluster's own role, which is also its instance profile's."""
    room = MOST_CHARACTERS - len(f"clusterctl--{region}")
    if len(cluster) > room:
        digest = hashlib.sha256(cluster.encode()).hexdigest()[:8]
        cluster = f"{cluster[: room - 9]}-{digest}"
    return f"clusterctl-{cluster}-{region}"


def role_path(region: str, cluster: str = "") -> str:
    """Return the path of a cluster's role and profile; without a cluster, where a region's are."""
    return f"/clusterctl/{region}/" + (f"{cluster}/" if cluster else "")


@dataclass(frozen=True)
class NodeRole:
    """What exists of a cluster's own role, and the policy that it is to have: `wanted`.

    `policy` is what it allows now; None if there is no role. `profile` is true if the instance
    profile exists, and `joined` if it has the role. `boundary` is the ARN of the policy that a new
    role is bounded by; empty if the account has none of that name.
    """

    name: str
    path: str
    wanted: Policy
    policy: Mapping[str, Any] | None = None
    profile: bool = False
    joined: bool = False
    boundary: str = ""


def find_node_role(
    clients: Clients, cluster: str, wanted: Policy, creations: Creations
) -> NodeRole:
    """Return what exists of the cluster's own role, and of `wanted`, the policy for it.

    Raises AwsError, also if a role or profile of that name is not the cluster's.
    """
    region, iam = clients.ec2.meta.region_name, clients.iam
    name, path = role_name(cluster, region), role_path(region, cluster)
    roles, profiles = _find_both(iam, name, creations)
    for found in (*roles, *profiles):
        if found["Path"] != path:
            raise AwsError(
                "EntityAlreadyExists",
                f"IAM has {found['Arn']}, which is not the cluster's",
                "delete it, or choose another name for the cluster",
            )
    others = [role["RoleName"] for found in profiles for role in found["Roles"]]
    if others not in ([], [name]):
        raise AwsError(
            "LimitExceeded",
            f"the instance profile {name} has another role: {others[0]}",
            "aws iam remove-role-from-instance-profile "
            f"--instance-profile-name {name} --role-name {shlex.quote(others[0])}",
        )
    policies = roles and _get(
        iam.get_role_policy, "PolicyDocument", RoleName=name, PolicyName=POLICY
    )
    return NodeRole(
        name,
        path,
        wanted,
        (policies[0] if policies else {}) if roles else None,
        bool(profiles),
        bool(others),
        "" if roles else _boundary(clients),
    )


def _find_both(iam: Any, name: str, creations: Creations) -> list[tuple[Any, ...]]:
    """Return the role and the profile of this name, as far as they exist."""
    roles = creations.find("create_role", lambda: _get(iam.get_role, "Role", RoleName=name))
    profiles = creations.find(
        "create_instance_profile",
        lambda: _get(iam.get_instance_profile, "InstanceProfile", InstanceProfileName=name),
    )
    return [roles, profiles]


def _boundary(clients: Clients) -> str:
    bounds = Bounds(clients.ec2.meta.region_name, clients.account_id)
    arn = bounds.iam(f"policy/{BOUNDARY}")
    try:
        return arn if _get(clients.iam.get_policy, "Policy", PolicyArn=arn) else ""
    except AwsError as error:
        if not error.code.startswith("AccessDenied"):
            raise
        # Whoever may make roles only within it may also see whether it exists.
        return ""


def delete_node_role(
    clients: Clients, cluster: str, creations: Creations, known: bool, timeouts: Timeouts
) -> tuple[str, ...]:
    """Delete the cluster's own instance profile and role. Return the role's name if one existed.

    `known`: its nodes had the profile. Without that, whoever may not read IAM has no role to
    delete. Raises AwsError, also if others have attached a policy to the role.
    """
    region, iam = clients.ec2.meta.region_name, clients.iam
    name, path = role_name(cluster, region), role_path(region, cluster)
    known = known or creations.began("create_role") or creations.began("create_instance_profile")
    try:
        roles, profiles = _find_both(iam, name, creations)
    except AwsError:
        if known:
            raise
        return ()
    own_profile = any(found["Path"] == path for found in profiles)
    own_role = any(found["Path"] == path for found in roles)
    if own_profile:
        delete_profile(iam, name)
    if own_role:
        delete_role(iam, name, f"clusterctl down {cluster}", timeouts)
    if own_profile or own_role:
        _wait_until_gone(iam, name, timeouts)
        return (name,)
    return ()


def _wait_until_gone(iam: Any, name: str, timeouts: Timeouts) -> None:
    """Wait until IAM shows neither any more, for `shown_s` at most: the next `up` would use them.

    Raises AwsError.
    """
    polling = Polling(timeouts.clock, timeouts.shown_s)
    while True:
        shown = _get(iam.get_role, "Role", RoleName=name) or _get(
            iam.get_instance_profile, "InstanceProfile", InstanceProfileName=name
        )
        if not shown or polling.left_s < 0:
            return
        polling.wait()


def delete_profile(iam: Any, name: str) -> None:
    """Delete an instance profile, whatever role is in it. Raises AwsError."""
    for profile in _get(iam.get_instance_profile, "InstanceProfile", InstanceProfileName=name):
        for role in profile["Roles"]:
            _gone_is_well(
                iam.remove_role_from_instance_profile,
                InstanceProfileName=name,
                RoleName=role["RoleName"],
            )
        _gone_is_well(iam.delete_instance_profile, InstanceProfileName=name)


def delete_role(iam: Any, name: str, again: str, timeouts: Timeouts = Timeouts()) -> None:
    """Delete a role with its inline policy, but not with what others have added to it.

    `again` is the command that continues afterwards. Raises AwsError.
    """
    polling = Polling(timeouts.clock, timeouts.known_s, 0.5)
    while True:
        try:
            _gone_is_well(iam.delete_role_policy, RoleName=name, PolicyName=POLICY)
            _gone_is_well(iam.delete_role, RoleName=name)
            return
        except AwsError as error:
            if error.code != "DeleteConflict" and not throttled(error):
                raise
            added = [*_added(iam, name)] if error.code == "DeleteConflict" else []
            # IAM may not know yet that what was clusterctl's own is gone.
            if added or polling.left_s < 0:
                raise AwsError(
                    error.code,
                    f"the role {name} cannot be deleted: {error.message}",
                    f"{' && '.join([*added, again])}",
                ) from error
        polling.wait()


def _added(iam: Any, name: str) -> Iterator[str]:
    """Yield the commands that remove what others have added to a role."""
    role = shlex.quote(name)
    with translated():
        attached = iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]
        inline = iam.list_role_policies(RoleName=name)["PolicyNames"]
        profiles = iam.list_instance_profiles_for_role(RoleName=name)["InstanceProfiles"]
    for policy in attached:
        arn = policy["PolicyArn"]
        yield f"aws iam detach-role-policy --role-name {role} --policy-arn {shlex.quote(arn)}"
    for policy in inline:
        if policy != POLICY:
            yield (
                f"aws iam delete-role-policy --role-name {role} --policy-name {shlex.quote(policy)}"
            )
    for profile in profiles:
        other = shlex.quote(profile["InstanceProfileName"])
        yield (
            "aws iam remove-role-from-instance-profile "
            f"--instance-profile-name {other} --role-name {role}"
        )


def _get(method: Any, key: str, **arguments: str) -> list[Any]:
    """Return what IAM shows, in a list that is empty if there is no such thing. Raises AwsError."""
    try:
        with translated():
            return [method(**arguments)[key]]
    except AwsError as error:
        if error.code != GONE:
            raise
        return []


def _gone_is_well(method: Any, **arguments: str) -> None:
    try:
        with translated():
            method(**arguments)
    except AwsError as error:
        if error.code != GONE:
            raise
