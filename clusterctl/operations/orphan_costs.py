"""What the things of a sweep cost an hour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.domain.spec import Market
from clusterctl.ec2.gc.resources import Resource, ResourceKind
from clusterctl.ec2.money.costs import PUBLIC_IPV4_HOUR_USD, disk_hourly_usd
from clusterctl.ec2.money.prices import find_price

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients

_COUNTED = ("pending", "running")


class HourlyCosts:
    """Prices, each asked for once."""

    def __init__(self, clients: Mapping[str, Clients], cache: Path | None = None) -> None:
        self._clients = clients
        self._cache = cache
        self._machines: dict[tuple[str, str, Market, str], float | None] = {}

    def of(self, one: Resource) -> float | None:
        """US dollars an hour; 0 for what is free, None where nobody knows."""
        if one.kind is ResourceKind.INSTANCE:
            return self._machine(one) if one.state in _COUNTED else 0.0
        if one.kind is ResourceKind.VOLUME:
            return disk_hourly_usd(one.size_gib, one.iops, one.throughput)
        return PUBLIC_IPV4_HOUR_USD if one.kind is ResourceKind.ADDRESS else 0.0

    def total(self, resources: Iterable[Resource]) -> tuple[float, bool]:
        """The sum of what is known, and whether that is all."""
        costs = [self.of(one) for one in resources]
        return sum(cost or 0.0 for cost in costs), None not in costs

    def _machine(self, one: Resource) -> float | None:
        assert one.instance is not None
        node, market = one.instance.node, one.instance.market
        key = (one.region, node.instance_type, market, node.availability_zone)
        if key not in self._machines:
            price = find_price(
                self._clients[one.region],
                node.instance_type,
                market,
                node.availability_zone if market is Market.SPOT else None,
                self._cache,
            )
            self._machines[key] = price.usd_per_hour if price else None
        return self._machines[key]
