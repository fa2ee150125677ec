"""Custom CloudWatch metrics, sent with PutMetricData.

The limits below are from
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

MOST_METRICS = 1000  # in one request
# A request may have 1 MB before compression (botocore compresses from 10 kB on). VALUE_BYTES is
# what one value takes besides its names in the form encoding of older botocore versions, which is
# the longest encoding.
MOST_BYTES, VALUE_BYTES = 900_000, 700
# CloudWatch rejects values beyond this, and timestamps further from the present than these.
LARGEST = 2.0**360
OLDEST_S, NEWEST_S = 14 * 86400.0, 2 * 3600.0


@dataclass(frozen=True)
class Point:
    """One value of a metric. `at` is in seconds since 1970.

    `place` increases from one value of a metric to the next. The caller sends only values whose
    `place` is beyond that of the last value sent.
    """

    metric: str
    place: float
    at: float
    value: float
    unit: str = "None"


@dataclass(frozen=True)
class AcceptablePoints:
    """The points that CloudWatch accepts, and how many it would reject for each reason."""

    points: tuple[Point, ...]
    no_numbers: int = 0
    too_old: int = 0
    too_new: int = 0


def sort_out(points: Iterable[Point], now: float) -> AcceptablePoints:
    """Leave out the points for which CloudWatch would reject the whole request.

    `now` is in seconds since 1970.
    """
    taken, no_numbers, too_old, too_new = [], 0, 0, 0
    for point in points:
        if not (math.isfinite(point.value) and abs(point.value) <= LARGEST):
            no_numbers += 1
        # A minute's margin: the request arrives later than `now`.
        elif point.at < now - OLDEST_S + 60:
            too_old += 1
        elif point.at > now + NEWEST_S:
            too_new += 1
        else:
            taken.append(point)
    return AcceptablePoints(tuple(taken), no_numbers, too_old, too_new)


def check_namespace(text: str) -> str:
    """Return `text` unchanged. Raises UsageError for a namespace that CloudWatch would reject."""
    if not text.strip() or len(text) > 255 or text.startswith((":", "AWS/")) or not text.isascii():
        raise UsageError(
            f"not a namespace of CloudWatch: {text!r}", "for example --cloudwatch Training"
        )
    return text


def put(
    client: Any, namespace: str, dimensions: Mapping[str, str], points: Sequence[Point]
) -> Iterator[Sequence[Point]]:
    """Send points that passed `sort_out`, and yield the points of each accepted request.

    Raises AwsError. Points of earlier batches are in CloudWatch then.
    """
    message = [{"Name": name, "Value": value} for name, value in dimensions.items()]
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
                        "Dimensions": message,
                        "Timestamp": datetime.fromtimestamp(point.at, timezone.utc),
                        "Value": point.value,
                        "Unit": point.unit,
                        # One second: rows come more often than once a minute, and high
                        # resolution costs the same.
                        "StorageResolution": 1,
                    }
                    for point in batch
                ],
            )
        yield batch
