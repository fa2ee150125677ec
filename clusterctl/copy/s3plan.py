"""How a data set at URLs gets to the nodes, and why that way. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.copy.request import Way
from clusterctl.copy.s3 import CONNECTIONS, UrlSource
from clusterctl.diagnostics.program import json_lines
from clusterctl.domain.errors import ClusterctlError, CommandFailed, UsageError
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import CommandResult
from clusterctl.domain.units import count, format_bytes

# What S3 promises for one prefix:
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html
GETS_A_SECOND = 5500
BLOCK_BYTES = 8 << 20
# What a node of which nothing is known pulls (10 Gb/s).
USUAL_RATE = 1.25e9


@dataclass(frozen=True)
class UrlFacts:
    """What one node can do. `objects`: for each source, whether it is one object."""

    host: str
    reachable: bool
    why: str = ""
    hint: str = ""
    s5cmd: str = ""
    aws: str = ""
    objects: tuple[bool, ...] = ()

    @property
    def has_aws2(self) -> bool:
        """Version 1 has no common runtime, and takes a second to start."""
        return bool(re.match(r"aws-cli/([2-9]|\d\d)", self.aws))


@dataclass(frozen=True)
class UrlWish:
    """What is asked for. Rates in bytes a second, of each node, where they are known.

    `plain`: nothing is asked that a tool cannot do (verify, checksum, delete, encrypt, dry run,
    names, web servers, lent keys).
    """

    sources: tuple[UrlSource, ...]
    way: Way | None = None
    plain: bool = False
    s3_rate: float | None = None
    link_rate: float | None = None


@dataclass(frozen=True)
class UrlPlan:
    """`source` is the node that lists and, in a chain, reads; None: this machine does."""

    way: Way
    why: tuple[str, ...]
    source: str | None
    tool: str = ""
    connections: int = CONNECTIONS

    def as_data(self) -> dict[str, Any]:
        return {"way": self.way.value, "tool": self.tool or None, "why": list(self.why)}


_ASKED = {
    Way.DIRECT: ("Every node pulls all from the source itself, as asked.",),
    Way.EXCHANGE: ("Every node pulls a share and gets the rest from the others, as asked.",),
}


def parse_probe(result: CommandResult) -> UrlFacts:
    """What `node/s3probe.py` printed. Raises CommandFailed."""
    answers = json_lines(result, "looking at the source")
    if len(answers) != 1:
        raise CommandFailed(result.host, "looking at the source gave no answer")
    [told] = answers
    return UrlFacts(
        host=result.host,
        reachable=told.get("reachable") is True,
        why=str(told.get("why", "")),
        hint=str(told.get("hint", "")),
        s5cmd=str(told.get("s5cmd", "")),
        aws=str(told.get("aws", "")),
        objects=tuple(one is True for one in told.get("objects", ())),
    )


def plan_urls(wish: UrlWish, facts: Sequence[UrlFacts]) -> UrlPlan:
    """The way. Raises ClusterctlError where no node can read the source, UsageError where it is
    asked for in a way that some cannot."""
    able = [one for one in facts if one.reachable]
    if not able:
        return _nobody(wish, facts)
    if wish.way is Way.CHAIN:
        return UrlPlan(
            Way.CHAIN,
            ("One node reads the source and the others pass it on, as asked.",),
            able[0].host,
        )
    if len(able) < len(facts):
        return _some(wish, facts, able)
    if wish.way is Way.TOOL:
        return _with_tool(wish, facts)
    if wish.way is not None:
        return UrlPlan(wish.way, _ASKED[wish.way], able[0].host)
    return _fastest(wish, facts)


def tool_of(facts: Sequence[UrlFacts]) -> str:
    """The fastest tool that all nodes have; empty without one."""
    if facts and all(one.s5cmd for one in facts):
        return "s5cmd"
    return "aws" if facts and all(one.has_aws2 for one in facts) else ""


def _nobody(wish: UrlWish, facts: Sequence[UrlFacts]) -> UrlPlan:
    why = facts[0].why if facts else "there are no nodes"
    hint = facts[0].hint if facts else ""
    if wish.way in (None, Way.CHAIN) and all("no connection" in one.why for one in facts):
        return UrlPlan(
            Way.CHAIN, (f"No node reaches the source ({why}): this machine reads it.",), None
        )
    raise ClusterctlError(f"no node can read the source: {why}", hint)


def _some(wish: UrlWish, facts: Sequence[UrlFacts], able: Sequence[UrlFacts]) -> UrlPlan:
    unable = [one for one in facts if not one.reachable]
    hosts = fold_hosts([one.host for one in unable])
    if wish.way is not None:
        raise UsageError(
            f"{hosts} cannot read the source: {unable[0].why}",
            unable[0].hint or f"leave out --{wish.way.value}",
        )
    why = f"{hosts} cannot read the source ({unable[0].why}): {able[0].host} reads it for all."
    return UrlPlan(Way.CHAIN, (why,), able[0].host)


def _with_tool(wish: UrlWish, facts: Sequence[UrlFacts]) -> UrlPlan:
    tool = tool_of(facts)
    if not tool:
        raise UsageError("not every node has s5cmd, or aws-cli 2", "leave out --tool")
    if not wish.plain:
        raise UsageError("a tool cannot do all that is asked for", "leave out --tool")
    return UrlPlan(Way.TOOL, (f"Every node pulls with {tool}, as asked.",), facts[0].host, tool)


def _fastest(wish: UrlWish, facts: Sequence[UrlFacts]) -> UrlPlan:
    source, nodes = facts[0].host, len(facts)
    s3_rate = wish.s3_rate or wish.link_rate or USUAL_RATE
    gets = nodes * s3_rate / BLOCK_BYTES
    if nodes > 1 and wish.s3_rate and wish.link_rate and wish.s3_rate < 0.9 * wish.link_rate:
        slow, fast = format_bytes(wish.s3_rate), format_bytes(wish.link_rate)
        why = f"A node gets {slow}/s from the source and {fast}/s from other nodes."
        return UrlPlan(
            Way.EXCHANGE,
            (why, f"Each pulls 1/{nodes} of it, and gets the rest from the others."),
            source,
        )
    if gets > GETS_A_SECOND and any(one.is_s3 for one in wish.sources):
        why = (
            f"{count(nodes, 'node')} would send {gets:.0f} requests/s, "
            f"S3 takes {GETS_A_SECOND} of a prefix."
        )
        return UrlPlan(
            Way.EXCHANGE,
            (why, f"Each pulls 1/{nodes} of it, and gets the rest from the others."),
            source,
        )
    tool = tool_of(facts) if wish.plain else ""
    if tool:
        return UrlPlan(Way.TOOL, (f"Every node has {tool} and can read the source.",), source, tool)
    return UrlPlan(
        Way.DIRECT,
        ("Every node pulls all from the source itself: no node waits for another.",),
        source,
    )
