"""Where a policy holds, and the names that AWS gives to what is there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterctl.domain.errors import UsageError

# The part of an ARN that says whose AWS it is, by how its regions' names begin.
PARTITIONS = {
    "cn-": "aws-cn",
    "us-gov-": "aws-us-gov",
    "us-iso-": "aws-iso",
    "us-isob-": "aws-iso-b",
    "eusc-": "aws-eusc",
}


@dataclass(frozen=True)
class Bounds:
    """Where a policy holds: "*" is any region or account. Raises UsageError for what is neither."""

    region: str = "*"
    account: str = "*"

    def __post_init__(self) -> None:
        if self.region != "*" and not re.fullmatch(
            r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}", self.region, re.ASCII
        ):
            raise UsageError(f"not a region: {self.region!r}", "for example us-east-1")
        if self.account != "*" and not re.fullmatch(r"\d{12}", self.account, re.ASCII):
            raise UsageError(f"not an account: {self.account!r}", "its number has 12 digits")

    @property
    def partition(self) -> str:
        for prefix, name in PARTITIONS.items():
            if self.region.startswith(prefix):
                return name
        return "aws"

    def arn(self, service: str, resource: str, account: str | None = None) -> str:
        """Of something regional; `account` is "" for what is AWS's own."""
        owner = self.account if account is None else account
        return f"arn:{self.partition}:{service}:{self.region}:{owner}:{resource}"

    def ec2(self, *kinds: str) -> list[str]:
        return [self.arn("ec2", f"{kind}/*") for kind in kinds]
