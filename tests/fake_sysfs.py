"""Folders that stand for proc and sys, as Linux and NVIDIA's driver fill them."""

from __future__ import annotations

import os

import pytest

from clusterctl.node.affinity import ranges


def machine(root, sockets, cores, threads=2, gpus=(), near=()):
    """Describe a machine as Linux does: all first threads are numbered before all second ones."""
    count = sockets * cores
    for processor in range(count * threads):
        folder = root / "sys/devices/system/cpu" / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True)
        core = processor % count
        (folder / "physical_package_id").write_text(f"{core // cores}\n")
        siblings = range(core, count * threads, count)
        (folder / "thread_siblings_list").write_text(",".join(map(str, siblings)) + "\n")
    for number, (address, local) in enumerate(zip(gpus, near)):
        folder = root / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 1{number}\n"
            f"GPU UUID: \t GPU-{number}a58-ff\nBus Location: \t {address.upper()}\n"
        )
        device = root / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        if local is not None:
            (device / "local_cpulist").write_text(f"{local}\n")
    return root


def two_sockets_here(root):
    """Describe this machine as two sockets with a GPU each, which halve the allowed processors.

    Return the folder and the processors of both. Skip the test if there is only one processor.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("a process cannot be bound to one of one processor")
    halves = allowed[: len(allowed) // 2], allowed[len(allowed) // 2 :]
    gpus = [f"0000:00:1{number}.0" for number in range(2)]
    machine(root, 1, 1, 1, gpus, [ranges(half) for half in halves])
    for processor in allowed:
        folder = root / "sys/devices/system/cpu" / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "physical_package_id").write_text(f"{halves[1].count(processor)}")
        (folder / "thread_siblings_list").write_text(f"{processor}")
    return root, *halves
