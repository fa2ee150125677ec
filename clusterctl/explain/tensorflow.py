"""Signatures of messages of TensorFlow and Keras, PyTorch, and their input pipelines."""

from __future__ import annotations

from clusterctl.domain.findings import Severity
from clusterctl.explain.signature import Role, Signature


def _noise(
    name: str, pattern: str, cause: str, source: str = "tensorflow/tensorflow#62994"
) -> Signature:
    return Signature(f"tf.{name}", pattern, cause, "nothing", source, Role.HARMLESS, Severity.INFO)


# Lines that look like errors and are harmless. The engine tries them before those of TensorFlow's
# errors, MPI, NCCL and GPUs, whose patterns match some of these lines too.
HARMLESS = (
    _noise(
        "tensorrt",
        r"TF-TRT Warning|Could not load dynamic library '(?:libnvinfer|libnvinfer_plugin)"
        r"|Cannot dlopen some TensorRT",
        "TensorRT is not installed, and training does not need it",
        "NVIDIA/tensorflow#110",
    ),
    _noise(
        "numa",
        r"NUMA node read from SysFS|Could not open file to read NUMA node",
        "a virtual machine tells no NUMA nodes",
    ),
    _noise(
        "binary-optimized",
        r"binary is optimized (?:with|to use)"
        r"|rebuild TensorFlow with the appropriate compiler flags"
        r"|Your CPU supports instructions that this TensorFlow binary",
        "TensorFlow tells which CPU instructions it uses",
    ),
    _noise("onednn", r"oneDNN custom operations are on", "TensorFlow tells of its CPU library"),
    _noise(
        "registering-factory",
        r"Attempting to register factory for plugin cu\w+ when one has already been registered"
        r"|computation_placer already registered",
        "libraries that are linked twice announce themselves twice",
    ),
    _noise(
        "ran-out-not-failure",
        r"ran out of memory trying to allocate .*The caller indicates that this is not a failure",
        "TensorFlow tried an algorithm that needs more memory, and took another",
    ),
    _noise(
        "deprecation",
        r"is deprecated and will be removed in a future version"
        r"|FutureWarning: Passing \(type, 1\) or '1type'",
        "a name of a library will change",
    ),
    _noise(
        "deserialize",
        r"Local rendezvous is aborting with status: OUT_OF_RANGE|OUT_OF_RANGE: End of sequence"
        r"|OutOfRangeError.*End of sequence",
        "a data set has ended: that is how a loop over it stops",
    ),
    _noise(
        "cancelled-rendezvous",
        r"CANCELLED: RecvAsync is cancelled",
        "an operation was dropped when its step ended",
    ),
    _noise(
        "error-placeholder",
        r"INVALID_ARGUMENT: You must feed a value for placeholder tensor 'Placeholder/_\d+'",
        "TensorFlow 2.11 and 2.12 print this for any data set, and nothing is wrong",
        "tensorflow/tensorflow#59779",
    ),
    _noise(
        "cuda-compiler",
        r"Couldn't invoke ptxas|Relying on driver to perform ptx compilation"
        r"|Falling back to the CUDA driver for PTX",
        "the driver compiles a kernel in ptxas's place",
    ),
    _noise(
        "retracing",
        r"triggered tf\.function retracing",
        "a function is traced again and again: slow, not wrong",
    ),
    _noise("autograph", r"AutoGraph could not transform", "a function runs as it is"),
    _noise(
        "omp",
        r"Setting OMP_NUM_THREADS environment variable for each process to be 1",
        "torchrun sets one thread a process",
        "pytorch/pytorch",
    ),
    _noise(
        "torch-socket-ipv6",
        r"The (?:client socket has failed to connect to \[\S+\]"
        r"|IPv6 network addresses of) .*errno: (?:97|99)",
        "PyTorch tries IPv6 first where there is none",
        "pytorch/pytorch#74824",
    ),
    _noise(
        "destroy-process-group",
        r"destroy_process_group\(\) was not called before program exit",
        "the program ended without leaving its group",
        "pytorch/pytorch",
    ),
)

_DEVICES = (
    "match the CUDA and cuDNN that this TensorFlow wants "
    "(tensorflow.org/install/source#gpu), and their folders in LD_LIBRARY_PATH"
)

SIGNATURES = (
    Signature(
        "tensorflow.label-range",
        r"Received a label value of (?P<label>-?\d+) which is outside the valid range of"
        r" (?P<range>\[\d+, \d+\))",
        "a label of the data is {label}, and the model's classes are {range}",
        "labels from 0, and as many outputs of the last layer as there are classes",
        "tensorflow/tensorflow#5963",
    ),
    Signature(
        "tf.no-cuda-drivers",
        r"Could not find cuda drivers on your machine, GPU will not be used",
        "TensorFlow finds no NVIDIA driver and computes on the CPU",
        "on a GPU machine: `nvidia-smi`; in a container --gpus all",
        "tensorflow/tensorflow#66750",
        severity=Severity.WARNING,
        mistaken_for="slow training: it runs, on the CPU",
    ),
    Signature(
        "tf.dlopen-gpu",
        r"Cannot dlopen some GPU libraries|Skipping registering GPU devices",
        "TensorFlow does not find all of CUDA's libraries and computes on the CPU",
        _DEVICES,
        "tensorflow/tensorflow#62994",
        severity=Severity.WARNING,
    ),
    Signature(
        "tf.dynamic-library",
        r"Could not load dynamic library '[^']+'; dlerror: (?P<library>lib[^\s:]+): cannot open"
        r"|Could not load dynamic library '(?P<library2>[^']+)'",
        "TensorFlow does not find {library}",
        _DEVICES,
        "NVIDIA/tensorflow#110",
        severity=Severity.WARNING,
    ),
    Signature(
        "tf.cuinit",
        r"failed call to cuInit: (?P<error>\w+)",
        "CUDA did not start in TensorFlow: {error}. It computes on the CPU",
        "NO_DEVICE: CUDA_VISIBLE_DEVICES, or a container without GPUs; UNKNOWN: a driver that "
        "was upgraded, reboot; "
        "SYSTEM_NOT_READY: the fabric manager",
        "tensorflow/tensorflow",
        severity=Severity.WARNING,
    ),
    Signature(
        "tf.device-mapped",
        r"TensorFlow device \(GPU:\d+\) is being mapped to multiple CUDA devices",
        "two sessions of one process use different GPUs: the GPU is not pinned, or not in all of "
        "them",
        "visible_device_list = str(hvd.local_rank()) in the configuration of every session (and of "
        "the Estimator's RunConfig)",
        "tensorflow/tensorflow#19083; horovod/horovod#676",
    ),
    Signature(
        "tf.libdevice",
        r"libdevice not found at|libdevice is required by this HLO module but was not found",
        "XLA does not find CUDA's libdevice.10.bc",
        "XLA_FLAGS=--xla_gpu_cuda_data_dir=DIR, where DIR/nvvm/libdevice/libdevice.10.bc is there "
        "(of the CUDA toolkit, or of the package nvidia-cuda-nvcc)",
        "tensorflow/tensorflow#60790; conda-forge/tensorflow-feedstock#369",
    ),
    Signature(
        "tf.gpu-device-busy",
        r"failed to query (?:device|total available) memory|Failed (?:precondition"
        r"|to set) .*memory growth|Physical devices cannot be modified after being initialized"
        r"|Visible devices cannot be modified after being initialized"
        r"|Memory growth cannot differ between GPU devices",
        "GPUs are set up after TensorFlow has started to use them",
        "set_visible_devices and set_memory_growth first, right after hvd.init()",
        "tensorflow.org/guide/gpu",
    ),
    Signature(
        "tf.data-loss",
        r"DataLossError: (?P<what>corrupted record|truncated record|inflate"
        r"|.{0,60}?)(?: at (?P<at>\d+))?|DATA_LOSS: (?P<what2>.{3,80})"
        r"|corrupted record at (?P<offset>\d+)|truncated record at (?P<offset2>\d+)",
        "a data file is cut short or damaged on that host: usually by an interrupted copy",
        "`clusterctl data verify NAME PATH` finds which file on which node; copy it again",
        "tensorflow/tensorflow: core/lib/io/record_reader.cc",
        mistaken_for="a fault of the program",
    ),
    Signature(
        "tf.checkpoint-torn",
        r"Unsuccessful TensorSliceReader constructor|not an sstable"
        r"|Checksum does not match: stored|Unable to open table file",
        "a checkpoint is incomplete or damaged",
        "take an older one (edit or remove the file `checkpoint`)",
        "libtensorflow's own messages; tensorflow/tensorflow#41312",
    ),
    Signature(
        "tf.checkpoint-other-model",
        r"Key (?P<key>\S+) not found in checkpoint"
        r"|Assign requires shapes of both tensors to match"
        r"|Tensor name \"(?P<name>[^\"]+)\" not found in checkpoint files"
        r"|Restoring from checkpoint failed",
        "the checkpoint in the log folder is of another model or program",
        "another --log_dir, or `clusterctl clean-logs NAME`",
        "tensorflow/tensorflow",
    ),
    Signature(
        "tf.end-of-sequence",
        r"^ +\(\d+\) (?:Out of range|OUT_OF_RANGE): +End of sequence",
        "the data set ended on some replicas before the step was over",
        "repeat() the data set, or steps_per_epoch that every replica's share has; "
        "drop_remainder=True",
        "tensorflow/tensorflow#34262",
        role=Role.SYMPTOM,
    ),
    Signature(
        "tf.ran-out-of-data",
        r"ran out of data; interrupting training",
        "a rank's share of the data ends before its steps do: it leaves, and the others wait for "
        "it",
        "the same number of steps on every rank: repeat() the data set, or as many whole shards "
        "for each",
        "uber/petastorm#346, horovod/horovod#2420",
    ),
    Signature(
        "tf.nan",
        r"[Ll]oss is (?:nan|NaN|inf)|Model diverged with loss = NaN|NaN loss during training"
        r"|Found Inf or NaN global norm|Invalid loss, terminating training"
        r"|Gradient overflow\.\s+Skipping step, loss scaler 0 reducing loss scale to 0"
        r"|loss_scale.{0,20}(?:reached|at) (?:the )?minimum|Minimum loss scale reached",
        "the loss is no number any more: a learning rate without warm-up or scaled too far, an "
        "overflow of "
        "half precision, or bad data",
        "the first step at which it happens (`clusterctl results`); warm-up, a lower rate, "
        "dynamic loss scaling",
        "tensorflow/tensorflow: basic_session_run_hooks.py; NVIDIA/apex#318",
    ),
    Signature(
        "tf.batch-memory",
        r"Failed to allocate memory for the batch",
        "the host has no memory left for the next batch",
        "a smaller batch, shuffle buffer or prefetch",
        "libtensorflow's own message",
    ),
    Signature(
        "tf.host-allocation",
        r"Allocation of \d+ exceeds \d+% of free system memory",
        "TensorFlow takes much of the host's memory at once",
        "nothing, unless the host runs out of it later",
        "tensorflow/tensorflow",
        role=Role.HARMLESS,
    ),
    Signature(
        "tf.lazy-loader",
        r"RecursionError.*lazy_loader|lazy_loader\.py\", line \d+, in _load",
        "a file of yours has a name of a library's (keras.py, tensorflow.py, types.py)",
        "rename it, and remove its __pycache__",
        "measured",
        role=Role.SYMPTOM,
    ),
    Signature(
        "tf.numpy",
        r"AttributeError: _ARRAY_API not found"
        r"|A module that was compiled using NumPy 1\.x cannot be run in"
        r"|numpy\.dtype size changed, may indicate binary incompatibility"
        r"|numpy\.core\.multiarray failed to import"
        r"|module compiled against (?:API|ABI) version 0x\w+ but this version of numpy",
        "NumPy is newer or older than what the other libraries were built with",
        "pip install 'numpy<2' (1.26.4 for TensorFlow 2.15), in the same environment",
        "measured; numpy.org/devdocs/user/troubleshooting-importerror",
    ),
    Signature(
        "tf.numpy-names",
        r"module 'numpy' has no attribute '(?P<name>bool|int|float|object|typeDict|complex|str"
        r"|long)'",
        "the program uses a name (np.{name}) that this NumPy no longer has",
        "an older NumPy (1.23), or the plain Python name in the program",
        "numpy.org/devdocs/release/1.24.0-notes",
    ),
    Signature(
        "tf.protobuf",
        r"Descriptors cannot(?: not)? be created directly"
        r"|'google\.protobuf\.\S+' has no attribute"
        r"|cannot import name '(?P<name>\w+)' from 'google\.protobuf",
        "protobuf is newer than what the other libraries were generated for",
        "pip install 'protobuf<3.21' (or what the library names), in the same environment",
        "protocolbuffers/protobuf#10051",
    ),
    Signature(
        "tf.no-contrib",
        r"No module named 'tensorflow\.contrib"
        r"|module 'tensorflow' has no attribute '(?P<name>\w+)'"
        r"|module 'tensorflow\._api\.v2\.\S+' has no attribute",
        "the program is for TensorFlow 1, and 2 is installed",
        "tf.compat.v1, the tutorial's program in its newer form (`examples/horovod/tensorflow`), "
        "or TensorFlow 1.15",
        "tensorflow.org/guide/migrate",
    ),
    Signature(
        "tf.dso",
        r"ImportError: DLL load failed|Failed to load the native TensorFlow runtime",
        "TensorFlow's own library could not be loaded: the line above or below says which file "
        "is missing",
        "see the ImportError beside it",
        "tensorflow/tensorflow",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "tf.shape",
        r"InvalidArgumentError: (?:Incompatible shapes|Matrix size-incompatible"
        r"|logits and labels must)|INVALID_ARGUMENT: (?:Incompatible shapes"
        r"|Matrix size-incompatible)",
        "tensors of different shape meet in the program",
        "the operation and shapes in the line; the last, smaller batch of a data set "
        "(drop_remainder=True)",
        "tensorflow/tensorflow",
    ),
    Signature(
        "tf.image",
        r"Invalid (?:JPEG|PNG|GIF) data|Unknown image file format"
        r"|Expected image \(JPEG, PNG, (?:or )?GIF",
        "an image in the data is damaged or of another kind",
        "find it (try each file), leave it out; the preprocessing of the tutorial mends the "
        "known ones",
        "tensorflow/tensorflow: decode_image_op",
    ),
    Signature(
        "tf.no-files",
        r"[Nn]o files (?:found|matched)\b|did not match any files|matched no files"
        r"|Couldn't find any .{0,30}files",
        "the data are not where the program looks for them on that host",
        "--data_dir; `clusterctl data verify NAME PATH`; a ~ that the shell has made your own home",
        "tensorflow/tensorflow",
        role=Role.SYMPTOM,
    ),
    Signature(
        "torch.worker-killed",
        r"DataLoader worker \(pid\(?s?\)?:? ?(?P<pid>[\d, ]+)\) (?:is killed by signal: "
        r"(?P<signal>[\w ]+)|exited unexpectedly)",
        "a data loader's process ({pid}) was ended: by a bus error (/dev/shm is too small), or "
        "killed "
        "(memory of the host)",
        "bus error: --shm-size or --ipc=host, fewer workers; Killed: dmesg, fewer workers",
        "pytorch/pytorch#8976, #5040",
    ),
    Signature(
        "torch.shm",
        r"[Uu]nable to (?:write to|open|mmap) (?:file|shared memory).*(?:torch_|/dev/shm)"
        r"|unable to open shared memory object|insufficient shared memory \(shm\)"
        r"|It is possible that dataloader's workers are out of shared memory",
        "/dev/shm is too small for the data loaders",
        "--shm-size=8g or --ipc=host for the container; fewer workers; `df -h /dev/shm`",
        "pytorch/pytorch#2244",
    ),
    Signature(
        "torch.received-ancdata",
        r"received 0 items of ancdata",
        "the data loaders have run out of file descriptors",
        "ulimit -n 65536, or torch.multiprocessing.set_sharing_strategy('file_system')",
        "pytorch/pytorch#973",
    ),
    Signature(
        "torch.no-nccl",
        r"Distributed package doesn't have NCCL built in",
        "this PyTorch is built without NCCL (a CPU or macOS build)",
        "the CUDA build of PyTorch; or backend gloo",
        "pytorch/pytorch",
    ),
    Signature(
        "torch.not-compiled-cuda",
        r"Torch not compiled with CUDA enabled",
        "this PyTorch is a build for CPUs",
        "the CUDA build of the same version",
        "pytorch/pytorch",
    ),
    Signature(
        "torch.unused-parameters",
        r"Expected to have finished reduction in the prior iteration before starting a new one"
        r"|Expected to mark a variable ready only once",
        "parts of the model had no share in the loss, so their gradients are waited for (or "
        "counted twice)",
        "find_unused_parameters=True, or take those parts out; no reentrant checkpointing with it",
        "pytorch/pytorch: reducer.cpp",
    ),
    Signature(
        "torch.store-barrier",
        r"in store based barrier on rank: (?P<rank>\d+).*world_size=(?P<size>\d+), "
        r"worker_count=(?P<count>\d+)",
        "{count} ranks came to the start, and {size} were wanted: some did not start, or (more "
        "than wanted) others use the same store: a job that was left over, or another world size",
        "see that all ranks run and have the same WORLD_SIZE; `clusterctl kill NAME`; another "
        "--master_port",
        "pytorch/pytorch: distributed_c10d.py",
        role=Role.SYMPTOM,
    ),
    Signature(
        "torch.rendezvous",
        r"RendezvousTimeoutError|RendezvousConnectionError"
        r"|connection to the C10d store has failed"
        r"|Timed out after \d+ seconds waiting for clients|Timed out waiting for clients"
        r"|waiting for clients\. \d+/\d+ clients joined|RendezvousClosedError"
        r"|The client socket has timed out after \d+s while trying to connect"
        r"|The client socket has failed to connect to any network address"
        r"|connect\(\) timed out\. Original timeout was",
        "not all nodes came to the meeting point in time: some did not start, or cannot reach "
        "its address and port",
        "MASTER_ADDR and MASTER_PORT the same everywhere, and open between the nodes; all nodes "
        "started; nnodes right",
        "pytorch/pytorch: torch.distributed.elastic; TCPStore.cpp",
        role=Role.SYMPTOM,
    ),
    Signature(
        "torch.store-peer",
        r"TCPStore.*(?:Connection reset|Broken pipe|Connection closed"
        r"|failed to recv)|failed to recv, got 0 bytes|recvValue failed|sendBytes failed"
        r"|should dump.*TCPStore",
        "rank 0 with the store is gone",
        "rank 0's own last lines",
        "pytorch/pytorch: TCPStore.cpp",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "torch.collective-mismatch",
        r"Detected mismatch between collectives on ranks\. Rank (?P<rank>\d+) is running collective"
        r": .*, but Rank (?P<other>\d+) is running collective",
        "{rank} and rank {other} call different collectives, or tensors of different shape: their "
        "programs have gone different ways",
        "the line's end says in what they differ; code that depends on the rank, data of different "
        "length, a frozen or unused part of the model",
        "pytorch/pytorch: ProcessGroupWrapper.cpp",
    ),
    Signature(
        "torch.child-failed",
        r"ChildFailedError|torch\.distributed\.elastic\.multiprocessing\.(?:errors"
        r"|api):?.*(?:FAILED|failed(?! \(exitcode: -9\)))"
        r"|failed \(exitcode: -?(?!9\))\d+\) local_rank: (?P<local>\d+)"
        r"|Root Cause \(first observed failure\)|^ +exitcode +: [1-9]\d* +\(pid: \d+\)",
        "torchrun tells which of its ranks ended with an error first; exitcode -9 is a kill, -11 "
        "a segmentation fault",
        "`Root Cause (first observed failure)` names rank and host: that rank's own traceback is "
        "above",
        "pytorch/pytorch: torch.distributed.elastic",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "torch.elastic-signal",
        r"Sending process \d+ closing signal SIG\w+|Received Signals\.SIG\w+ death signal"
        r"|SignalException: Process \d+ got signal",
        "torchrun ends its ranks",
        "what ended first is above; SIGHUP: the terminal was closed, SIGTERM: a scheduler",
        "pytorch/pytorch: torch.distributed.elastic",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "torch.size-mismatch",
        r"Error\(s\) in loading state_dict for (?P<model>\w+)",
        "the checkpoint is of another model",
        "the same model and options as when it was written",
        "pytorch/pytorch",
    ),
    Signature(
        "torch.zip",
        r"PytorchStreamReader failed (?:reading zip archive|locating file)"
        r"|unexpected EOF, expected \d+ more bytes",
        "a checkpoint is incomplete or damaged (a copy or a save that was cut off)",
        "take an older one, or copy it again",
        "pytorch/pytorch#31620",
    ),
)
