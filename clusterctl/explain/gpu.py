"""Signatures of messages of NVIDIA's driver, its tools and CUDA, with Xid and SXid numbers."""

from __future__ import annotations

from clusterctl.domain.findings import Severity
from clusterctl.explain.signature import Role, Signature

_XID_SOURCE = (
    "docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, by leptonai/gpud's table of "
    "2025-10"
)
_REPLACE = "on EC2 replace the node rather than repair it: `clusterctl replace NAME NODE`"
_SYMPTOM, _AFTER, _HARMLESS = Role.SYMPTOM, Role.CONSEQUENCE, Role.HARMLESS
# An Xid line up to the number. `gpu` is the GPU's bus id as `nvidia-smi` prints it: 0000:10:1c.
_XID = r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)[^)]*\).*?: (?P<xid>"


def _xid(
    numbers: str, meaning: str, remedy: str, role: Role = Role.ROOT, warning: bool = False
) -> Signature:
    """Return the signature of some Xid numbers, separated by blanks. Its id has the first one."""
    return Signature(
        f"xid.{numbers.split()[0]}",
        _XID + "|".join(numbers.split()) + r")\b",
        "GPU {gpu}, Xid {xid}: " + meaning,
        remedy,
        _XID_SOURCE,
        role,
        Severity.WARNING if warning else Severity.ERROR,
    )


_XIDS = (
    _xid(
        "79",
        "the GPU has fallen off the PCI bus",
        "reboot the node; if it comes again, " + _REPLACE,
    ),
    _xid(
        "48",
        "a double-bit memory error, which cannot be corrected",
        "reset the GPU (reboot the node), and replace the node if it comes again; 63 and 64 "
        "beside it "
        "tell whether the row was remapped",
    ),
    _xid("64", "remapping of a bad memory row failed", "reset the GPU (reboot); " + _REPLACE),
    _xid(
        "63",
        "a bad memory row has been remapped (or a page retired)",
        "nothing now; reset the GPU at the next chance, for the remapping to take effect",
        _AFTER,
        warning=True,
    ),
    _xid(
        "94",
        "a contained memory error: only the program that met it fails",
        "restart the job; reset the GPU if it comes again",
    ),
    _xid(
        "95",
        "an uncontained memory error: all programs on the GPU are affected",
        "reset the GPU (reboot the node) before anything else runs there",
    ),
    _xid(
        "74",
        "an NVLink error",
        "reset the GPUs (reboot the node); with SXid lines beside it, it is the NVSwitch. If it "
        "comes "
        "again, " + _REPLACE,
    ),
    _xid(
        "119 120",
        "the GPU's system processor (GSP) does not answer",
        "reset the GPU (reboot the node); a newer driver; if it comes again, " + _REPLACE,
    ),
    _xid(
        "46 62 109 158",
        "the GPU or its microcontroller hangs",
        "reset the GPU (reboot the node); if it comes again, " + _REPLACE,
    ),
    _xid(
        "110 136 140 143 155 156",
        "the GPU's security, link, memory or NVLink state is broken",
        "reset the GPU (reboot the node); if it comes again, " + _REPLACE,
    ),
    _xid(
        "151 168",
        "the GPU needs its whole machine restarted",
        "reboot the node; if it comes again, " + _REPLACE,
    ),
    _xid("54", "the GPU lacks power", "take the node out, and " + _REPLACE),
    _xid(
        "13 31 32 69 126",
        "the program did something that the GPU refuses (a bad address, a bad instruction): "
        "usually a fault of the program or its libraries",
        "restart the job; if it is always the same GPU, whatever runs, test it (dcgmi diag -r 3) "
        "and "
        "replace the node",
    ),
    _xid(
        "43",
        "the GPU stopped a program's channel after a fault of it",
        "look at the other Xid of this moment, or at the program",
        _AFTER,
    ),
    Signature(
        "xid.before",
        _XID + r"\d+)\b.*caused by previous Xid (?P<before>\d+)",
        "GPU {gpu} lost its programs since Xid {before} had happened (144-150: NVLink; 48, 94, 95: "
        "memory; 79: off the bus)",
        "the first Xid of that boot in the host's dmesg; reset the GPU (reboot the node), and if "
        "it comes again, " + _REPLACE,
        _XID_SOURCE,
        _SYMPTOM,
        mistaken_for="a fault of the programs that were ended",
    ),
    _xid(
        "45",
        "a program's channels were removed since it ended or was killed",
        "look at what ended it: the other Xid lines of these minutes, or a kill",
        _AFTER,
    ),
    _xid(
        "154",
        "the driver says which recovery it needs",
        "do what the line says (GPU reset, node reboot)",
        _AFTER,
    ),
    _xid(
        "92 121 137 152 153",
        "corrected or minor errors are frequent",
        "watch it; reset the GPU at the next chance",
        warning=True,
    ),
    _xid(
        "144 145 146 147 148 149 150",
        "an NVLink error (Blackwell)",
        "a 154 beside it says what to do; if it comes again, " + _REPLACE,
    ),
    _xid(
        "171 172",
        "details of a memory error that cannot be corrected",
        "see the 48 or 95 beside it",
        _AFTER,
    ),
    Signature(
        "xid.other",
        _XID + r"\d+)\b",
        "GPU {gpu} reports Xid {xid}, about which this catalogue has nothing",
        "look it up: docs.nvidia.com/deploy/xid-errors",
        _XID_SOURCE,
        Role.SYMPTOM,
        Severity.WARNING,
    ),
)

_SXIDS = (
    Signature(
        "sxid.benign",
        r"nvidia-nvswitch\d+: SXid \(PCI:(?P<gpu>[0-9a-fA-F:.]+)\): (?P<sxid>20001|22013)\b",
        "a minor event of the NVSwitch",
        "nothing",
        "leptonai/gpud: components/accelerator/nvidia/sxid",
        _HARMLESS,
    ),
    Signature(
        "sxid",
        r"nvidia-nvswitch(?P<switch>\d+): SXid \(PCI:(?P<gpu>[0-9a-fA-F:.]+)\): (?P<sxid>\d+), "
        r"(?P<kind>Fatal|Non-fatal)",
        "NVSwitch {switch} reports SXid {sxid} ({kind}): traffic between the GPUs is disturbed, "
        "and "
        "their own Xid 45 or 74 follow from it",
        "restart the job; if it is fatal or comes again, reset all GPUs (reboot) or replace the "
        "node",
        "leptonai/gpud: components/accelerator/nvidia/sxid",
    ),
)

SIGNATURES = (
    *_XIDS,
    *_SXIDS,
    Signature(
        "gpu.off-bus",
        r"fallen off the bus|GPU is lost\. +Reboot the system"
        r"|Unable to determine the device handle for GPU ?(?P<gpu>[0-9a-fA-F:.]*)"
        r"|nvidia-smi: GPU is lost|NVML: GPU is lost",
        "a GPU has fallen off the PCI bus",
        "reboot the node; if it comes again, " + _REPLACE,
        "NVIDIA/NVSentinel#155, leptonai/gpud#1209",
        mistaken_for="a fault of the driver's installation",
    ),
    Signature(
        "gpu.nouveau",
        r"NVRM: The NVIDIA probe routine was not called for \d+ device"
        r"|NVRM: nouveau, rivafb, nvidiafb or rivatv",
        "another driver (nouveau, or vfio for a virtual machine) holds the GPU",
        "`lspci -k` names it; `blacklist nouveau` in /etc/modprobe.d, update-initramfs -u, reboot",
        "NVIDIA/open-gpu-kernel-modules: kernel-open/nvidia/nv.c",
    ),
    Signature(
        "gpu.probe-failed",
        r"NVRM: The NVIDIA probe routine failed for (?P<n>\d+) device|NVRM: (?:RmInitAdapter"
        r"|rm_init_adapter) failed"
        r"|NVRM: GPU (?P<gpu>[0-9a-fA-F:.]+): (?:RmInitAdapter|rm_init_adapter|GPU has fallen)",
        "the driver cannot start a GPU: the GPU is broken, or the driver is not for it (the open "
        "kernel module needs Turing or newer; V100 needs the proprietary one)",
        "the image for this GPU; else replace the node",
        "NVIDIA/open-gpu-kernel-modules; docs.aws.amazon.com/dlami",
    ),
    Signature(
        "gpu.unsupported",
        r"NVRM: (?:.*\n)?.*not supported by (?:the )?(?:open |NVIDIA )?.*(?:driver|module)"
        r"|installed in this system (?:is not supported by|requires use of)",
        "this NVIDIA driver is not for this GPU (open module before Turing, or a driver that is "
        "too old)",
        "an image with the driver for this GPU: V100 (p3) needs the proprietary one",
        "NVIDIA/open-gpu-kernel-modules#282",
    ),
    Signature(
        "gpu.driver-mismatch",
        r"[Dd]river/library version mismatch"
        r"|API mismatch: the client has (?:the )?version (?P<client>[\d.]+)"
        r"|kernel module version.*does not match|"
        r"NVRM: API mismatch",
        "the NVIDIA libraries were upgraded (unattended-upgrades) and the old kernel module is "
        "loaded",
        "reboot the node (`clusterctl reboot NAME NODE`); then hold the packages: apt-mark hold "
        "'nvidia-*' 'libnvidia-*'",
        "NVIDIA forum; dmesg's `NVRM: API mismatch` names both versions",
        mistaken_for="a broken GPU",
    ),
    Signature(
        "gpu.no-driver",
        r"modprobe: FATAL: Module nvidia(?:[-_]\w+)? not found"
        r"|couldn't communicate with the NVIDIA driver"
        r"|Failed to initialize NVML: (?:Driver Not Loaded|driver not loaded)",
        "no NVIDIA driver is loaded: the kernel was upgraded and the module not built for it, or "
        "the "
        "image's driver is not for this GPU",
        "`dkms status`, and headers of the running kernel (linux-headers-$(uname -r)); else the "
        "right image, or replace the node",
        "NVIDIA; docs.aws.amazon.com/dlami",
    ),
    Signature(
        "gpu.nvml-unknown",
        r"Failed to initialize NVML: (?P<error>Unknown Error|Insufficient Permissions"
        r"|GPU access blocked)",
        "a container has lost its access to the GPUs (a `systemctl daemon-reload` on the host "
        "takes "
        "the cgroup's devices away), or never had it",
        "restart the container; cgroupfs instead of systemd as Docker's cgroup driver, or "
        "--device /dev/nvidia*",
        "NVIDIA/nvidia-container-toolkit#48, NVIDIA/nvidia-docker#1730",
    ),
    Signature(
        "gpu.container-runtime",
        r"could not select device driver \"(?P<driver>[^\"]*)\" with capabilities: \[\[gpu\]\]"
        r"|nvidia-container-cli: (?P<error>.{3,100})"
        r"|[Uu]nknown runtime specified nvidia",
        "Docker does not get GPUs into the container: NVIDIA's container toolkit is missing, or "
        "the host's driver is",
        "install nvidia-container-toolkit, `nvidia-ctk runtime configure`, restart Docker; "
        "`nvidia-smi` on the host first",
        "NVIDIA/nvidia-docker#1034, moby/moby",
    ),
    Signature(
        "gpu.no-nvswitch",
        r"NV_WARN_NOTHING_TO_DO",
        "the fabric manager finds no NVSwitch: the machine has none and does not need it; or, on "
        "B200 and later, NVLSM or the modules mlx5_ib and ib_umad are missing",
        "without NVSwitches: `sudo systemctl disable nvidia-fabricmanager`; B200: install nvlsm "
        "and linux-modules-extra-$(uname -r)",
        "NVIDIA/gpu-operator#610, #2781",
        mistaken_for="a fabric manager that is broken or of the wrong version",
    ),
    Signature(
        "gpu.fabric-manager",
        r"CUDA_ERROR_SYSTEM_NOT_READY|system not yet initialized|cudaErrorSystemNotReady"
        r"|Error 802|nv(?:idia)?-fabricmanager.*(?:[Ff]ailed|version|error)"
        r"|[Ff]abric manager NVIDIA GPU driver interface version \S+ don't match"
        r"|Fabric Manager.*[Ff]ailed|NVSwitches don't match"
        r"|not all local fabric manager instances finished"
        r"|fabric manager error handler is called"
        r"|failed to configure all the available GPUs or NVSwitches",
        "GPUs with an NVSwitch wait for the fabric manager: it is down, or of another version "
        "than the driver",
        "`systemctl status nvidia-fabricmanager`; its version has to be the driver's, to the "
        "last digit; restart it, "
        "or replace the image or the node",
        "dstackai/dstack#2348, aws-samples/awsome-distributed-training#33",
        mistaken_for="a fault of the framework",
    ),
    Signature(
        "gpu.compat",
        r"forward compatibility was attempted on non supported HW"
        r"|CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE|cudaErrorCompatNotSupportedOnDevice",
        "the host's driver is older than the CUDA of the container, and its compatibility library "
        "is not for this GPU; or the driver was upgraded without a reboot",
        "a newer driver (image) on the host, or a container of an older CUDA; reboot after an "
        "upgrade; no /usr/local/cuda/compat in LD_LIBRARY_PATH",
        "docs.nvidia.com/deploy/cuda-compatibility; gpustack/gpustack#1254",
    ),
    Signature(
        "gpu.driver-too-old",
        r"CUDA driver version is insufficient for CUDA runtime version|cudaErrorInsufficientDriver"
        r"|The NVIDIA driver on your system is too old"
        r"|cuda>=(?P<cuda>[\d.]+), please update your driver|unsatisfied condition: cuda",
        "the NVIDIA driver is older than the CUDA that the program was built with",
        "a newer image (driver), or the framework for the older CUDA; `nvidia-smi` shows what "
        "the driver can do at most",
        "docs.nvidia.com/deploy/cuda-compatibility",
    ),
    Signature(
        "gpu.no-kernel-image",
        r"no kernel image is available for execution on the device"
        r"|cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU"
        r"|with CUDA capability sm_(?P<sm>\d+) is not compatible with the current PyTorch"
        r" installation",
        "the program has no code for this kind of GPU (compute capability)",
        "a build for this GPU: a newer framework for newer GPUs, an older one for old GPUs",
        "pytorch/pytorch#31285; docs.nvidia.com/cuda",
    ),
    Signature(
        "gpu.ptx",
        r"provided PTX was compiled with an unsupported toolchain"
        r"|CUDA_ERROR_UNSUPPORTED_PTX_VERSION|CUDA_ERROR_INVALID_PTX"
        r"|ptxas (?:exited with non-zero|returned an error)|Couldn't get ptxas version",
        "code was compiled by a newer CUDA than the driver knows, or ptxas is missing",
        "a newer driver (image), or the framework for the driver's CUDA",
        "docs.nvidia.com/deploy/cuda-compatibility; tensorflow/tensorflow",
    ),
    Signature(
        "gpu.busy",
        r"all CUDA-capable devices are busy or unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE"
        r"|cudaErrorDevicesUnavailable",
        "the GPU is in exclusive mode and another process has it, or it is in a bad state",
        "`nvidia-smi` shows whose process it is and the compute mode; `clusterctl kill NAME` "
        "ends what jobs left",
        "docs.nvidia.com/cuda",
    ),
    Signature(
        "gpu.invalid-device",
        r"CUDA_ERROR_INVALID_DEVICE|invalid device ordinal|cudaErrorInvalidDevice"
        r"|'visible_device_list' listed an invalid (?:GPU|Device|device) id"
        r"|visible_device_list.*invalid",
        "a rank asks for a GPU that its host does not have: more ranks than GPUs there, or "
        "CUDA_VISIBLE_DEVICES hides them",
        "slots=GPUs in the hosts file; pin by hvd.local_rank(), not hvd.rank(); `nvidia-smi -L` "
        "counts",
        "horovod/horovod#590",
    ),
    Signature(
        "gpu.no-device",
        r"CUDA_ERROR_NO_DEVICE|no CUDA-capable device is detected|No CUDA GPUs are available"
        r"|cudaErrorNoDevice|No devices were found",
        "the program sees no GPU: CUDA_VISIBLE_DEVICES hides them, the container has none, or "
        "the driver has lost them",
        "`nvidia-smi` on that host; CUDA_VISIBLE_DEVICES; docker run --gpus all",
        "docs.nvidia.com/cuda; tensorflow, pytorch",
    ),
    Signature(
        "gpu.unknown-error",
        r"CUDA_ERROR_UNKNOWN"
        r"|CUDA unknown error - this may be due to an incorrectly set up environment"
        r"|Unexpected error from cudaGetDeviceCount",
        "CUDA could not start and does not say why: nvidia_uvm not loaded, a driver that was "
        "upgraded without a "
        "reboot, or a fabric manager that is down",
        "`nvidia-smi`; `sudo modprobe nvidia_uvm`; reboot the node",
        "pytorch/pytorch#49081; tensorflow/tensorflow",
        role=_SYMPTOM,
    ),
    Signature(
        "gpu.oom",
        r"CUDA_ERROR_OUT_OF_MEMORY|RESOURCE_EXHAUSTED: (?:OOM when allocating|Out of memory)"
        r"|OOM when allocating tensor|CUDA out of memory|torch(?:\.cuda)?\.OutOfMemoryError"
        r"|cudaErrorMemoryAllocation|CUDA error: out of memory|CUDNN_STATUS_ALLOC_FAILED"
        r"|CUBLAS_STATUS_ALLOC_FAILED|Dst tensor is not initialized",
        "a GPU's memory is full: the batch or the model is too large for it, or several ranks "
        "(or a "
        "job that was left over) share one GPU",
        "`nvidia-smi` shows whose processes hold it (`clusterctl kill NAME` ends what jobs "
        "left); pin one GPU a rank "
        "by local rank; allow_growth; a smaller batch",
        "horovod/horovod: docs/troubleshooting.rst; tensorflow, pytorch",
        mistaken_for="too little memory of the host",
    ),
    Signature(
        "gpu.ecc",
        r"uncorrectable (?:NVLink|ECC) error (?:was |detected|encountered)"
        r"|cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE|uncorrectable ECC error",
        "a GPU's memory has an error that cannot be corrected",
        "the Xid line (48, 63, 64, 94, 95) in dmesg; reset the GPU (reboot); " + _REPLACE,
        "docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt",
    ),
    Signature(
        "gpu.device-assert",
        r"device-side assert triggered|Assertion `(?P<check>[^`]+)` failed",
        "a check in a GPU kernel failed: usually an index or a label is out of range",
        "the `Assertion` line says which; labels from 0 to classes-1; run it once on the CPU for "
        "the place",
        "pytorch/pytorch",
    ),
    Signature(
        "gpu.illegal-address",
        r"CUDA_ERROR_ILLEGAL_ADDRESS|an illegal memory access was encountered"
        r"|CUDA_ERROR_LAUNCH_FAILED|unspecified launch failure|misaligned address"
        r"|CUDA_ERROR_MISALIGNED_ADDRESS|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "a GPU kernel touched memory that is not its own. CUDA tells later than it happens: the "
        "operation that is named need not be the culprit",
        "`dmesg | grep Xid` on that host (13 or 31: a program; 48, 79, 94, 95: the GPU); "
        "CUDA_LAUNCH_BLOCKING=1 for the true place",
        "tensorflow/tensorflow#59671",
        role=_SYMPTOM,
        mistaken_for="a fault of the operation that is named",
    ),
    Signature(
        "gpu.cudnn-version",
        r"Loaded runtime CuDNN library: (?P<loaded>[\w.]+)(?: \([\w ]+\))? but source was"
        r" compiled with:? (?P<wanted>[\w.]+)|Loaded cudnn library: (?P<loaded2>\w+)"
        r"|cuDNN version incompatibility: PyTorch was compiled against (?P<built>.+?) but"
        r"|CUDNN_STATUS_(?:SUBLIBRARY_)?VERSION_MISMATCH",
        "another cuDNN is loaded than the program was built with",
        "one cuDNN: take the other out of LD_LIBRARY_PATH, or install the version that is wanted",
        "tensorflow/tensorflow; pytorch/pytorch#88882",
    ),
    Signature(
        "gpu.cudnn-handle",
        r"Could not create cudnn handle: (?P<error>\w+)"
        r"|could not create cudnn handle: (?P<error2>\w+)|CUDNN_STATUS_NOT_INITIALIZED"
        r"|Failed to get convolution algorithm"
        r"|failed to create cublas handle|CUBLAS_STATUS_NOT_INITIALIZED"
        r"|could not create cublas handle|Failed to create cublas handle"
        r"|Blas \w*GEMM\w* launch failed",
        "cuDNN or cuBLAS could not start: the GPU's memory is taken (several ranks on one GPU), "
        "or the "
        "library does not fit the driver",
        "pin one GPU a rank, allow_growth; then versions: CUDA, cuDNN and driver as the "
        "framework wants them",
        "tensorflow/tensorflow#24496",
        role=_SYMPTOM,
    ),
    Signature(
        "gpu.cudnn-exec",
        r"CUDNN_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)"
        r"|CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)|cuDNN error: \w+",
        "cuDNN or cuBLAS failed in the middle of its work: memory that ran out, an earlier bad "
        "access, or the GPU itself",
        "`dmesg | grep Xid`; a smaller batch; CUDA_LAUNCH_BLOCKING=1 for the true place",
        "tensorflow, pytorch",
        role=_SYMPTOM,
    ),
    Signature(
        "gpu.nvlink-lib",
        r"undefined symbol: (?P<symbol>__nvJitLink\w+|cublas\w*|cudnn\w*|cusparse\w*"
        r"|nvJitLink\w*|cuda\w+|cu[A-Z]\w+)(?:, version (?P<version>\S+))?",
        "two versions of CUDA's libraries are mixed: one needs {symbol}, and the one that is "
        "loaded does not have it",
        "take other CUDA folders out of LD_LIBRARY_PATH (`ldd` shows what is loaded), or install "
        "the CUDA packages that "
        "the framework names",
        "pytorch/pytorch#111469",
    ),
    Signature(
        "gpu.nccl-symbol",
        r"undefined symbol: (?P<symbol>p?nccl\w+)",
        "another NCCL is loaded than the program was built with: it lacks {symbol}",
        "one NCCL: take the other (conda's, the system's) out of LD_LIBRARY_PATH; LD_PRELOAD "
        "names one; then build again",
        "pytorch/pytorch#119932, horovod/horovod: docs/troubleshooting.rst",
    ),
    Signature(
        "gpu.cuda-library",
        r"(?:ImportError|OSError): (?P<library>lib(?:cudart|cublas|cublasLt|cudnn|cufft|curand"
        r"|cusolver|cusparse|nccl|cupti|nvrtc|nvinfer|cuda"
        r"|nvidia-ml)[\w.-]*\.so[.\d]*): cannot open shared object"
        r"|(?P<library2>lib(?:cudart|cublas|cublasLt|cudnn|cufft|curand|cusolver|cusparse|nccl"
        r"|cuda)\.so[.\d]*): cannot open shared object file: No such file or directory(?!;"
        r" LD_LIBRARY_PATH)",
        "{library} is not there: the program was built for another CUDA than the one that is "
        "installed, or its folder is not in the library path",
        "install the CUDA (cuDNN, NCCL) of that version, or put its folder into LD_LIBRARY_PATH "
        "and pass that with -x; or "
        "build Horovod again for what is there (HOROVOD_CUDA_HOME)",
        "horovod/horovod: docs/troubleshooting.rst; tensorflow",
    ),
    Signature(
        "gpu.peermem",
        r"nv_?(?:idia[-_])?peer_?mem.*invalid context",
        "a process with RDMA to GPU memory ended",
        "look at what ended it",
        "leptonai/gpud: components/accelerator/nvidia/peermem",
        role=_AFTER,
    ),
    Signature(
        "gpu.thermal",
        r"(?:SW|HW) (?:Thermal|Power Brake) Slowdown +: Active|clocks_(?:event"
        r"|throttle)_reasons?\.hw_\w+.*Active",
        "the GPU runs slower to stay cool or within its power",
        "compare the nodes: one that is slower than the others is worth replacing",
        "docs.nvidia.com: nvidia-smi",
        severity=Severity.WARNING,
    ),
)
