"""Slurm's daemons, MPI, the kernel's limits and the GPU driver: what is not theirs, and labels."""

from __future__ import annotations

import pytest

from clusterctl.explain.engine import explain

# A line of a healthy or another program, and the signature that it comes close to.
NEAR = [
    ("limit.sysv", "shmget(4096) = 32768"),
    ("limit.cma", "process_vm_readv is used for messages of more than 4096 bytes"),
    ("slurm.gres-records", "[2026-01-12T08:00:01.305] gres/gpu: 8 records of gres.conf for gpu"),
    ("slurm.cgroup-disabled", "CgroupPlugin            = disabled"),
    ("slurm.submit-limit", "QOSMaxSubmitJobPerUserLimit counts what a user has submitted"),
    ("slurm.not-controller", "This host (demo-0/demo-0) is the primary controller"),
    ("slurm.mailprog", "MailProg                = /bin/mail"),
    ("gpu.bar", "pci 0000:53:00.0: BAR 1 [mem 0x203000000000-0x203fffffffff 64bit pref]: assigned"),
    ("gpu.gsp-start", "nvidia 0000:53:00.0: loading nvidia/550.90.07/gsp_ga10x.bin"),
    ("gpu.none", "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.90.07"),
    ("mpi.class", "MPI_ERR_OTHER is the class of an error that has no other"),
    ("mpi.rank-range", "ranks go from 0 to 3"),
    ("mpich.proxy-missing", 'arguments: /usr/bin/ssh demo-1 "/opt/mpich/bin/hydra_pmi_proxy"'),
    ("pmix.dstore", "mca: base: components_open: component gds hash open function successful"),
    ("dkms.compiler", "  You are using:           cc (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0"),
    ("dkms.build", "Building DKMS module 'nvidia-550.90.07' for kernel-6.8.0... done."),
    ("efa.sync-memops", "NET/OFI Setting FI_EFA_SET_CUDA_SYNC_MEMOPS to 0"),
    ("nccl.algo-env", "NCCL INFO NCCL_ALGO set by environment to Ring"),
    ("gpu.peermem-build", "modprobe nvidia_peermem: module loaded"),
    ("kernel.module-refused", "systemd-modules-load[580]: Inserted module 'nvidia_uvm'"),
    ("build.known-symbol", "undefined reference to `omptional_make'"),
    ("slurm.accounting-type", "AccountingStorageType   = accounting_storage/slurmdbd"),
    ("mpich.assert", "compiled with assertions: 12 in file src/mpid/ch3/src/ch3u_request.c"),
    ("slurm.plugin-release", "plugin /usr/lib/slurm/spank_pyxis.so version 23.11 loaded"),
    ("nccl.gid-entry", "NCCL INFO NET/IB: ncclIbRoceGetVersionNum 2 for GID 3"),
    ("build.dialect", 'Target "pytorch" requires the language dialect "CXX17" (found)'),
    ("mpich.gpu-build", "yaksa: built with CUDA and HIP hooks"),
    ("mvapich.no-cuda", "GPU CUDA support is configured"),
    ("kernel.module-absent", "systemd-modules-load[612]: Module 'nvidia' is already loaded"),
    ("slurm.pmi-command", "slurmstepd: mpi/pmi2: 4 tasks have called PMI2_Init"),
    ("kernel.module-absent", "[    3.234567] systemd[1]: Failed to find module 'autofs4'"),
    ("ucx.no-host-memory", "process_vm_readv(pid=5932 length=524288) returned 524288"),
    ("nccl.comm-gone", "NCCL INFO comm 0x55d1c0 rank 0 nranks 8 - Destroy COMPLETE"),
    ("ucx.setting", "ucp_context.c:1903 UCX  INFO  subnet filter is not set"),
    ("gpu.operator-kernel", "Proceeding with Linux kernel version 5.0.0-36-generic"),
    ("slurm.database-down", "slurmdbd: accounting_storage/as_mysql: database connection is up"),
    ("slurm.pmix-request", "slurmstepd: debug:  mpi/pmix_v5: _dmdx_req: n1 [0]: request from n2"),
    ("mpich.no-topology", "Topology libraries available:            hwloc"),
    ("nccl.nvls", "NCCL INFO NVLS multicast support is available on dev 3"),
    ("nccl.ib-timeout", "NCCL INFO NET/IB: localGid fe80::ac0:ebff:feda:1cfb of mlx5_0"),
]


@pytest.mark.parametrize(("signature", "line"), NEAR)
def test_a_line_close_to_a_signature_is_not_taken_for_it(signature, line):
    assert signature not in {one.signature.id for one in explain([f"{line}\n"]).findings}


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
