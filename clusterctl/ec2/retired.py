"""Instance types that AWS no longer launches, and what took their place. Pure."""

from __future__ import annotations

from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.units import count

# Type -> (GPUs, types with as many). An empty tuple: none has as many.
RETIRED: dict[str, tuple[int, tuple[str, ...]]] = {
    "p3.2xlarge": (1, ("g5.xlarge", "g6.xlarge")),
    "p3.8xlarge": (4, ("g5.12xlarge", "g6.12xlarge")),
    "p3.16xlarge": (8, ("p4d.24xlarge", "g5.48xlarge")),
    "p3dn.24xlarge": (8, ("p4d.24xlarge", "g5.48xlarge")),
    "p2.xlarge": (1, ("g4dn.xlarge", "g6.xlarge")),
    "p2.8xlarge": (8, ("g6.48xlarge", "g5.48xlarge")),
    "p2.16xlarge": (16, ()),
    "g3s.xlarge": (1, ("g4dn.xlarge", "g6.xlarge")),
    "g3.4xlarge": (1, ("g4dn.4xlarge", "g6.4xlarge")),
    "g3.8xlarge": (2, ("g7e.12xlarge",)),
    "g3.16xlarge": (4, ("g4dn.12xlarge", "g6.12xlarge")),
    "g2.2xlarge": (1, ("g4dn.2xlarge", "g6.2xlarge")),
    "g2.8xlarge": (4, ("g4dn.12xlarge", "g6.12xlarge")),
}
FAMILIES = frozenset(name.partition(".")[0] for name in RETIRED)
# Where the last of them were still offered in May 2026.
LAST_REGIONS = {"p3dn": ("us-east-1", "us-west-2", "eu-west-1", "ap-northeast-1")}


def retired_finding(instance_type: str, known: bool, region: str) -> Finding | None:
    """What to say of a retired type; None for any other.

    `known`: EC2 still lists it in `region`. Then that is for information only.
    """
    family = instance_type.partition(".")[0]
    if family not in FAMILIES:
        return None
    if known:
        message = f"{instance_type} is of a retired family; few regions still launch it"
        return Finding("type.retired", Severity.INFO, message, hint=_hint(instance_type, region))
    message = f"AWS no longer launches {instance_type} in {region}: the family {family} is retired"
    return Finding("type.retired", Severity.ERROR, message, hint=_hint(instance_type, region))


def _hint(instance_type: str, region: str) -> str:
    gpus, replacements = RETIRED.get(instance_type, (0, ()))
    if replacements:
        hint = f"with {count(gpus, 'GPU')} too: --instance-type {' or '.join(replacements)}"
    elif gpus:
        hint = f"no type has {gpus} GPUs now: take two of --instance-type g5.48xlarge for each"
    else:
        hint = "choose from g4dn, g5, g6, p4d or p5, for example --instance-type g5.12xlarge"
    regions = LAST_REGIONS.get(instance_type.partition(".")[0], ())
    elsewhere = [name for name in regions if name != region]
    return f"{hint}; it was last seen in {', '.join(elsewhere)}" if elsewhere else hint
