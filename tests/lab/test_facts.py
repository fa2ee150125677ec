"""Facts of a host in the lab, with hardware that the lab has broken."""

from __future__ import annotations

import base64
import json

from clusterctl.node.packer import program_of


def test_all_facts_of_a_host_that_has_broken_hardware(instances, faults):
    """As `doctor` asks: the module packed, sent over SSH and run on the node."""
    one = instances.up(InstanceType="p3.16xlarge")[0]
    broken = {"gpu": 3, "lost": True, "ecc": 0, "remap": "", "xid": 79}
    assert faults("gpu", instance_id=one["InstanceId"], **broken)["problem"] == ""
    instances.run(one, "sudo hostname twin")
    program = program_of("clusterctl.node.diagnosis.doctor")
    nothing = dict.fromkeys(("python", "mpirun", "data_dir"), "none")
    asked = {**nothing, "peers": [], "over_ssh": False, "within_s": 240.0}
    packed = base64.b64encode(program.stdin(asked)).decode()

    def facts():
        said = json.loads(instances.run(one, f"echo {packed} | base64 -d | {program.command()}"))
        assert said.pop("errors") == {}
        return said

    found = facts()
    assert set(found) >= {
        *("system", "memory", "limits", "interfaces", "efa", "kernel_log", "gpus", "nvlink"),
        *("fabric_manager", "filesystems", "clock"),
    }
    assert found["system"]["hostname"] == "twin"
    assert {one["path"] for one in found["filesystems"]} >= {"/data", "/home", "/dev/shm"}  # noqa: S108
    [data] = [one for one in found["filesystems"] if one["path"] == "/data"]
    assert (data["size_bytes"], data["readonly"]) == (2**30, False)
    assert [one["address"] for one in found["interfaces"] if one["name"] == "eth0"] == [
        f"{one['PrivateIpAddress']}/16"
    ]
    assert found["gpus"]["driver"] == "580.95.05"
    assert [gpu["bus"][-4:-2] for gpu in found["gpus"]["gpus"]] == [
        f"{number:02x}" for number in range(0x17, 0x1F) if number != 0x1A
    ]
    [line] = found["kernel_log"]
    assert line["text"].startswith("NVRM: Xid (PCI:0000:00:1a): 79,")
    assert 0 <= line["age_s"] < 600
    assert len(instances.run(one, "nvidia-smi -L").splitlines()) == 7
    faults("gpu", instance_id=one["InstanceId"], gpu=0, ecc=2, remap="failed")
    instances.run(one, "sudo ip link set eth0 mtu 1400")
    found = facts()
    assert [interface["mtu"] for interface in found["interfaces"]] == [1400, 65536]
    first, *others = found["gpus"]["gpus"]
    assert first["ecc"] == {"volatile_dram_uncorrectable": 2, "aggregate_dram_uncorrectable": 2}
    assert (first["remap_failed"], first["remap_pending"]) == (True, False)
    assert [gpu["ecc"] for gpu in others] == [{}] * 7
    faults.clear()
    assert [gpu["ecc"] for gpu in facts()["gpus"]["gpus"]] == [{}] * 8


def test_a_host_whose_only_gpu_is_lost_has_no_devices(instances, faults):
    one = instances.up(InstanceType="p3.2xlarge")[0]
    broken = {"gpu": 0, "lost": True, "ecc": 0, "remap": ""}
    assert faults("gpu", instance_id=one["InstanceId"], **broken)["problem"] == ""
    said = instances.run(one, "nvidia-smi --query-gpu=index --format=csv || echo $?")
    assert said.split("\n")[:2] == ["No devices were found", "6"]
