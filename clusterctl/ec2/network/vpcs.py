"""Existing VPCs, subnets, security groups and elastic addresses."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError, ClusterctlError, UsageError
from clusterctl.ec2.errors import paged, translated
from clusterctl.ec2.session import is_local

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

# AWS's service that returns the caller's public address.
CHECKIP_URL = "https://checkip.amazonaws.com"
CHECKIP_TIMEOUT_S = 5
# The descriptions of the SSH rules that `up` creates. It recognizes its own rules by them.
FOUND_RULE = "clusterctl: the address that up ran from"
GIVEN_RULE = "clusterctl: given with --ssh-from"


@dataclass(frozen=True)
class Vpc:
    """A VPC. Both fields are empty where the requested subnet or network does not exist."""

    vpc_id: str
    cidr: str


@dataclass(frozen=True)
class SecurityGroup:
    """A cluster's security group and the traffic that it allows.

    `ssh_from` are the networks that SSH is allowed from. `ssh_rules` are those of them for which
    `up` created the rule, each with its description. `members_in` and `members_out`: all traffic
    from and to members of the group is allowed.
    """

    group_id: str
    ssh_from: tuple[str, ...]
    members_in: bool
    members_out: bool
    vpc_id: str = ""
    ssh_rules: tuple[tuple[str, str], ...] = ()

    def lets_in(self, cidr: str, without: Collection[str] = ()) -> bool:
        """Return whether SSH from `cidr` is allowed, not counting the networks in `without`."""
        return any(_within(cidr, allowed) for allowed in self.ssh_from if allowed not in without)


def find_vpc(client: EC2Client, vpc_id: str | None = None) -> Vpc:
    """Return this VPC, or the default one for None. Raises AwsError, also if there is none."""
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


def read_group(described: Any) -> SecurityGroup:
    """Read one group of DescribeSecurityGroups' answer."""
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
        # -1 is all traffic; such a rule has no ports.
        if ssh or rule["IpProtocol"] == "-1":
            yield from (cidr for cidr, _ in _sources(rule))


def _sources(rule: Any) -> Iterator[tuple[str, str]]:
    """Yield the networks of a rule, each with its description."""
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
    """Return an address or network in CIDR form. Raises UsageError for any other text."""
    try:
        return str(ipaddress.ip_network(text.strip(), strict=False))
    except ValueError:
        raise UsageError(
            f"not an address or network: {text!r}", "write it as 203.0.113.7 or 10.0.0.0/8"
        ) from None


def caller_cidr(endpoint_url: str, vpc: Vpc) -> str:
    """Return the network that this machine's SSH connections come from, as the nodes see it.

    This is the public address, from checkip.amazonaws.com. With a local EC2 there is none, so it is
    the whole VPC. Raises ClusterctlError if the address cannot be found out.
    """
    if is_local(endpoint_url):
        return vpc.cidr
    import urllib.request  # with http and email, for this alone

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


EVERYWHERE = "0.0.0.0/0"
# The tag on everything that `clusterctl network up NAME` creates; its value is NAME.
NETWORK = "clusterctl:network"


@dataclass(frozen=True)
class Subnet:
    """A subnet. `default`: it is the zone's default subnet in the default VPC."""

    subnet_id: str
    vpc_id: str
    zone: str
    cidr: str
    free_addresses: int
    default: bool = False


@dataclass(frozen=True)
class Egress:
    """What a node without a public address can reach from a subnet, and whether one with a public
    address can be reached.

    `table_id` is the subnet's route table, empty if EC2 shows none, as to participants of a shared
    VPC: then nothing is known. `internet`: a NAT gateway or the like leads out; an internet gateway
    does not count, because it serves public addresses only. `services` are AWS services with a VPC
    endpoint, such as `s3` and `ssm`. `s3_gateway`: the one for S3 is a gateway endpoint.
    `public`: a route leads to an internet gateway, or to an endpoint in front of one, so public
    addresses may work.
    """

    table_id: str
    internet: bool = False
    services: frozenset[str] = frozenset()
    s3_gateway: bool = False
    public: bool = False


def find_ways_out(client: EC2Client, subnets: Sequence[Subnet]) -> Mapping[str, Egress]:
    """Return what nodes can reach from each of these subnets, by subnet id. Raises AwsError.

    All subnets must be of one VPC.
    """
    if not subnets:
        return {}
    of_vpc: Any = [{"Name": "vpc-id", "Values": [subnets[0].vpc_id]}]
    tables = paged(client, "describe_route_tables", "RouteTables", Filters=of_vpc)
    endpoints = paged(client, "describe_vpc_endpoints", "VpcEndpoints", Filters=of_vpc)
    return {subnet.subnet_id: _way_out(subnet.subnet_id, tables, endpoints) for subnet in subnets}


def _way_out(subnet_id: str, tables: Sequence[Any], endpoints: Sequence[Any]) -> Egress:
    table = _table_of(subnet_id, tables)
    services, s3_gateway = set(), False
    for one in endpoints:
        if one.get("State", "").lower() != "available":
            continue
        service = one["ServiceName"].rpartition(".")[2]
        # A gateway endpoint serves the subnets whose route tables it is in. An interface endpoint
        # serves the whole VPC if private DNS leads the service's usual name to it.
        gateway = table.get("RouteTableId") in one.get("RouteTableIds", ())
        if gateway or one.get("PrivateDnsEnabled"):
            services.add(service)
        s3_gateway |= gateway and service == "s3"
    routes = [route for route in table.get("Routes", ()) if route.get("State") == "active"]
    defaults = [route for route in routes if route.get("DestinationCidrBlock") == EVERYWHERE]
    return Egress(
        table.get("RouteTableId", ""),
        any(not _to_gateway(route) for route in defaults),
        frozenset(services),
        s3_gateway,
        any(_to_gateway(route) or _to_firewall(route) for route in routes),
    )


def _table_of(subnet_id: str, tables: Sequence[Any]) -> Any:
    """Return the subnet's own route table, or else the VPC's main one; empty if there is none."""
    main: Any = {}
    for table in tables:
        for one in table.get("Associations", ()):
            if one.get("SubnetId") == subnet_id:
                return table
            main = table if one.get("Main") else main
    return main


def _to_gateway(route: Any) -> bool:
    # A carrier gateway is a Wavelength Zone's.
    return bool(route.get("GatewayId", "").startswith(("igw-", "cagw-")))


def _to_firewall(route: Any) -> bool:
    """Return whether the route leads to a Gateway Load Balancer's endpoint: a firewall in front of
    the internet gateway. The gateway endpoints of S3 have a list of prefixes instead of a block."""
    return "DestinationCidrBlock" in route and route.get("GatewayId", "").startswith("vpce-")


def find_subnets(
    client: EC2Client, *, subnet_ids: Sequence[str] | None = None, network: str | None = None
) -> tuple[Subnet, ...]:
    """Return the subnets with these ids or of a network, sorted by zone.

    Without arguments the default subnets. Raises AwsError, with code InvalidSubnetID.NotFound for
    an unknown id.
    """
    if subnet_ids is not None and not subnet_ids:
        # EC2 returns all subnets for an empty list of ids.
        return ()
    if subnet_ids is not None:
        wanted: dict[str, Any] = {"SubnetIds": list(subnet_ids)}
    elif network is not None:
        wanted = {"Filters": [{"Name": f"tag:{NETWORK}", "Values": [network]}]}
    else:
        wanted = {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
    found = map(read_subnet, paged(client, "describe_subnets", "Subnets", **wanted))
    return tuple(sorted(found, key=lambda subnet: (subnet.zone, subnet.cidr, subnet.subnet_id)))


def read_subnet(described: Any) -> Subnet:
    """Read one subnet of DescribeSubnets' answer."""
    return Subnet(
        subnet_id=described["SubnetId"],
        vpc_id=described["VpcId"],
        zone=described["AvailabilityZone"],
        cidr=described.get("CidrBlock", ""),
        free_addresses=described.get("AvailableIpAddressCount", 0),
        default=bool(described.get("DefaultForAz", False)),
    )


@dataclass(frozen=True)
class ElasticAddress:
    """An elastic IP address. `association_id` and `interface_id` are empty while it is unused.

    `border_group` is the network border group that it was allocated in: its region, or that of a
    Local Zone; empty if EC2 did not say it.
    """

    allocation_id: str
    public_ip: str
    association_id: str = ""
    interface_id: str = ""
    border_group: str = ""


def release_arguments(allocation_id: Any, border_group: str) -> dict[str, Any]:
    """Return the arguments of ReleaseAddress.

    Without its network border group EC2 does not find the address of a Local Zone (EC2 API
    reference, ReleaseAddress), and it would go on costing money.
    """
    group = {"NetworkBorderGroup": border_group} if border_group else {}
    return {"AllocationId": allocation_id, **group}


def read_address(described: Any) -> ElasticAddress:
    """Read one address of DescribeAddresses' answer."""
    return ElasticAddress(
        allocation_id=described["AllocationId"],
        public_ip=described.get("PublicIp", ""),
        association_id=described.get("AssociationId", ""),
        interface_id=described.get("NetworkInterfaceId", ""),
        border_group=described.get("NetworkBorderGroup", ""),
    )
