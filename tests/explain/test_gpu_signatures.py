"""Lines beside those of the GPU signatures: alike, and of another cause or of none."""

from __future__ import annotations

import pytest

from clusterctl.domain.findings import Severity
from clusterctl.explain.engine import explain

# By the signature that must not match it, a line that is close to its lines.
NEAR = [
    ("amd.hsa-init", "Call returned HSA_STATUS_SUCCESS"),
    ("amd.kfd-permission", "Unable to open /dev/kfd read-write: Cannot allocate memory"),
    ("amd.unsupported", "kfd kfd: amdgpu: added device 1002:740f"),
    ("amd.no-kernel", "CUDA error: invalid device function"),
    ("amd.oom", "CUDA out of memory. Tried to allocate 2.00 GiB"),
    ("amd.memory-fault", "Memory access by GPU node-2 took 3 ms"),
    ("deepspeed.ssh", "Command 'ssh demo-1 nvidia-smi' returned non-zero exit status 255."),
    ("deepspeed.world-size", "[INFO] checkpoint being loaded used a DP world size of 8"),
    ("dkms.compiler", "warning: the compiler differs from the one used to build the kernel"),
    ("dkms.kernel-differs", "/home/u/prog/main.c:4:5: error: implicit declaration of function 'f'"),
    ("efa.no-provider", "NET/OFI OFI fi_getinfo() call failed: Function not implemented"),
    ("gloo.address-family", "setsockopt: Address family not supported by protocol"),
    ("gloo.loopback-peer", "Gloo connectFullMesh failed with [pair.cc:152] remote=[10.0.0.7]:1"),
    ("gpu.busy", "CUDA-capable device(s) found: 8"),
    (
        "gpu.container-runtime",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4",
    ),
    ("gpu.container-denied", "nvidia-container-cli: detection error: nvml error: unknown error"),
    ("gpu.cudnn-no-algorithm", "cuDNN: valid algorithm found for convolution in 3 ms"),
    ("gpu.module-load", "Unable to load the kernel module 'nvme.ko'"),
    (
        "gpu.off-bus",
        "Unable to determine the device handle for GPU0000:03:00.0: GPU requires reset",
    ),
    ("gpu.mps", "NVIDIA MPS control daemon started"),
    ("gpu.oom", "RESOURCE_EXHAUSTED: Failed to allocate request for 8 threads"),
    ("gpu.oom", "runtime error: out of memory"),
    ("gpu.oom", "cuda runtime error (59) : device-side assert triggered"),
    ("gpu.oom", "Check failed: error == cudaSuccess (4 vs. 0) unspecified launch failure"),
    ("gpu.peer-access", "CUDA error: peer access is already enabled"),
    ("gpu.peer-access", "CUDA error: peer access has not been enabled"),
    (
        "gpu.secure-boot",
        "nvidia: module verification failed: signature and/or required key missing",
    ),
    ("gpu.secure-boot", "modprobe: ERROR: could not insert 'nvidia': No such device"),
    ("jax.barrier", "DEADLINE_EXCEEDED: Deadline Exceeded"),
    ("jax.cuda-library", "Unable to load weights. Is it installed?"),
    ("lightning.gpu-index", "You requested GPUs: [0]"),
    ("nccl.dmabuf", "NCCL WARN Call to ibv_reg_dmabuf_mr failed with error Bad address"),
    ("nccl.dmabuf", "NCCL WARN Call to ibv_reg_mr failed with error Operation not supported"),
    ("nccl.ib-connect", "NCCL WARN Call to ibv_modify_qp failed with error Invalid argument"),
    ("nccl.ib-connect", "NCCL WARN Call to ibv_reg_mr failed with error Connection timed out"),
    (
        "nccl.no-interface",
        "connecting to address  with family 0 is neither AF_INET(2) nor AF_INET6(10)",
    ),
    ("nccl.no-kernel", "NCCL WARN Cuda failure 'invalid argument'"),
    ("nccl.invalid-argument", "NCCL WARN Cuda failure 'invalid argument'"),
    ("nccl.wrong-type", "RuntimeError: Invalid magic number; corrupt file?"),
    ("nccl.wrong-type", "mount: invalid magic in superblock"),
    (
        "nccl.shm-segment",
        "Error while creating shared memory segment nccl-1 (size 9), error: Permission denied",
    ),
    ("nccl.truncated", "NCCL INFO receiving 65536 bytes"),
    (
        "torch.cuda-mismatch",
        "Installed CUDA version 12.1 does not match the version torch was compiled with 12.4 but "
        "since the APIs are compatible, accepting this combination",
    ),
    (
        "torch.extension-symbol",
        "ImportError: /usr/lib/x.so: undefined symbol: _ZN6google8protobuf7MessageE",
    ),
    (
        "torch.extension-symbol",
        "ImportError: /usr/lib/x.so: undefined symbol: _ZNK9detection4callERKN2at6TensorE",
    ),
    (
        "torch.sharded-weights",
        "Error(s) in loading state_dict for Quux:\n\tsize mismatch for a.bias: copying a param "
        "with shape torch.Size([10]) from checkpoint, the shape in current model is "
        "torch.Size([10, 5])",
    ),
    ("nccl.call-arguments", "quux : config argument is NULL"),
    ("nccl.peer-silent", "NCCL WARN Call to recv failed : Connection reset by peer"),
    ("slurm.node-reason", "quux: Not responding to slurm commands"),
    ("slurm.node-reason", "Reason=Low RealMemory (reported:3897 < 100.00% of configured:3955)"),
    ("s3.denied", "no (Service: Amazon S3; Status Code: 403; Error Code: SignatureDoesNotMatch;"),
    ("ssm.not-connected", "(InvalidInstanceID.NotFound) when calling the StopInstances operation"),
    ("dnf.checksum", "quux: Package does not match the checksum in quux.lock"),
    ("torch.fsdp-uniform", "FlatParameter of 3 tensors: uniform dtype torch.bfloat16"),
    ("torch.lcuda", "/usr/bin/ld: cannot find -lcudart"),
    ("torch.map-count", "unable to mmap 9 bytes from file <m.bin>: Cannot allocate memory"),
    ("torch.map-count", "unable to mmap 9 bytes from file </torch_1_2>: No space left on device"),
    ("torch.unscale-fp16", "Attempting to unscale gradients: found inf"),
    ("torch.cuda-home", "No CUDA runtime is found, using CUDA_HOME='/usr/local/cuda'"),
    ("build.known-header", "main.c:1:10: fatal error: curses.h: No such file or directory"),
    ("torch.lcuda", "/usr/bin/ld: cannot find -lcudart: No such file or directory"),
    ("torch.local-rank-argument", "train.py: error: unrecognized arguments: --local-dir=/data"),
    ("torch.local-rank-argument", "train.py: error: unrecognized arguments: --epocs 3"),
    (
        "torch.models-differ",
        "DDP expects same model across all ranks, but Rank 1 has 338 params, while rank 0 has "
        "inconsistent 0 params.",
    ),
    ("torch.nvcc-arch", "nvcc fatal   : Unsupported gpu architecture 'compute_1.'"),
    (
        "torch.rendezvous",
        "The node 'demo-1_3_0' has failed to send a keep-alive heartbeat to the rendezvous 'none' "
        "due to an error of type RendezvousConnectionError.",
    ),
    ("torch.sighup", "Sending process 1167 closing signal SIGTERM"),
    ("torch.sighup", "SignalException: Process 8665 got signal: 15"),
    ("torch.shm", "unable to open shared memory object </torch_1> in read-write mode"),
    ("torch.write", "PytorchStreamReader failed reading zip archive: not a ZIP archive"),
    ("torch.write", "write() to fd 3 of 512 bytes"),
]


@pytest.mark.parametrize(("signature", "line"), NEAR)
def test_a_line_close_to_a_signature_is_not_taken_for_it(signature, line):
    found = explain([f"{line}\n"]).findings
    assert signature not in [one.signature.id for one in found]


def test_a_name_without_an_ipv6_address_is_no_error():
    """PyTorch prints this on every host without IPv6, and goes on with IPv4."""
    log = (
        "[W socket.cpp:697] [c10d] The IPv6 network addresses of (demo-0, 29500) cannot be "
        "retrieved (gai error: -2 - Name or service not known).\nepoch 1: loss 0.4\n"
    )
    assert explain([log]).severity is not Severity.ERROR


def test_the_values_of_the_line_are_in_the_answer():
    lead = explain(
        [
            "AssertionError: train_batch_size is not equal to micro_batch_per_gpu * "
            "gradient_acc_step * world_size 16 != 5 * 1 * 3\n"
        ]
    ).lead
    assert lead.values["batch"] == "16" and "times 3 ranks" in lead.cause
    lead = explain(
        [
            "Barrier timed out. Barrier_id: x. Timed out task names:\n"
            "/job:jax_worker/replica:0/task:3\n"
        ]
    ).lead
    assert "task:3" in lead.cause
    lead = explain(["_pickle.UnpicklingError: invalid load key, 'v'.\n"]).lead
    assert "Git LFS" in lead.cause
