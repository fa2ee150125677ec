from __future__ import annotations

import pytest

from clusterctl.domain.findings import Severity
from clusterctl.ec2.machines import RETIRED, retired_finding


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("p3.2xlarge", "with 1 GPU too: --instance-type g5.xlarge or g6.xlarge"),
        ("p3.8xlarge", "with 4 GPUs too: --instance-type g5.12xlarge or g6.12xlarge"),
        ("p3.16xlarge", "with 8 GPUs too: --instance-type p4d.24xlarge or g5.48xlarge"),
        ("p2.16xlarge", "no type has 16 GPUs now"),
        ("g3.8xlarge", "with 2 GPUs too: --instance-type g7e.12xlarge"),
        ("p3dn.24xlarge", "it was last offered in us-east-1, us-west-2, ap-northeast-1"),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_retired_type_and_what_to_take(name, hint, known):
    found = retired_finding(name, known, "eu-west-1")
    assert found.check == "type.retired"
    assert found.severity == (Severity.INFO if known else Severity.ERROR)
    assert name in found.message
    assert hint in found.hint
    assert ("eu-west-1" in found.message) is not known


def test_a_type_that_there_never_was_is_not_called_retired():
    found = retired_finding("p3.metal", False, "eu-west-1")
    assert (found.check, found.severity) == ("type.unknown", Severity.ERROR)


@pytest.mark.parametrize("name", ["p4d.24xlarge", "p30.xlarge", ""])
def test_other_types_have_no_finding(name):
    assert retired_finding(name, False, "us-east-1") is None


@pytest.mark.parametrize(
    ("name", "replacement"),
    [(name, other) for name, (_, others) in RETIRED.items() for other in others],
)
def test_a_replacement_has_as_many_gpus(name, replacement):
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    gpus = INSTANCE_TYPES[replacement]["GpuInfo"]["Gpus"]
    assert sum(gpu["Count"] for gpu in gpus) == RETIRED[name][0]
    assert all(gpu["Manufacturer"] == "NVIDIA" for gpu in gpus)
