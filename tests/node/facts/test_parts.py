"""What interrupted copies left, found and removed: links of others lead nowhere else."""

from __future__ import annotations

import pytest

from clusterctl.node.facts import disks
from clusterctl.node.facts.parts import describe, stagings


@pytest.mark.parametrize("discard", [False, True])
def test_a_lock_that_is_a_link_is_not_followed(tmp_path, discard):
    staging = tmp_path / "shared" / ".clusterctl-copy"
    staging.mkdir(parents=True)
    (staging / "lock").symlink_to(tmp_path / "theirs")
    described = describe(str(staging), discard)
    assert described.failed == "Too many levels of symbolic links"
    assert not (tmp_path / "theirs").exists()
    assert staging.exists()


def test_what_no_copy_uses_is_removed(tmp_path):
    staging = tmp_path / "to" / ".clusterctl-copy"
    staging.mkdir(parents=True)
    (staging / "part").write_bytes(b"x" * 5000)
    found = describe(str(staging), False)
    assert (found.in_use, found.path) == (False, str(tmp_path / "to"))
    assert found.size_bytes >= 5000
    assert staging.exists()
    describe(str(staging), True)
    assert not staging.exists()


def test_remote_mounts_are_not_searched(tmp_path, monkeypatch):
    for name in ("my data", "own"):
        (tmp_path / name / ".clusterctl-copy").mkdir(parents=True)
    escaped = f"{tmp_path}/my data".replace(" ", "\\040")
    (tmp_path / "mounts").write_text(
        f"server:/a {escaped} nfs4 rw 0 0\n/dev/nvme0n1p1 {tmp_path}/own ext4 rw 0 0\n"
    )
    monkeypatch.setattr(disks, "MOUNTS", str(tmp_path / "mounts"))
    assert list(stagings(str(tmp_path))) == [f"{tmp_path}/own/.clusterctl-copy"]


def test_what_clusterctl_copies_for_jobs_and_models_is_found_at_any_home_folder(tmp_path):
    own = tmp_path / "home" / "ubuntu" / ".clusterctl"
    channel = own / "code" / "20261128-022825-6c45" / "input" / "data" / "train"
    model = own / "serving" / "models" / "cifar10" / "20261128-022825-6c45"
    deep = tmp_path / "a/b/c/d/e/f"
    for folder in (channel, model, deep):
        (folder / ".clusterctl-copy").mkdir(parents=True)
    found = {f"{one}/.clusterctl-copy" for one in (channel, model)}
    assert set(stagings(str(tmp_path))) == found
