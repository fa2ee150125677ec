from __future__ import annotations

import sys

import pytest

from clusterctl.domain.errors import LabError, MissingTool
from clusterctl.lab import requirements
from tests.changes import CHECKOUT

APPARMOR = "kernel/apparmor_restrict_unprivileged_userns"
CLONE = "kernel/unprivileged_userns_clone"
MOST = "user/max_user_namespaces"


@pytest.mark.parametrize(
    ("values", "euid", "setting"),
    [
        ({}, 1000, None),
        ({APPARMOR: "0", CLONE: "1", MOST: "96365"}, 1000, None),
        ({APPARMOR: "1"}, 1000, "kernel.apparmor_restrict_unprivileged_userns=0"),
        ({APPARMOR: "1"}, 0, None),
        ({CLONE: "0"}, 1000, "kernel.unprivileged_userns_clone=1"),
        ({CLONE: "0"}, 0, None),
        ({MOST: "0"}, 0, "user.max_user_namespaces=10000"),
    ],
)
def test_settings_that_refuse_user_namespaces(values, euid, setting):
    expected = setting and f"sudo sysctl -w {setting}"
    assert requirements.refusing_sysctl(values, euid) == expected


def test_what_is_missing_is_named_with_its_package(monkeypatch, tmp_path):
    with monkeypatch.context() as without, pytest.raises(MissingTool) as missing:
        without.setattr(requirements.importlib.util, "find_spec", lambda name: None)
        requirements.check_machine(0)
    # It works wherever clusterctl was installed from.
    assert missing.value.hint == f"{sys.executable} -m pip install '{requirements.MOTO}'"
    assert f"lab =\n    {requirements.MOTO}\n" in (CHECKOUT / "setup.cfg").read_text()
    with monkeypatch.context() as old, pytest.raises(MissingTool, match=r"3\.10 or newer"):
        old.setattr(requirements.sys, "version_info", (3, 9, 18))
        requirements.check_machine(0)
    monkeypatch.setattr(requirements, "SEARCH_PATH", str(tmp_path))
    with pytest.raises(MissingTool, match="sshd") as missing:
        requirements.check_machine(0)
    assert missing.value.hint == "sudo apt-get install iproute2 openssh-client openssh-server sudo"
    with pytest.raises(MissingTool) as missing:
        requirements.check_shaping()
    assert missing.value.hint == "sudo apt-get install iproute2"


def test_a_kernel_that_cannot_shape_is_said_to_be_one(monkeypatch):
    monkeypatch.setattr(requirements, "shape_of", lambda rate_bit: "nonsense")
    with pytest.raises(LabError) as refused:
        requirements.check_shaping()
    assert refused.value.message.startswith("this kernel cannot shape links: ")
