"""Signatures of Horovod's messages: its build, its start, stalls and the end of a job."""

from __future__ import annotations

import re
from collections.abc import Mapping

from clusterctl.domain.findings import Severity
from clusterctl.domain.ranges import format_indices
from clusterctl.explain.signature import Role, Signature
from clusterctl.explain.stalls import Stall, read_stall

_REBUILD = (
    "build Horovod again with the installed libraries. In clusterctl's environment: "
    "`clusterctl env install NAME`. Elsewhere:\n"
    "{env}/bin/pip uninstall -y horovod\n"
    "{env}/bin/pip install wheel packaging 'cmake<4'\n"
    "PATH={env}/bin:$PATH {flags} "
    "{env}/bin/pip install --no-cache-dir --no-build-isolation --no-binary horovod horovod\n"
    "on every node (HOROVOD_GPU_OPERATIONS=NCCL only where there are GPUs)"
)
# Environment variables with which pip builds Horovod, by the framework's module name.
_BUILD_FLAGS = {
    "tensorflow": "HOROVOD_WITH_TENSORFLOW=1 HOROVOD_GPU_OPERATIONS=NCCL",
    "torch": "HOROVOD_WITH_PYTORCH=1 HOROVOD_GPU_OPERATIONS=NCCL",
    "mxnet": "HOROVOD_WITH_MXNET=1 HOROVOD_GPU_OPERATIONS=NCCL",
}
_NAMES = {"tensorflow": "TensorFlow", "torch": "PyTorch", "mxnet": "MXNet"}
# The virtual environment in the path of Horovod's package.
_ENV = re.compile(r"(?P<env>/[^\s'\":]+?)/lib/python[\d.]+/(?:site|dist)-packages/horovod")
# The first line of a stall report.
_STALLED = (
    r"One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks"
)
_STALL_SOURCE = "horovod/horovod: horovod/common/stall_inspector.cc and its history; #215, #2107"


def framework_of(text: str) -> Mapping[str, str] | None:
    """Return the values of `_REBUILD` for a message about Horovod's part for one framework.

    `env` is the environment in the message's path, or "ENV" if there is none. Returns None if the
    message is about no such part.
    """
    found = re.search(r"horovod[./](tensorflow|torch|mxnet)", text)
    if not found:
        return None
    env = _ENV.search(text)
    return {
        "framework": _NAMES[found[1]],
        "flags": _BUILD_FLAGS[found[1]],
        "env": env["env"] if env else "ENV",
    }


def _rebuilt(text: str) -> Mapping[str, str]:
    """Return the values of `_REBUILD`, with TensorFlow if the message names no framework."""
    named = re.search(r"Framework (\w+)|for (PyTorch|TensorFlow|MXNet)", text)
    kind = {"pytorch": "torch"}.get((named[1] or named[2]).lower(), "tensorflow") if named else ""
    return framework_of(text) or {
        "framework": _NAMES[kind or "tensorflow"],
        "flags": _BUILD_FLAGS[kind or "tensorflow"],
        "env": "ENV",
    }


def _stall(report: str) -> Stall:
    lines = report.splitlines()
    return read_stall(lines, 0, len(lines))


def _one_group(report: str) -> Mapping[str, str] | None:
    """Return the values of a stall in which some ranks are missing and the others wait for them.

    Returns None if the report names no ranks, or if ranks wait for each other.
    """
    stall = _stall(report)
    if stall.ready and not stall.missing:
        # The oldest format names the ranks that have arrived, not those that are missing.
        tensor, arrived = stall.ready[0]
        return {"missing": f"all but {format_indices(arrived)}", "tensor": tensor}
    absent = dict(stall.missing)
    if not absent or _diverged(absent):
        return None
    return {"missing": format_indices(sorted(absent)), "tensor": next(iter(absent.values()))[0]}


def _several_groups(report: str) -> Mapping[str, str] | None:
    """Return the values of a stall in which ranks wait for each other, else None.

    Four ranks at most are named, each with its first tensor.
    """
    absent = dict(_stall(report).missing)
    if not _diverged(absent):
        return None
    told = (f"rank {rank} not {tensors[0]}" for rank, tensors in sorted(absent.items()))
    return {"groups": "; ".join(list(told)[:4])}


def _diverged(absent: Mapping[int, tuple[str, ...]]) -> bool:
    """Return whether two ranks wait for each other, so that no tensor is missing from both.

    `absent` has the tensors that each rank has not submitted.
    """
    sets = [set(tensors) for tensors in absent.values()]
    return any(not one & other for at, one in enumerate(sets) for other in sets[:at])


SIGNATURES = (
    Signature(
        "horovod.undefined-symbol",
        r"undefined symbol: (?P<symbol>_ZN?K?S?t?\d*\w*(?:10tensorflow|4absl|3tsl|2tf|TF_)\w*)"
        r"|Symbol not found: (?P<mac>_\w*(?:10tensorflow|4absl)\w*)",
        "Horovod was built against another {framework} than the one that is installed: "
        "a symbol that it needs is not there",
        _REBUILD,
        "horovod/horovod#656, #898, #3558; measured with 2.15.1 and 2.16.2",
        mistaken_for="a missing library or a wrong LD_LIBRARY_PATH",
        read=framework_of,
    ),
    Signature(
        "horovod.undefined-symbol-torch",
        r"/horovod/torch/\S+: undefined symbol: (?P<symbol>_Z\w+)",
        "Horovod was built against another PyTorch, or with another C++ ABI, than what is "
        "installed",
        _REBUILD,
        "horovod/horovod#2619, #3441",
        read=framework_of,
    ),
    Signature(
        "horovod.undefined-symbol-mxnet",
        r"/horovod/mxnet/\S+: undefined symbol: (?P<symbol>_Z\w+|MX\w+|NN\w+)",
        "Horovod was built against another MXNet than the one that is installed",
        _REBUILD,
        "horovod/horovod#1411",
        read=framework_of,
    ),
    Signature(
        "horovod.undefined-symbol-cxx",
        r"/horovod/tensorflow/\S+: undefined symbol: (?P<symbol>_ZNS?t?\w*|_ZT\w+|GOMP\w*)",
        "Horovod was built with another C++ compiler or library than TensorFlow: the symbol is "
        "the C++ run-time library's",
        _REBUILD,
        "horovod/horovod#103, #431",
        read=framework_of,
    ),
    Signature(
        "horovod.version-mismatch",
        r"Framework (?P<name>\w+) installed with version (?P<built>\S+) but found version "
        r"(?P<found>[\w.+-]+)",
        "Horovod was built for {name} {built}, and {name} {found} is installed",
        _REBUILD,
        "horovod/horovod: horovod/common/exceptions.py",
        read=_rebuilt,
    ),
    Signature(
        "horovod.local-rank",
        r"local_rank\(\)\][^\n]*\n(?:[ ~^]+\n)?IndexError: list index out of range",
        "the local rank is not below the number of GPUs that the rank sees: more ranks than GPUs "
        "on the host, or GPUs that the framework does not find",
        "slots=GPUs for each host; `nvidia-smi -L` and CUDA_VISIBLE_DEVICES there; the framework's "
        "own lines above, if it found fewer",
        "horovod/horovod#1755",
        lines=3,
    ),
    Signature(
        "horovod.framework-library",
        r"(?P<library>lib(?:torch\w*|c10\w*|tensorflow_framework|tensorflow_cc)\.so[.\d]*): cannot "
        r"open shared object file",
        "a module was built against another PyTorch or TensorFlow than is installed: {library} is "
        "part of the framework",
        "build that module again; Horovod: `clusterctl env install NAME`, or pip uninstall horovod "
        "and pip install --no-cache-dir --no-binary horovod, on every node",
        "horovod/horovod#3476",
        mistaken_for="a wrong LD_LIBRARY_PATH",
    ),
    Signature(
        "horovod.not-built",
        r"Extension horovod\.(?P<name>\w+) has not been built",
        "this Horovod was built without its part for {name}, or its library is gone",
        _REBUILD,
        "horovod/horovod#551, #3877",
        read=_rebuilt,
    ),
    Signature(
        "horovod.no-frameworks",
        r"None of TensorFlow, PyTorch, or MXNet plugins were built",
        "no framework could be built into Horovod: the compiler's errors are above this line",
        "see the first `error:` above; the frameworks have to be installed before Horovod",
        "horovod/horovod: setup.py; #656",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "horovod.mpi-cxx",
        r"Could NOT find MPI_CXX|Could NOT find MPI \(missing: MPI_CXX",
        "CMake finds no Open MPI with a C++ compiler wrapper: none is installed, or not first in "
        "PATH",
        "put Open MPI's bin folder first in PATH (EFA images: /opt/amazon/openmpi/bin) and build "
        "again",
        "spack/spack#40913, horovod/horovod#2992",
    ),
    Signature(
        "horovod.nccl-not-found",
        r"NCCL 2\.0 library or its later version was not found|fatal error: nccl\.h: No such file"
        r"|Could NOT find NCCL \(missing",
        "the build does not find NCCL's library or headers",
        "set HOROVOD_NCCL_HOME to the folder that has include/nccl.h and lib/libnccl.so (or "
        "HOROVOD_NCCL_INCLUDE and HOROVOD_NCCL_LIB), and build again",
        "horovod/horovod: docs/gpus.rst; #1048",
    ),
    Signature(
        "horovod.cuda-not-found",
        r"Could NOT find CUDA\w* \(missing|CUDA_TOOLKIT_ROOT_DIR not found"
        r"|Specify CUDA_TOOLKIT_ROOT_DIR"
        r"|No CMAKE_CUDA_COMPILER could be found|fatal error: (?P<header>cuda\w*\.h): No such file",
        "the build does not find CUDA's compiler or headers",
        "HOROVOD_CUDA_HOME=/usr/local/cuda (the folder with include/ and bin/nvcc), and its bin "
        "first in PATH",
        "horovod/horovod#2397: docs/gpus.rst",
    ),
    Signature(
        "horovod.compiler-missing",
        r"CMAKE_CXX_COMPILER not set, after EnableLanguage|No CMAKE_CXX_COMPILER could be found"
        r"|unable to execute '(?P<compiler>[\w.+-]+)': No such file"
        r"|error: command '(?P<compiler2>[\w.+/-]*(?:gcc|g\+\+|cc))' failed: No such file",
        "there is no C++ compiler on this machine",
        "install g++ and make (apt-get install build-essential), and build again",
        "horovod/horovod#3373",
    ),
    Signature(
        "horovod.nvcc-compiler",
        r"unsupported GNU version! gcc versions later than (?P<gcc>\d+) are not supported"
        r"|Unsupported gpu architecture '(?P<architecture>compute_\d+)'",
        "CUDA's compiler does not take this C++ compiler or this GPU's architecture",
        "an older g++ (CC, CXX, -ccbin), or a CUDA that fits; HOROVOD_BUILD_CUDA_CC_LIST names "
        "the GPUs",
        "horovod/horovod#2462",
    ),
    Signature(
        "horovod.compiler",
        r"#error \"?C\+\+(?P<standard>\d+) or later compatible compiler is required"
        r"|C\+\+(?P<std>\d+) or later compatible compiler is required",
        "the framework's headers need a newer C++ than the build asks for",
        "build with CXXFLAGS=-std=c++17 (or a wrapper of the compiler that adds it), g++ 8 or "
        "newer",
        "measured with torch 2.13; horovod/horovod#3996",
    ),
    Signature(
        "horovod.cmake-old",
        r"By not providing \"FindPython\.cmake\"",
        "CMake is older than 3.12, which cannot look for Python",
        "pip install 'cmake<4' in the environment that builds, first in PATH",
        "horovod/horovod#2301",
    ),
    Signature(
        "horovod.framework-not-found",
        r"Could NOT find (?P<name>Tensorflow|Pytorch|Mxnet) \(missing: ",
        "the environment that builds Horovod does not have {name}: it is not installed there, or "
        "pip builds in an environment of its own",
        "install {name} first, then pip install --no-build-isolation --no-binary horovod horovod; "
        "in clusterctl's environment `clusterctl env install NAME`",
        "horovod/horovod#3428",
    ),
    Signature(
        "horovod.cmake-minimum",
        r"Compatibility with CMake < 3\.5 has been removed from CMake",
        "CMake 4 refuses the old CMakeLists of a part that Horovod brings along (gloo)",
        "build with CMAKE_POLICY_VERSION_MINIMUM=3.5, or install 'cmake<4'",
        "measured with Horovod 0.28.1",
    ),
    Signature(
        "horovod.cmake-missing",
        r"RuntimeError: Failed to install temporary CMake"
        r"|FileNotFoundError: \[Errno 2\] No such file or directory: 'cmake'"
        r"|CMake must be installed to build",
        "the build finds no CMake",
        "pip install 'cmake<4' in the same environment, and build again with --no-build-isolation",
        "horovod/horovod#2744, #3170",
    ),
    Signature(
        "horovod.device-mismatch",
        r"Mismatched \w+ CPU/GPU device selection",
        "one rank has the tensor on a GPU and another on the CPU: usually the framework of one "
        "node finds no GPU",
        "the log of the ranks without a GPU (libraries that it could not load, cuInit); the same "
        "GPU build, driver and CUDA_VISIBLE_DEVICES on all nodes",
        "horovod/horovod#398",
    ),
    Signature(
        "horovod.tensor-order",
        r"Mismatched (?P<what>data types|MPI operations|[\w /]*?operations|root ranks"
        r"|[\w ]*?tensor shapes"
        r"|[\w /]*?values|reduce ops|[\w ]*?devices|ragged[\w ]*)",
        "ranks submit different things under the same tensor's name: {what} differ",
        "run the same code, configuration and model on all ranks; look for what depends on the "
        "rank, "
        "or on the data of that rank",
        "horovod/horovod: horovod/common/controller.cc",
        lines=3,
    ),
    Signature(
        "horovod.mismatch",
        r"One rank (?:did|specified|sent|requested|wants)[^.]*but another rank",
        "ranks submit different things under the same tensor's name",
        "run the same code, configuration and model on all ranks",
        "horovod/horovod: horovod/common/controller.cc",
    ),
    Signature(
        "horovod.duplicate-name",
        r"Duplicate tensor name (?P<tensor>\S+?) was submitted"
        r"|Requested to \w+ a tensor with the same name"
        r"|a tensor with the same name as another tensor that is currently being processed",
        "one rank submits two tensors with the same name at a time",
        "give every operation its own name=, and make one DistributedOptimizer a model",
        "horovod/horovod: horovod/common/common.h; #1417",
    ),
    Signature(
        "horovod.process-sets",
        r"mismatching numbers? of process sets|Different process set|Process set .* does not exist",
        "ranks have registered different process sets",
        "run the same hvd.init(process_sets=...) and add_process_set calls, in one order, on all "
        "ranks",
        "horovod/horovod: horovod/common/operations.cc",
    ),
    Signature(
        "horovod.stall-diverged",
        _STALLED,
        "ranks wait for each other's tensors: {groups}. Their programs have gone different ways",
        "look for code that depends on the rank (evaluation or a checkpoint on rank 0 only), for "
        "an "
        "uneven number of steps, and for operations in another order; the same code on all nodes",
        _STALL_SOURCE,
        mistaken_for="a slow network",
        lines=200,
        read=_several_groups,
    ),
    Signature(
        "horovod.stall",
        _STALLED,
        "ranks {missing} have not submitted `{tensor}` while the others wait for them: these ranks "
        "are dead, slow (input, disk), or do something that the others do not",
        "look at the ranks that are missing, not at those that complain: their last lines, their "
        "stacks (py-spy), their host's disk and dmesg. Else: shards of unequal length, an "
        "evaluation "
        "or a checkpoint on one rank only. HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=600 ends such a job",
        _STALL_SOURCE + ", #403, #2420",
        role=Role.SYMPTOM,
        mistaken_for="a fault of the ranks that are named in old reports: `ready ranks` have "
        "arrived",
        lines=200,
        read=_one_group,
    ),
    Signature(
        "horovod.stall-unnamed",
        _STALLED,
        "some ranks have submitted a tensor and wait for others; the report's end is not in the "
        "log",
        "see the lines after it in rank 0's whole log: they name the ranks that are missing",
        _STALL_SOURCE,
        role=Role.SYMPTOM,
    ),
    Signature(
        "horovod.stall-shutdown",
        r"stalled for longer than (?P<seconds>\d+) seconds\. Will shutdown",
        "a stall has lasted {seconds} s, and Horovod ends the job as it was told to",
        "the report above it names the ranks that were missing",
        _STALL_SOURCE,
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "horovod.shut-down",
        r"Horovod has been shut down",
        "another rank has failed or ended before this one was done",
        "find the first traceback or crash of any other rank, in the ranks' own logs and the "
        "hosts' "
        "dmesg; if there is none, ranks end after different numbers of steps",
        "horovod/horovod: horovod/common/common.h; #1421, #534",
        role=Role.CONSEQUENCE,
        mistaken_for="the cause: the rank that says it is a victim",
    ),
    Signature(
        "horovod.internal-error",
        r"HorovodInternalError",
        "a collective failed under this rank",
        "the line before it and the other ranks' logs say what failed; elastic jobs restore here",
        "horovod/horovod: horovod/common/exceptions.py",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "horovod.not-initialized",
        r"Horovod has not been initialized; use hvd\.init",
        "the program calls Horovod before hvd.init()",
        "call hvd.init() once, first thing, in each process; with data loaders that fork, in the "
        "process that trains",
        "horovod/horovod: horovod/common/util.py; #1086",
    ),
    Signature(
        "horovod.init-failed",
        r"Horovod could not be initialized",
        "hvd.init() failed; the text behind the colon and the lines above say why",
        "see the lines above",
        "horovod/horovod: horovod/common/operations.cc",
        role=Role.SYMPTOM,
    ),
    Signature(
        "horovod.mpi-unavailable",
        r"MPI (?:controller|support) (?:is )?(?:not|has not been) (?:built|available|enabled)"
        r"|Horovod has not been built with (?P<what>MPI|Gloo|NCCL|DDL|CCL)"
        r"|This installation of Horovod was not (?:built|compiled) with"
        r"|Neither MPI nor Gloo support has been built",
        "this Horovod was built without what the job asks for",
        "see `horovodrun --check-build`; build it again with HOROVOD_WITH_MPI=1 or "
        "HOROVOD_GPU_OPERATIONS=NCCL, with Open MPI's mpicxx in PATH",
        "horovod/horovod: horovod/runner/launch.py; #1949",
    ),
    Signature(
        "horovod.no-interfaces",
        r"Unable to find a set of common task-to-task communication interfaces",
        "the hosts have no network interface by which each reaches each (docker0 and the like "
        "count "
        "as different)",
        "give --network-interfaces (or HOROVOD_GLOO_IFACE, NCCL_SOCKET_IFNAME) the one that all "
        "share; the security group has to let the nodes reach each other",
        "horovod/horovod: horovod/runner/driver/driver_service.py; #2161",
    ),
    Signature(
        "horovod.ssh-hosts",
        r"could not connect to some hosts via ssh|ssh not successful for host (?P<host>[\w.-]+)"
        r"|SSH was not successful when trying",
        "horovodrun cannot log in to a host without a password",
        "`ssh HOST true` from the head node, with the same user, has to work without a question",
        "horovod/horovod: horovod/runner/launch.py; #1439",
    ),
    Signature(
        "horovod.task-start-timeout",
        r"Timed out waiting for (?:tasks to start|hosts to perform host-to-host|\w+ to (?:start"
        r"|register))"
        r"|Horovodrun was unable to start all processes"
        r"|Launching horovod task function was not successful",
        "not all ranks or hosts have answered horovodrun in its start time",
        "see the host's own lines above; log in to it by hand; --start-timeout for slow starts; "
        "--network-interfaces where hosts have several networks",
        "horovod/horovod: horovod/runner/launch.py; #2161",
        role=Role.SYMPTOM,
    ),
    Signature(
        "horovod.elastic-no-hosts",
        r"No hosts from previous set remaining, unable to broadcast state",
        "all hosts that had the job's state are gone or left out: the new ones have nobody to get "
        "it from",
        "start it again from the last checkpoint; see why the old hosts were lost",
        "horovod/horovod: horovod/runner/elastic/driver.py; #3197",
    ),
    Signature(
        "horovod.elastic-slots",
        r"Timed out waiting for (?P<slots>\d+) (?:available )?slots"
        r"|not enough (?:available )?slots.*elastic|reset count \d+ has exceeded limit",
        "an elastic job has lost more hosts than --min-np allows, or has been reset too often",
        "see why hosts were lost (`blacklist failing host`); --min-np, --elastic-timeout, "
        "--reset-limit",
        "horovod/horovod: horovod/runner/elastic/driver.py, registration.py",
        role=Role.SYMPTOM,
    ),
    Signature(
        "horovod.blacklisted",
        r"blacklist failing host: (?P<host>[\w.-]+)",
        "elastic Horovod leaves {host} out since a rank failed there",
        "see that rank's own last lines",
        "horovod/horovod: horovod/runner/elastic/discovery.py",
        role=Role.CONSEQUENCE,
        severity=Severity.WARNING,
    ),
    Signature(
        "horovod.gloo-timeout",
        r"Gloo connectFullMesh failed|gloo/\S+:\d+\] (?:[Cc]onnect timeout|timed out connecting"
        r"|Connection timed out|Connection refused|no route)",
        "a rank could not connect to the others by Gloo in time: it did not start, or the others "
        "cannot reach its interface",
        "see whether all ranks started; HOROVOD_GLOO_IFACE (or --network-interfaces) names the "
        "interface; open all ports between the nodes; HOROVOD_GLOO_TIMEOUT_SECONDS",
        "horovod/horovod#2161, pytorch/pytorch#81060",
    ),
    Signature(
        "horovod.gloo-peer",
        r"gloo/transport/tcp/\S+:\d+\] (?:Connection closed by peer|Read error"
        r"|Application timeout|Timed out waiting)"
        r"|Connection closed by peer \[",
        "the rank at the other end is gone or silent",
        "find that rank's last lines",
        "pytorch/gloo: gloo/transport/tcp/pair.cc",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "horovod.run-exit",
        r"Horovod detected that one or more processes exited",
        "a rank ended with an error; the first one that horovodrun saw may be a victim",
        "see `Process name` and that rank's log; then the first traceback of all",
        "horovod/horovod: horovod/runner/gloo_run.py; #3647",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "horovod.background-loop",
        r"background loop uncaught exception",
        "Horovod's thread failed, usually because NCCL or MPI lost a peer",
        "see the text behind it, and the other ranks' last lines",
        "horovod/horovod: horovod/common/operations.cc",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "horovod.nccl-op",
        r"nccl(?P<call>\w+) failed: (?:\w+ failed: )?invalid data type",
        "the NCCL that is loaded is older than the one Horovod was built with",
        "one NCCL only: remove the one from conda or pip, or set LD_LIBRARY_PATH; then build again",
        "horovod/horovod: docs/troubleshooting.rst",
    ),
    Signature(
        "horovod.warmup-momentum",
        r"'float' object has no attribute 'dtype'",
        "LearningRateWarmupCallback corrects a momentum that Keras's newer optimizers keep as a "
        "number",
        "momentum_correction=False, or tf.keras.optimizers.legacy.*",
        "measured with TensorFlow 2.12 to 2.15; horovod/horovod#3786",
    ),
    Signature(
        "horovod.keras3",
        r"'SymbolicTensor' object has no attribute 'assign'"
        r"|module 'keras.*' has no attribute '(?:optimizer_v2|_keras_api)'",
        "Keras 3 (TensorFlow 2.16 and newer) and Horovod do not know each other",
        "TensorFlow 2.15, or tf_keras in Keras's place: `clusterctl env install NAME "
        "--tensorflow NEWEST`",
        "measured with 2.16 to 2.21",
    ),
)
