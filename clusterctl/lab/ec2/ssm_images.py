"""AWS's public parameters that name the newest Deep Learning AMI of each kind."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from moto.ssm.models import Parameter, ParameterDict

from clusterctl.lab.addresses import REGIONS
from clusterctl.lab.ec2.completion import override
from clusterctl.lab.ec2.images import FAMILIES, Family, image_id

ROOT = "/aws/service/deeplearning/ami"
AWS_ACCOUNT = "aws"


def install() -> None:
    load = ParameterDict._check_loading_status

    def _check_loading_status(parameters: Any, key: str) -> None:
        """Called by moto before it looks for a parameter, or for those below a path."""
        load(parameters, key)
        if str(key or "").startswith(ROOT) and parameters.region_name in REGIONS:
            for family in FAMILIES:
                _publish(parameters, family)

    override(ParameterDict, _check_loading_status)


def parameter_name(family: Family) -> str:
    return f"{ROOT}/{family.architecture}/{family.kind}/latest/ami-id"


def _publish(parameters: Any, family: Family) -> None:
    name, date = parameter_name(family), max(family.dates)
    # The dictionary's own methods would come back here.
    if dict.__contains__(parameters, name):
        return
    made = Parameter(  # type: ignore[abstract]
        account_id=AWS_ACCOUNT,
        name=name,
        value=image_id(parameters.region_name, date, family),
        parameter_type="String",
        description=None,
        allowed_pattern=None,
        keyid=None,
        last_modified_date=datetime.strptime(date, "%Y%m%d").replace(tzinfo=timezone.utc),
        version=len(family.dates),
        data_type="aws:ec2:image",
    )
    dict.__setitem__(parameters, name, [made])
