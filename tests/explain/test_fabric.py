"""Slurm's daemons, MPI, the kernel's limits and the GPU driver: what is not theirs, and labels."""

from __future__ import annotations

import pytest

from clusterctl.explain.engine import explain


def test_a_message_is_known_behind_the_label_of_the_task_that_srun_puts_before_it():
    lines = [f"{task}: fatal error: mpi.h: No such file or directory\n" for task in range(4)]
    found = explain(["".join(lines)])
    assert found.lead and found.lead.signature.id == "build.known-header"
    assert found.lead.count == 4 and not found.lead.ranks


@pytest.mark.parametrize("line", ["1: [rank 3] no", "    0: no handle", "12: 34", "12:34 no"])
def test_a_number_that_is_no_label_stays_in_its_line(line):
    found = explain([f"error: quux did not start\nCaused by:\n{line}\n"])
    assert found.unknown and line.strip() not in found.unknown[0].text


@pytest.mark.parametrize(
    ("gids", "means"),
    [
        (" (Recv) localGid fe80::ac0:1 remoteGidsfe80::ac0:2", "link-local"),
        (" (Send) localGid ::ffff:10.0.0.1 remoteGids::ffff:10.0.1.1", "IPv4"),
        ("", "(status 12)"),
    ],
)
def test_a_peer_that_does_not_answer_is_told_with_the_kind_of_address_in_the_line(gids, means):
    warning = "n1:1:2 [0] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<5>"
    lead = explain([f"{warning} with status=12 opcode=0 len=0 vendor err 129{gids}\n"]).lead
    assert lead and means in lead.cause and "{" not in lead.cause + lead.remedy


def test_a_wrong_argument_after_a_failure_of_cuda_is_not_certain():
    failed = "n1:1:2 [0] NCCL WARN Cuda failure 'an illegal memory access was encountered'\n"
    argument = "n1:1:2 [0] NCCL WARN AllReduce : sendbuff argument is NULL\n"
    assert explain([argument]).is_certain
    assert not explain([failed + argument]).is_certain


def surely(signature, log):
    """Return the explanation of a log of which this signature is certainly the cause."""
    found = explain([log])
    assert found.lead and found.lead.signature.id == signature
    assert found.is_certain
    return found


def test_the_line_that_an_exception_goes_on_with_is_not_preceded_by_it():
    log = (
        "Traceback (most recent call last):\n"
        '  File "/opt/torch/utils/cpp_extension.py", line 416, in _check_cuda_version\n'
        "    raise RuntimeError(CUDA_MISMATCH_MESSAGE.format(cuda_str_version, version))\n"
        "RuntimeError:\n"
        "The detected CUDA version (11.8) mismatches the version that was used to compile\n"
        "PyTorch (12.4). Please make sure to use the same CUDA versions.\n"
    )
    surely("torch.cuda-mismatch", log)


def test_a_driver_that_cannot_probe_a_gpu_leads_to_the_reason_that_it_names():
    log = (
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\n"
        "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:14:00.0)\n"
        "NVRM: The NVIDIA probe routine failed for 1 device(s).\n"
    )
    found = surely("gpu.bar", log)
    assert all("broken" not in one.cause for one in found.firsts)
