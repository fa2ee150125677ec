"""Facts of a host in the lab, with hardware that the lab has broken."""

from __future__ import annotations

import base64

from clusterctl.node.facts import disks, gpus, network, software, system
from clusterctl.node.facts.report import FactReport, FactRequest, ReportRequest, collect
from clusterctl.node.packer import program_of
from clusterctl.node.record import from_json, name_of, to_json

FACTS = (
    *(system.system, system.memory, system.limits, system.kernel_log, system.login),
    *(network.interfaces, network.efa, gpus.gpus, gpus.nvlink, gpus.fabric_manager, gpus.dcgm),
    *(disks.mount, software.scripts, software.mpirun_on_path),
)


def test_all_facts_of_a_host_that_has_broken_hardware(instances, faults):
    """As `doctor` reads them: the modules packed, sent over SSH and run on the node."""
    one = instances.up(InstanceType="p3.16xlarge")[0]
    broken = {"gpu": 3, "lost": True, "ecc": 0, "remap": "", "xid": 79}
    assert faults("gpu", instance_id=one["InstanceId"], **broken)["problem"] == ""
    instances.run(one, "sudo hostname twin")
    modules = sorted({fact.__module__ for fact in FACTS})
    program = program_of(*modules, collect.__module__, "clusterctl.node.agent")
    request = ReportRequest(tuple(FactRequest(name_of(fact)) for fact in FACTS))
    packed = base64.b64encode(program.stdin(f"{to_json(request)}\n".encode())).decode()
    command = program.command(name_of(collect))

    def facts():
        said = instances.run(one, f"echo {packed} | base64 -d | {command}")
        report = from_json(FactReport, said).converted(FACTS)
        assert report.failed() == []
        return report

    found = facts()
    assert found.get(system.system).hostname == "twin"
    by_path = {one.path: one for one in found.all(disks.mount)}
    assert set(by_path) >= {"/data", "/home", "/dev/shm"}  # noqa: S108
    assert (by_path["/data"].size_bytes, by_path["/data"].readonly) == (2**30, False)
    assert [one.address for one in found.get(network.interfaces) if one.name == "eth0"] == [
        f"{one['PrivateIpAddress']}/16"
    ]
    assert found.get(gpus.gpus).driver == "580.95.05"
    assert [gpu.bus[-4:-2] for gpu in found.get(gpus.gpus).gpus] == [
        f"{number:02x}" for number in range(0x17, 0x1F) if number != 0x1A
    ]
    [line] = found.get(system.kernel_log)
    assert line.text.startswith("NVRM: Xid (PCI:0000:00:1a): 79,")
    assert 0 <= line.age_s < 600
    assert len(instances.run(one, "nvidia-smi -L").splitlines()) == 7
    faults("gpu", instance_id=one["InstanceId"], gpu=0, ecc=2, remap="failed")
    instances.run(one, "sudo ip link set eth0 mtu 1400")
    found = facts()
    assert [interface.mtu for interface in found.get(network.interfaces)] == [1400, 65536]
    first, *others = found.get(gpus.gpus).gpus
    assert first.ecc == {"volatile_dram_uncorrectable": 2, "aggregate_dram_uncorrectable": 2}
    assert (first.remap_failed, first.remap_pending) == (True, False)
    assert [gpu.ecc for gpu in others] == [{}] * 7
    faults.clear()
    assert [gpu.ecc for gpu in facts().get(gpus.gpus).gpus] == [{}] * 8


def test_a_host_whose_only_gpu_is_lost_has_no_devices(instances, faults):
    one = instances.up(InstanceType="p3.2xlarge")[0]
    broken = {"gpu": 0, "lost": True, "ecc": 0, "remap": ""}
    assert faults("gpu", instance_id=one["InstanceId"], **broken)["problem"] == ""
    said = instances.run(one, "nvidia-smi --query-gpu=index --format=csv || echo $?")
    assert said.split("\n")[:2] == ["No devices were found", "6"]
