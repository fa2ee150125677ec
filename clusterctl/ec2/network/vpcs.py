"""The network a cluster is launched into: the default VPC, its security group, who may log in."""

from __future__ import annotations

import ipaddress
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError, ClusterctlError, UsageError
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import translated

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

CHECKIP_URL = "https://checkip.amazonaws.com"
CHECKIP_TIMEOUT_S = 5
# The descriptions of the rules for SSH that `up` makes: by them it knows its own.
FOUND_RULE = "clusterctl: the address that up ran from"
GIVEN_RULE = "clusterctl: given with --ssh-from"


@dataclass(frozen=True)
class Vpc:
    vpc_id: str
    cidr: str


@dataclass(frozen=True)
class SecurityGroup:
    """A cluster's group and what it lets through.

    `ssh_rules` are those of `ssh_from` that `up` has made, each with its description.
    """

    group_id: str
    ssh_from: tuple[str, ...]
    members_in: bool
    members_out: bool
    vpc_id: str = ""
    ssh_rules: tuple[tuple[str, str], ...] = ()

    def lets_in(self, cidr: str, without: Collection[str] = ()) -> bool:
        """Whether SSH from `cidr` is allowed already, by other rules than those `without`."""
        return any(_within(cidr, allowed) for allowed in self.ssh_from if allowed not in without)


def find_vpc(client: EC2Client, vpc_id: str | None = None) -> Vpc:
    """This VPC, or the default one. Raises AwsError where there is none."""
    default: Any = [{"Name": "is-default", "Values": ["true"]}]
    with translated():
        if vpc_id is None:
            found = client.describe_vpcs(Filters=default)["Vpcs"]
        else:
            found = client.describe_vpcs(VpcIds=[vpc_id])["Vpcs"]
    if not found:
        raise AwsError(
            "VPCIdNotSpecified",
            f"region {client.meta.region_name} has no default VPC",
            "run `aws ec2 create-default-vpc`, make a network of your own with "
            "`clusterctl network up NAME` and use it with --network NAME, or choose a --subnet",
        )
    return Vpc(found[0]["VpcId"], found[0].get("CidrBlock", ""))


def find_groups(client: EC2Client, name: str) -> tuple[SecurityGroup, ...]:
    """The security groups with the cluster's tag: one, or none. Raises AwsError."""
    with translated():
        of_cluster: Any = tags.of_cluster(name)
        found = client.describe_security_groups(Filters=[of_cluster])["SecurityGroups"]
    return tuple(read_group(group) for group in found)


def read_group(described: Any) -> SecurityGroup:
    """What DescribeSecurityGroups says about one group."""
    group_id = described["GroupId"]
    incoming = described.get("IpPermissions", [])
    return SecurityGroup(
        group_id=group_id,
        ssh_from=tuple(_ssh_sources(incoming)),
        members_in=_covers_members(incoming, group_id),
        members_out=_covers_members(described.get("IpPermissionsEgress", []), group_id),
        vpc_id=described.get("VpcId", ""),
        ssh_rules=tuple(
            (cidr, text)
            for rule in incoming
            if (rule["IpProtocol"], rule.get("FromPort"), rule.get("ToPort")) == ("tcp", 22, 22)
            for cidr, text in _sources(rule)
            if text in (FOUND_RULE, GIVEN_RULE)
        ),
    )


def _ssh_sources(permissions: Iterable[Any]) -> Iterable[str]:
    for rule in permissions:
        ssh = rule["IpProtocol"] == "tcp" and rule.get("FromPort", 0) <= 22 <= rule.get("ToPort", 0)
        if ssh or rule["IpProtocol"] == "-1":
            yield from (cidr for cidr, _ in _sources(rule))


def _sources(rule: Any) -> Iterator[tuple[str, str]]:
    """The networks of a rule, each with its description."""
    for one in rule.get("IpRanges", []):
        yield one["CidrIp"], one.get("Description", "")
    for one in rule.get("Ipv6Ranges", []):
        yield one["CidrIpv6"], one.get("Description", "")


def _covers_members(permissions: Iterable[Any], group_id: str) -> bool:
    return any(
        rule["IpProtocol"] == "-1" and pair.get("GroupId") == group_id
        for rule in permissions
        for pair in rule.get("UserIdGroupPairs", [])
    )


def _within(cidr: str, allowed: str) -> bool:
    try:
        inner, outer = ipaddress.ip_network(cidr), ipaddress.ip_network(allowed)
        return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]
    except ValueError:
        return False


def parse_cidr(text: str) -> str:
    """`1.2.3.4` or `10.0.0.0/8` as a network. Raises UsageError."""
    try:
        return str(ipaddress.ip_network(text.strip(), strict=False))
    except ValueError:
        raise UsageError(
            f"not an address or network: {text!r}", "write it as 203.0.113.7 or 10.0.0.0/8"
        ) from None


def caller_cidr(endpoint_url: str, vpc: Vpc) -> str:
    """Where this machine's SSH connections come from, as the nodes see it.

    A local EC2 sees no public address: its whole VPC is allowed. Raises ClusterctlError.
    """
    if is_local(endpoint_url):
        return vpc.cidr
    try:
        with urllib.request.urlopen(CHECKIP_URL, timeout=CHECKIP_TIMEOUT_S) as answer:
            text = answer.read(64).decode("ascii", errors="replace").strip()
        address = ipaddress.ip_address(text)
    except (OSError, ValueError) as error:
        raise ClusterctlError(
            f"cannot find out this machine's public address from {CHECKIP_URL}: {error}",
            "say from where SSH is to be allowed: --ssh-from 203.0.113.7/32",
        ) from error
    return f"{address}/{address.max_prefixlen}"


def is_local(endpoint_url: str) -> bool:
    """Whether an endpoint is on this machine."""
    host = urllib.parse.urlsplit(endpoint_url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
