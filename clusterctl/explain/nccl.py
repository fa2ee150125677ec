"""Signatures of messages of NCCL, PyTorch's NCCL process group, aws-ofi-nccl and libfabric."""

from __future__ import annotations

from clusterctl.domain.findings import Severity
from clusterctl.explain.signature import Role, Signature

_PEER = (
    "find the rank on the other end: its last lines, its process, its host (dmesg, EC2's state). "
    "It died or hangs; where none did, the network between the two is cut (security group, "
    "interface)"
)
_IFNAME = (
    "NCCL_SOCKET_IFNAME=ens5 (or the interface that `ip -br addr` shows with the nodes' private "
    "address; ^docker0,lo leaves some out); the same on all nodes"
)
_EFA_CODES = "ofiwg/libfabric: prov/efa/src/efa_errno.h"

SIGNATURES = (
    Signature(
        "nccl.collnet-plugin",
        r"Failed to find nccl(?:CollNet|Net|Tuner|Profiler|Env)Plugin\w* symbol"
        r"|(?:NET|TUNER|PROFILER|ENV)/Plugin ?: (?:No plugin found|Could not find|Plugin load"
        r"|Plugin name)"
        r"|TUNER/Plugin: Failed to find|No plugin found \(libnccl-net\.so\), using internal",
        "NCCL looks for optional plugins and older interfaces of them, and tells each that is "
        "not there",
        "nothing; on nodes with EFA, look for `Using network Socket` instead",
        "aws/deep-learning-containers#2675",
        role=Role.HARMLESS,
    ),
    Signature(
        "nccl.foreign-address",
        r"No interface found in the same subnet as remote address (?P<address>\S+?)<"
        r"|Call to bind failed ?: Cannot assign requested address",
        "an address that NCCL was given (NCCL_COMM_ID, MASTER_ADDR) is of no interface of this "
        "host or container",
        "in a container --network host; the address as `ip -br addr` shows it there; " + _IFNAME,
        "NVIDIA/nccl#331",
    ),
    Signature(
        "nccl.no-interface",
        r"no device found matching"
        r"|Socket creation failed : Address family not supported|no socket interface found"
        r"|NET/Socket : [Nn]o interface found|Bootstrap: no socket interface"
        r"|is neither AF_INET\(2\) nor AF_INET6\(10\)",
        "NCCL finds no network interface: what NCCL_SOCKET_IFNAME names is not on this host, or "
        "is down",
        _IFNAME,
        "NVIDIA/nccl: src/bootstrap.cc; #286",
    ),
    Signature(
        "nccl.version-mismatch",
        r"Mismatched NCCL version detected|NCCL version mismatch with remote peer"
        r"|different NCCL version|NCCL_VERSION mismatch",
        "ranks have loaded different versions of NCCL",
        "the same image and environment on every node, and one LD_LIBRARY_PATH; "
        "NCCL_DEBUG=VERSION prints each rank's",
        "NVIDIA/nccl: src/init.cc, src/bootstrap.cc; pytorch",
    ),
    Signature(
        "nccl.too-old",
        r"NCCL library is too old|NCCL (?:version )?is too old|NCCL library version .* is too old",
        "the NCCL that is loaded is older than what this program was built with",
        "one NCCL only: remove the one of conda or the system from LD_LIBRARY_PATH",
        "NVIDIA/nccl; horovod/horovod: docs/troubleshooting.rst",
    ),
    Signature(
        "nccl.driver-too-old",
        r"CUDA Driver version found is|NCCL requires (?:at least )?CUDA driver"
        r"|Cuda failure (?:35 )?'CUDA driver version is insufficient for CUDA runtime version'",
        "the NVIDIA driver is older than the CUDA that NCCL was built with",
        "a newer image (driver), or a framework for the older CUDA",
        "NVIDIA/nccl: src/misc/cudawrap.cc",
    ),
    Signature(
        "nccl.duplicate-gpu",
        r"Duplicate GPU detected : rank (?P<rank>\d+) and rank (?P<other>\d+) both on CUDA"
        r" device (?P<gpu>\w+)",
        "rank {other} and {rank} use the same GPU ({gpu})",
        "one GPU a rank: pin it by the local rank, and no more slots on a host than it has GPUs",
        "NVIDIA/nccl: src/init.cc",
    ),
    Signature(
        "nccl.shm-full",
        r"[Ff]ailed to extend (?P<path>/dev/shm/nccl\S*)"
        r"|Error: failed to extend /dev/shm|Call to (?:ftruncate"
        r"|posix_fallocate) failed.*(?:No space left|Interrupted)",
        "/dev/shm is too small or full",
        "`df -h /dev/shm` on that host, and remove what dead jobs left (/dev/shm/nccl-*); in a "
        "container --shm-size=1g or --ipc=host",
        "NVIDIA/nccl: docs troubleshooting; #290, #342",
        mistaken_for="a full disk",
    ),
    Signature(
        "nccl.shm-missing",
        r"[Cc]all to (?:shm_)?open failed.*No such file|shmOpen.*No such file"
        r"|Call to open failed : Permission denied|Error while attaching to shared memory segment",
        "a rank does not see the shared memory that its neighbour made: they run in different "
        "containers, share a host's name without sharing the host, or systemd has removed it "
        "(RemoveIPC), or the neighbour has died",
        "unique host names, one /dev/shm for all ranks of a host; RemoveIPC=no in logind.conf; "
        "else NCCL_SHM_DISABLE=1",
        "NVIDIA/nccl#290; docs troubleshooting",
    ),
    Signature(
        "nccl.cuda-ipc",
        r"failed to open CUDA IPC handle|could not open CUDA IPC|Could not map shared memory .*IPC",
        "two hosts have one name, or CUDA_VISIBLE_DEVICES differs per rank, so NCCL takes ranks of "
        "two hosts for neighbours",
        "unique host names, no CUDA_VISIBLE_DEVICES per rank; NCCL_P2P_DISABLE=1 to test",
        "horovod/horovod: docs/troubleshooting.rst",
    ),
    Signature(
        "nccl.p2p-disabled",
        r"P2P is disabled between NVLINK connected GPUs",
        "GPUs with NVLink between them may not talk directly: driver, fabric or PCI access control",
        "`nvidia-smi topo -p2p r`; on EC2 replace the node",
        "NVIDIA/nccl: src/graph/paths.cc",
        severity=Severity.WARNING,
    ),
    Signature(
        "nccl.p2p-mapping",
        r"[Pp]eer mapping resources exhausted|P2P/IPC.*(?:failed|invalid)|cudaIpcOpenMemHandle"
        r"|Cuda failure (?:\d+ )?'(?:peer access is not supported"
        r"|mapping of buffer object failed|API call is not supported)",
        "GPUs of this host cannot map each other's memory",
        "NCCL_P2P_DISABLE=1 to test; then the driver, virtualisation or PCI access control "
        "(IOMMU, ACS)",
        "NVIDIA/nccl: docs troubleshooting; #631",
    ),
    Signature(
        "nccl.acs",
        r"ACS .*(?:enabled|disable)|Iommu detected on the system",
        "PCI access control (ACS or an IOMMU) slows or breaks traffic between GPUs",
        "switch it off where the machine is yours",
        "NVIDIA/nccl: docs troubleshooting",
        severity=Severity.WARNING,
    ),
    Signature(
        "nccl.topology",
        r"NCCL WARN (?:Attribute (?P<attribute>\w+) of node|XML (?:Parse|Import)"
        r"|Could not find (?:real path|node))",
        "NCCL cannot make sense of the machine's topology: its own reading of /sys fails, or the "
        "topology file "
        "(NCCL_TOPO_FILE) of the plugin is for another machine",
        "unset NCCL_TOPO_FILE; /sys whole in the container; a newer NCCL and aws-ofi-nccl for "
        "newer machines",
        "aws/aws-ofi-nccl#476",
    ),
    Signature(
        "nccl.checked-in",
        r"Bootstrap Root : rank (?P<rank>\d+) of \d+ ranks has already checked in"
        r"|already checked in",
        "a rank came twice: a job that was thought dead runs on with the same address, or two "
        "ranks "
        "have one number",
        "`clusterctl kill NAME`, then start again; check RANK and WORLD_SIZE",
        "NVIDIA/nccl: src/bootstrap.cc",
    ),
    Signature(
        "nccl.root-mismatch",
        r"Bootstrap Root : mismatch in (?:info|rank count)",
        "ranks disagree about how many there are",
        "the same hosts file and -np everywhere; no ranks of another job",
        "NVIDIA/nccl: src/bootstrap.cc",
    ),
    Signature(
        "nccl.truncated",
        r"Message truncated",
        "two ranks have sent each other pieces of different size: their calls or NCCL_* "
        "variables differ",
        "the same program and the same NCCL_* (NCCL_ALGO, NCCL_PROTO) on all ranks; pass them "
        "with -x",
        "NVIDIA/nccl#605",
    ),
    Signature(
        "nccl.wrong-type",
        r"socketFinalizeAccept: wrong (?:type|magic)|wrong type \d+ != \d+|invalid magic"
        r"|unexpected magic",
        "something else connected to NCCL's port: a rank of another job, another version, or a "
        "port scan",
        "end what other jobs left over; the same NCCL on all nodes; keep scanners off the nodes",
        "NVIDIA/nccl-tests#188",
        role=Role.SYMPTOM,
    ),
    Signature(
        "nccl.no-transport",
        r"has no transport for",
        "two ranks have no way to each other: P2P, shared memory and network are all switched off",
        "take NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_NET out of the environment",
        "NVIDIA/nccl: src/transport.cc",
    ),
    Signature(
        "nccl.nvls",
        r"Failed to bind NVLink SHARP|cuMulticast(?:Create|Bind)\w*"
        r"|transport/nvls\.cc:\d+ NCCL WARN",
        "NVLink SHARP cannot be set up: the fabric manager is down or does not fit the driver",
        "restart nvidia-fabricmanager (same version as the driver); NCCL_NVLS_ENABLE=0 to go on",
        "NVIDIA/nccl: src/transport/nvls.cc; #976",
    ),
    Signature(
        "nccl.mnnvl",
        r"MNNVL \(cliqueSize",
        "NVLink across hosts is not ready (IMEX)",
        "start nvidia-imex on all of the hosts, or NCCL_MNNVL_ENABLE=0",
        "NVIDIA/nccl: src/mnnvl.cc",
    ),
    Signature(
        "nccl.oom",
        r"NCCL WARN Cuda failure (?:2 )?'out of memory'|NCCL WARN Failed to (?:CUDA"
        r"|cuda) (?:host )?(?:c|m)?alloc"
        r"|NCCL WARN Cuda failure \S*:\d+ 'out of memory'|Failed to CUDA (?:c|m|host )\w*alloc",
        "the GPU has no memory left for NCCL's buffers: the framework took it all, or several "
        "ranks "
        "share the GPU",
        "pin one GPU a rank, allow_growth for TensorFlow, a smaller batch; `nvidia-smi` shows "
        "whose "
        "processes hold it",
        "NVIDIA/nccl#844, #1235",
        mistaken_for="a fault of the network",
    ),
    Signature(
        "nccl.memlock",
        r"Call to ibv_\w+ failed(?: with error)? Cannot allocate memory"
        r"|Please set max locked memory \(ulimit -l\) to",
        "the limit of locked memory (ulimit -l) is too low for RDMA",
        "memlock unlimited in /etc/security/limits.conf (containers: --ulimit memlock=-1), for the "
        "logins by which mpirun starts its daemons too",
        "NVIDIA/nccl: docs troubleshooting",
    ),
    Signature(
        "nccl.ib-timeout",
        r"Got completion (?:from peer \S+ )?with (?:error"
        r"|status=?) ?(?:IBV_WC_RETRY_EXC_ERR\(?)?12\b"
        r"|Got completion .*vendor err 129|IBV_WC_RETRY_EXC_ERR",
        "the other end of an InfiniBand or RoCE connection did not answer (status 12)",
        "first whether the peer's process died; else link, switch, GID (NCCL_IB_GID_INDEX) or MTU",
        "NVIDIA/nccl#426, #214",
        role=Role.SYMPTOM,
    ),
    Signature(
        "nccl.ib-completion",
        r"Got completion (?:from peer|with (?:error|status))",
        "an RDMA operation to a peer failed: the peer is gone, or the link",
        _PEER,
        "NVIDIA/nccl: src/transport/net_ib.cc",
        role=Role.SYMPTOM,
    ),
    Signature(
        "nccl.ib-queue",
        r"Call to ibv_create_(?:cq|qp|srq) failed\s*$",
        "the RDMA card gave NCCL no queue, and this version does not say why: usually the limit "
        "of locked memory (ulimit -l)",
        "`ulimit -l` in the job itself: unlimited in /etc/security/limits.conf (containers: "
        "--ulimit memlock=-1); NCCL_IB_DISABLE=1 to test",
        "NVIDIA/nccl#380; NVIDIA/nccl-tests#206",
        role=Role.SYMPTOM,
    ),
    Signature(
        "nccl.ib-gdr",
        r"Call to ibv_(?:reg_mr\w*|modify_qp) failed with error (?P<error>Bad address"
        r"|Invalid argument|Connection timed out|No such device|Network is unreachable)"
        r"|Call to ibv_\w+ failed",
        "the RDMA card refused a call of NCCL's",
        "ibv_reg_mr with Bad address: load nvidia_peermem (`lsmod`), or NCCL_NET_GDR_LEVEL=LOC. "
        "ibv_modify_qp timed "
        "out: NCCL_IB_GID_INDEX, the cards' subnet (NCCL_IB_HCA names those that reach each other)",
        "NVIDIA/nccl#214, #307, #676",
    ),
    Signature(
        "nccl.connect-again",
        r"NCCL INFO Call to connect returned [\w ]+, retrying",
        "a rank tries again to reach a peer that does not listen yet: of no account, unless it "
        "goes on",
        "if the job does not start: see whether the peer's rank runs; " + _IFNAME,
        "NVIDIA/nccl: src/include/socket.h",
        role=Role.SYMPTOM,
        severity=Severity.WARNING,
    ),
    Signature(
        "nccl.connect",
        r"connect to (?P<peer>\S+?) (?:returned|failed ?:) ?(?P<error>[A-Z][\w ]+?)(?:, |\s*$| \()"
        r"|[Cc]onnect to (?P<to>[\w.:%-]+<\d+>) ?(?:returned|failed ?:) ?(?P<why>[A-Z][\w ]+)"
        r"|Call to connect (?:returned|timeout :|failed :) (?P<reason>[A-Z][\w ]+)",
        "a rank cannot reach a peer's NCCL port: its rank died or did not start, the "
        "security group has no rule for the cluster itself, or the address is one of an interface "
        "that the others cannot reach (docker0, a second card)",
        "see whether the peer's rank runs; the security group's own rule, all ports; " + _IFNAME,
        "NVIDIA/nccl: src/misc/socket.cc; #207, NVIDIA/nccl-tests#166",
        role=Role.SYMPTOM,
    ),
    Signature(
        "nccl.no-route",
        r"Call to (?:bind|connect|socket|getsockopt|listen) failed : (?P<error>[A-Z][\w ]+)"
        r"|socketStartConnect: (?:Connect|exceeded)"
        r"|socketPollConnect: (?:Connect|connect|exceeded)|exceeded (?:error )?retry count"
        r"|Net : Connect to \S+ failed",
        "a rank cannot reach a peer's NCCL port",
        "see whether the peer's rank runs; the security group's own rule, all ports; " + _IFNAME,
        "NVIDIA/nccl: src/misc/socket.cc",
        role=Role.SYMPTOM,
    ),
    Signature(
        "nccl.watchdog",
        r"Watchdog caught collective operation timeout: WorkNCCL\((?P<what>[^)]*)\)"
        r"|Watchdog caught collective operation timeout",
        "PyTorch has waited for a collective for its whole time limit: another rank did not "
        "come, or "
        "the network or a GPU hangs. The rank that says it is usually a victim",
        "compare SeqNum and OpType of all ranks: who has the lowest, or another operation, is "
        "where "
        "to look; TORCH_NCCL_TRACE_BUFFER_SIZE=2000 (flight recorder); longer timeouts only for "
        "work "
        "that really takes so long on one rank",
        "pytorch/pytorch: ProcessGroupNCCL.cpp; #113128",
        role=Role.SYMPTOM,
        mistaken_for="a fault of NCCL's",
    ),
    Signature(
        "nccl.monitored-barrier",
        r"(?P<rank_text>Ranks? [\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms",
        "{rank_text} did not come to the barrier in {ms} ms",
        "look at {rank_text}: dead, slow, or elsewhere in the program",
        "pytorch/pytorch: ProcessGroupGloo.cpp",
        role=Role.SYMPTOM,
    ),
    Signature(
        "nccl.heartbeat",
        r"ProcessGroupNCCL's watchdog got stuck for|Heartbeat monitor timed out"
        r"|terminating the process after attempting to dump debug info"
        r"|ProcessGroupNCCL preparing to dump debug info|Received a (?:dump signal"
        r"|timeout signal) due to a collective timeout",
        "PyTorch ends the process after a collective hung",
        "the first watchdog line of all ranks, and the flight recorder's dump",
        "pytorch/pytorch: ProcessGroupNCCL.cpp",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "nccl.taking-down",
        r"[Tt]o avoid (?:data inconsistency"
        r"|these inconsistencies),? we are taking (?:down )?the entire process down"
        r"|Some NCCL operations have failed or timed out",
        "PyTorch ends the process after a failed collective",
        "the first watchdog or NCCL WARN line above",
        "pytorch/pytorch: ProcessGroupNCCL.cpp",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "nccl.closed",
        r"Connection closed by remote peer|Connection closed by localRank"
        r"|\[Service thread\] Connection closed",
        "the rank at the other end is gone",
        _PEER,
        "NVIDIA/nccl: src/misc/socket.cc",
        role=Role.CONSEQUENCE,
        mistaken_for="a fault of the network",
    ),
    Signature(
        "nccl.recv-failed",
        r"Call to (?:recv|send)(?: from \S+)? failed : |Socket recv failed while polling"
        r"|socketProgress(?:Opt)?: Call to recv"
        r"|Net : Call to recv from",
        "a connection to another rank broke: usually that rank failed before",
        _PEER,
        "NVIDIA/nccl: src/misc/socket.cc, src/proxy.cc",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "nccl.proxy",
        r"\[Proxy Service[^\]]*\] Failed to execute operation"
        r"|\[Rem Allocator\] Allocation failed|Proxy Call to rank \d+ failed",
        "NCCL's helper thread could not do what it was asked: another line says why",
        "see the NCCL WARN lines above it, on this rank and on the peer",
        "NVIDIA/nccl: src/proxy.cc",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "nccl.remote-exited",
        r"remote process exited or there was a network error|ncclRemoteError",
        "another rank is gone, or the network to it",
        _PEER,
        "NVIDIA/nccl: src/init.cc",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "nccl.system-error",
        r"unhandled system error|ncclSystemError",
        "a system call of NCCL's failed, on a socket or on memory: the NCCL WARN line says which; "
        "this line does not",
        "NCCL_DEBUG=WARN (or INFO) on all ranks, run it again, and explain that log",
        "NVIDIA/nccl: src/init.cc",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "nccl.cuda-error",
        r"unhandled cuda error|ncclUnhandledCudaError",
        "a CUDA call of NCCL's failed: the NCCL WARN line says which; this line does not",
        "NCCL_DEBUG=WARN on all ranks and run it again; meanwhile GPU memory (nvidia-smi) and "
        "`dmesg | grep Xid`",
        "NVIDIA/nccl: src/init.cc",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "nccl.internal-error",
        r"ncclInternalError|internal error - please report this issue to the NCCL developers"
        r"|ncclCommInitRank failed: internal error|NCCL error[^\n]*internal error",
        "NCCL failed in itself: usually after another line of it, or ranks with different NCCL",
        "NCCL_DEBUG=WARN on all ranks, and see the first NCCL WARN",
        "NVIDIA/nccl: src/init.cc",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "nccl.invalid-usage",
        r"ncclInvalidUsage|NCCL error[^\n]*invalid usage|invalid usage \((?:run with|please check)",
        "NCCL was called wrongly: most often two ranks on one GPU",
        "one GPU a rank (local rank), and no more ranks on a host than GPUs; NCCL_DEBUG=WARN "
        "says more",
        "NVIDIA/nccl; pytorch/pytorch#73715",
        role=Role.SYMPTOM,
    ),
    Signature(
        "nccl.cuda-failure",
        r"NCCL WARN Cuda failure (?:\d+ )?'(?P<error>[^']+)'",
        "a CUDA call of NCCL's failed: {error}",
        "if the GPU failed, `dmesg | grep Xid` on that host says how; if several ranks share it, "
        "pin them",
        "NVIDIA/nccl: src/include/checks.h",
        role=Role.SYMPTOM,
    ),
    Signature(
        "nccl.async",
        r"NCCL async error|Async [Oo]peration .*NCCL|NCCL communicator (?:was aborted"
        r"|encountered error)|NCCL error in:",
        "a collective failed; the same message on most ranks, and the cause on one",
        "the first NCCL WARN line of all ranks",
        "pytorch/pytorch: ProcessGroupNCCL.cpp; horovod/horovod#2416",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "efa.no-provider",
        r"NET/OFI Could(?:n't| not) find any optimal provider|provider efa output empty list"
        r"|No eligible providers were found"
        r"|fi_getinfo: provider efa returned -61",
        "aws-ofi-nccl finds no EFA that it may use: the interfaces are not attached, the driver or "
        "libfabric is missing, or the container lacks /dev/infiniband",
        "`fi_info -p efa` on the node; interfaces of type efa on the instance; in a container "
        "--device /dev/infiniband; /opt/amazon/efa/lib first in LD_LIBRARY_PATH",
        "NVIDIA/nccl#229, aws/aws-ofi-nccl#889",
        role=Role.SYMPTOM,
    ),
    Signature(
        "efa.only-efa",
        r"Only EFA provider is supported",
        "this instance type has no EFA, or the container does not see it",
        "a type with EFA and --device /dev/infiniband; else take aws-ofi-nccl out of "
        "LD_LIBRARY_PATH",
        "aws/deep-learning-containers#2675",
    ),
    Signature(
        "efa.old-libfabric",
        r"EFA provider requires at least libfabric|requires at least [Ll]ibfabric",
        "an older libfabric comes first in the library path",
        "/opt/amazon/efa/lib first in LD_LIBRARY_PATH, on all nodes",
        "aws/aws-ofi-nccl: src/nccl_ofi_net.cpp",
    ),
    Signature(
        "efa.mr-limit",
        r"infiniband efa_\d+: Failed to (?:register mr \[-12\]|process command REG_MR)"
        r"|Unable to register MR: Cannot allocate memory",
        "EFA takes no more memory to register: its limit of pages (about 96 GB of 4 KiB pages a "
        "card), or the limit of locked memory",
        "huge pages for the large buffers, or fewer of them; `ulimit -l` unlimited",
        "ofiwg/libfabric#9739; NVIDIA/nccl#563",
    ),
    Signature(
        "efa.register",
        r"Unable to register memory",
        "EFA could not register GPU memory: efa-installer before 1.29.1 with NCCL 2.19 or newer, "
        "or "
        "no GPUDirect in the driver",
        "a newer image, or FI_EFA_SET_CUDA_SYNC_MEMOPS=0",
        "aws-samples/awsome-distributed-training: efa-cheatsheet",
    ),
    Signature(
        "efa.memlock",
        r"EFA internal error: \(4112\)|Failure to post internal receive buffers"
        r"|memory lock limit|RLIMIT_MEMLOCK"
        r"|libibverbs: Warning: RLIMIT_MEMLOCK is (?P<limit>\d+) bytes",
        "the limit of locked memory (ulimit -l) is too low for RDMA",
        "memlock unlimited in /etc/security/limits.conf (containers: --ulimit memlock=-1)",
        "awslabs/awsome-distributed-ai#647",
    ),
    Signature(
        "efa.unreachable",
        r"[Uu]nreachable remote|prov_errno: 15\b|prov_err(?:no)?:? 15\b|\(15\) Unreachable remote",
        "EFA cannot get to the peer: the security group lacks the rule for itself, in and out, or "
        "the nodes are in different subnets",
        "the security group: all traffic from and to its own id; all nodes in one subnet",
        _EFA_CODES,
        mistaken_for="a dead peer",
    ),
    Signature(
        "efa.insert-address",
        r"Unable to insert remote address",
        "EFA cannot make its way to a peer: usually the security group's rule for itself is "
        "missing",
        "the security group: all traffic from and to its own id (not 0.0.0.0/0 alone)",
        "aws/aws-ofi-nccl#663",
    ),
    Signature(
        "efa.endpoint",
        r"NET/OFI (?:Creating new endpoint|Couldn't (?:open|create|enable|bind)"
        r"|Unable to (?:open|create|enable|bind))[^\n]*",
        "aws-ofi-nccl could not set up the network: EFA's driver, libfabric and the plugin do "
        "not fit, or a limit is reached",
        "dmesg for efa; `fi_info -p efa`; ulimit -l; the versions of efa-installer and "
        "aws-ofi-nccl on all nodes",
        "aws/aws-ofi-nccl#889, #22",
        role=Role.SYMPTOM,
    ),
    Signature(
        "efa.remote-memory",
        r"Remote memory registration is invalid|prov_errno[=:] ?7\b"
        r"|Local memory registration is invalid",
        "EFA refused a transfer: the memory that it names is not registered at the other end (or "
        "no more)",
        "a fault of the program or library that uses libfabric: its version; the peer may have "
        "ended meanwhile",
        "pmodels/mpich#7853, " + _EFA_CODES,
        role=Role.SYMPTOM,
    ),
    Signature(
        "efa.alloc-pd",
        r"Failed to process command ALLOC_PD",
        "the EFA driver failed",
        "dmesg on that host; replace the node",
        "aws/aws-ofi-nccl#22",
    ),
    Signature(
        "efa.fork",
        r"fork\(\) (?:has been|was) called.*EFA"
        r"|A process has executed an operation involving a call\s+to the \"?fork\(\)\"?[^\n]*EFA"
        r"|Your application is requesting the use of fork.*FI_EFA_FORK_SAFE",
        "a process with EFA was forked (data loaders, subprocess)",
        "FI_EFA_USE_HUGE_PAGE=0; kernels before 5.15 need FI_EFA_FORK_SAFE=1",
        "ofiwg/libfabric: prov/efa/src/efa_fork_support.c",
    ),
    Signature(
        "efa.handshake",
        r"[Uu]nresponsive receiver|EFA device but handshake failed",
        "EFA's card reaches the peer, and the peer does not answer: its process is dead or frozen, "
        "or the security group lacks the rule for itself",
        "the peer's process and host; with all of them alive: the security group, all traffic from "
        "and to its own id (0.0.0.0/0 alone is not enough for EFA)",
        _EFA_CODES + "; gardener/gardener-extension-provider-aws#1832",
        role=Role.SYMPTOM,
    ),
    Signature(
        "efa.peer",
        r"(?P<what>Unresponsive remote|reset by remote peer|Bad queue pair"
        r"|Destination resource not ready|handshake failed)[^\n]*(?:My EFA addr|Peer|peer"
        r"|prov_err|RC:|errno)"
        r"|prov_errno: (?:8|9|10|13)\b|Unresponsive remote \(?"
        r"|Unexpected status received from remote|unexpected status received from receiver",
        "the process or host at the other end of an EFA connection is dead, frozen or cut off",
        "`My host id` and `Peer host id` in the line are instances: look at the peer's",
        _EFA_CODES + "; aws/aws-ofi-nccl#346, ofiwg/libfabric#9694",
        role=Role.SYMPTOM,
    ),
    Signature(
        "efa.request-error",
        r"NET/OFI .*completed with error",
        "an EFA operation failed: the text behind it says how",
        "look at the peer that it names",
        "aws/aws-ofi-nccl",
        role=Role.SYMPTOM,
    ),
    Signature(
        "efa.provider-abort",
        r"Libfabric EFA provider has encountered an internal error",
        "libfabric's EFA provider gave up: the lines after it say why",
        "the two lines after it; then the peer",
        "ofiwg/libfabric: prov/efa/src/efa_errno.h",
        role=Role.SYMPTOM,
    ),
    Signature(
        "efa.shm-fork",
        r"FI_EFA_ENABLE_SHM_TRANSFER|Unable to write to EQ: Missing or unavailable event queue",
        "EFA's provider failed between processes of one host (its shared memory path)",
        "FI_EFA_ENABLE_SHM_TRANSFER=0 to test; CMA needs ptrace_scope 0",
        "ofiwg/libfabric#6249, #9694",
        role=Role.SYMPTOM,
    ),
    Signature(
        "efa.plugin-failed",
        r"Failed to initialize any NET plugin|NET/OFI (?:aws-ofi-nccl )?initialization failed"
        r"|NET/Plugin: Failed to initialize"
        r"|initialized? failed.*NET/OFI",
        "NCCL was told to take a network plugin, and it does not start",
        "the NET/OFI lines above; /opt/amazon/ofi-nccl/lib and /opt/amazon/efa/lib in "
        "LD_LIBRARY_PATH; "
        "without EFA leave NCCL_NET out",
        "aws/aws-ofi-nccl#889",
        role=Role.SYMPTOM,
    ),
    Signature(
        "nccl.socket-network",
        r"NCCL INFO Using network Socket",
        "NCCL uses TCP sockets between nodes. Where they have EFA, that is slow",
        "on nodes with EFA: `clusterctl env status NAME` and the NET/ lines above this one",
        "NVIDIA/nccl: src/net.cc",
        role=Role.HARMLESS,
        severity=Severity.INFO,
    ),
)
