"""Growing volumes, on the lab's EC2."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.domain.errors import AwsError
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2 import volumes
from clusterctl.lab.ec2 import volumes as lab_volumes
from tests.ec2.test_instances import launch


def changes_of(client, volume):
    answer = client.describe_volumes_modifications(VolumeIds=[volume.id])
    return [(one["TargetSize"], one["ModificationState"]) for one in answer["VolumesModifications"]]


@pytest.mark.parametrize("described_gib", [8, 20], ids=["as before", "as asked for"])
def test_a_change_that_was_cut_off_is_waited_for_and_not_asked_for_again(
    client, monkeypatch, described_gib
):
    """This holds for either size that EC2 describes while it changes the volume."""
    [id] = launch(client, "demo", 1)
    volume = volumes.root_volumes(client, [id])[id]
    with monkeypatch.context() as interrupted:
        interrupted.setattr(lab_volumes, "MODIFYING_S", 1e6)
        with pytest.raises(AwsError, match="still being changed after 0 min"):
            volumes.enlarge(client, volume, 20, Timeouts(enlarged_s=0.0))
        assert changes_of(client, volume) == [(20, "modifying")]
        with pytest.raises(AwsError, match="still going on"):
            volumes.enlarge(client, volume, 30)
    volumes.enlarge(client, replace(volume, size_gib=described_gib), 20)
    [(_, state)] = changes_of(client, volume)
    assert state != "modifying"
    volumes.enlarge(client, replace(volume, size_gib=20), 20)
    assert len(changes_of(client, volume)) == 1
