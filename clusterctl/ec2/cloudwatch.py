"""Custom metrics in CloudWatch, by PutMetricData and its rules.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricData.html
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from clusterctl.domain.errors import UsageError
from clusterctl.ec2.errors import translated

MOST_METRICS = 1000  # of a request
# It may have 1 MB, and whether it is compressed (botocore does that from 10 kB on) is the wire's
# affair: older botocores send forms, in which a value takes so much beside its names.
MOST_BYTES, VALUE_BYTES = 900_000, 700
LARGEST = 2.0**360
OLDEST_S, NEWEST_S = 14 * 86400.0, 2 * 3600.0


@dataclass(frozen=True)
class Point:
    """One value of a metric. `at`: seconds since 1970. `place` rises from value to value of a
    metric: what is behind the last one that was sent is new."""

    metric: str
    place: float
    at: float
    value: float
    unit: str = "None"


@dataclass(frozen=True)
class Sorted:
    """What CloudWatch takes of some points, and how many it does not."""

    points: tuple[Point, ...]
    no_numbers: int = 0
    too_old: int = 0
    too_new: int = 0


def sort_out(points: Iterable[Point], now: float) -> Sorted:
    """Leave out what would have the whole request refused."""
    taken, no_numbers, too_old, too_new = [], 0, 0, 0
    for point in points:
        if not (math.isfinite(point.value) and abs(point.value) <= LARGEST):
            no_numbers += 1
        # A minute for the way there.
        elif point.at < now - OLDEST_S + 60:
            too_old += 1
        elif point.at > now + NEWEST_S:
            too_new += 1
        else:
            taken.append(point)
    return Sorted(tuple(taken), no_numbers, too_old, too_new)


def check_namespace(text: str) -> str:
    """Return the namespace itself. Raises UsageError for one that CloudWatch would refuse."""
    if not text.strip() or len(text) > 255 or text.startswith((":", "AWS/")) or not text.isascii():
        raise UsageError(
            f"not a namespace of CloudWatch: {text!r}", "for example --cloudwatch Training"
        )
    return text


def put(
    client: Any, namespace: str, dimensions: Mapping[str, str], points: Sequence[Point]
) -> Iterator[Sequence[Point]]:
    """Send points that were sorted out, and yield those of each request that was accepted.

    Raises AwsError.
    """
    said = [{"Name": name, "Value": value} for name, value in dimensions.items()]
    names = sum(len(word) for pair in dimensions.items() for word in pair)
    longest = max((len(quote(point.metric)) for point in points), default=0)
    most = min(MOST_METRICS, MOST_BYTES // (VALUE_BYTES + names + longest))
    for first in range(0, len(points), most):
        batch = points[first : first + most]
        with translated():
            client.put_metric_data(
                Namespace=namespace,
                MetricData=[
                    {
                        "MetricName": point.metric,
                        "Dimensions": said,
                        "Timestamp": datetime.fromtimestamp(point.at, timezone.utc),
                        "Value": point.value,
                        "Unit": point.unit,
                        # Rows come more often than every minute; it costs the same.
                        "StorageResolution": 1,
                    }
                    for point in batch
                ],
            )
        yield batch
