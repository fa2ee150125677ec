"""Valid EBS volumes, decided from the request."""

from __future__ import annotations

import re
from datetime import timedelta
from types import SimpleNamespace

import pytest
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError

from clusterctl.lab.ec2.volumes import VolumeRequest, _state_of, check_change, check_disk


def disk(type="gp3", size_gib=100, **others):
    return VolumeRequest("/dev/sda1", type, size_gib, **others)


@pytest.mark.parametrize(
    "wish",
    [
        disk(),
        disk(size_gib=75, snapshot_id="snap-1", snapshot_gib=75),
        disk(iops=6000, throughput=1500),
        disk(snapshot_id="snap-1", snapshot_gib=75, load_mib_s=300),
        disk(size_gib=160, iops=80_000, throughput=2000),
        disk("gp2"),
        disk("io2", iops=64_000),
    ],
)
def test_volumes_that_are_made(wish):
    check_disk(wish)


@pytest.mark.parametrize(
    ("wish", "code", "text"),
    [
        (disk(size_gib=15, snapshot_id="snap-1", snapshot_gib=75), "InvalidBlockDeviceMapping",
         "Volume of size 15GB is smaller than snapshot 'snap-1', expect size >= 75GB"),
        (disk(size_gib=0), "MissingParameter", "size or snapshotId"),
        (disk(load_mib_s=300), "InvalidParameterCombination", "VolumeInitializationRate"),
        (disk(snapshot_id="snap-1", snapshot_gib=75, load_mib_s=301), "InvalidParameterValue",
         "not between 100 and 300"),
        (disk(size_gib=65_537), "InvalidParameterValue", "maximum is 65536"),
        (disk("gp2", size_gib=16_385), "InvalidParameterValue", "1 to 16384 GiB"),
        (disk(iops=2999), "InvalidParameterValue", "minimum is 3000"),
        (disk(size_gib=1000, iops=80_001), "InvalidParameterValue", "maximum is 80000"),
        (disk(iops=9000, throughput=2001), "InvalidParameterValue", "maximum is 2000"),
        (disk(throughput=1000), "InvalidParameterValue",
         "Throughput (MiBps) to iops ratio of 0.333333 is too high; maximum is 0.250000"),
        (disk(iops=50_001), "InvalidParameterValue", "Iops to volume size ratio of 500.01"),
        (disk("gp2", iops=3000), "InvalidParameterCombination", "iops"),
        (disk("io1"), "MissingParameter", "iops"),
        (disk(kms_key_id="alias/mine"), "InvalidParameterDependency", "Encrypted"),
    ],
)  # fmt: skip
def test_volumes_that_are_refused(wish, code, text):
    with pytest.raises(EC2ClientError, match=re.escape(text)) as refused:
        check_disk(wish)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("age_s", "size", "code"),
    [
        (1, 200, "IncorrectModificationState"),
        (60, 200, "VolumeModificationRateExceeded"),
        (7 * 3600, 200, None),
        (None, 200, None),
        (None, 50, "InvalidParameterValue"),
    ],
)
def test_a_volume_is_changed_once_in_six_hours(age_s, size, code):
    change = SimpleNamespace(start_time=utcnow() - timedelta(seconds=age_s or 0))
    change.modification_state = _state_of(change)
    volume = SimpleNamespace(id="vol-1", size=100, modifications=[change] if age_s else [])
    if code is None:
        check_change(volume, size)
        return
    with pytest.raises(EC2ClientError) as refused:
        check_change(volume, size)
    assert refused.value.code == code
