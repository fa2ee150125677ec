"""CloudWatch's PutMetricData: refuses what AWS refuses and moto takes."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any

from moto.cloudwatch.exceptions import InvalidParameterValue
from moto.cloudwatch.models import CloudWatchBackend

from clusterctl.lab.ec2.completion import guard

# AWS's limits for one call: the number of metrics, how far their times may be in the past and in
# the future, and the magnitude of their values.
MOST, OLDEST, NEWEST = 1000, timedelta(weeks=2), timedelta(hours=2)
LARGEST = 2.0**360


@guard(CloudWatchBackend)
def put_metric_data(backend: Any, namespace: str, metric_data: list[dict[str, Any]]) -> None:
    if len(metric_data) > MOST:
        text = f"The collection MetricData must not have a size greater than {MOST}."
        raise InvalidParameterValue(text)
    for number, datum in enumerate(metric_data, 1):
        _check(datum, f"MetricData.member.{number}")


def _check(datum: dict[str, Any], name: str) -> None:
    value, now = float(datum.get("Value", 0)), datetime.now(timezone.utc)
    if not math.isfinite(value) or abs(value) > LARGEST:
        raise InvalidParameterValue(f"The value {value} for parameter {name}.Value is invalid.")
    at = datum.get("Timestamp", now)
    at = at if at.tzinfo else at.replace(tzinfo=timezone.utc)
    if not now - OLDEST <= at <= now + NEWEST:
        text = "must specify a time no older than two weeks and no later than two hours from now"
        raise InvalidParameterValue(f"The parameter {name}.Timestamp {text}.")
