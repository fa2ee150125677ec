"""Signatures of messages of the kernel, systemd, Slurm, and programs that hit a host's limits."""

from __future__ import annotations

from clusterctl.domain.findings import Severity
from clusterctl.explain.signature import Role, Signature

_GPUD = "leptonai/gpud: components/{cpu,disk,memory,nfs,os}"

SIGNATURES = (
    Signature(
        "kernel.memcg-oom",
        r"Memory cgroup out of memory: Kill(?:ed)? process (?P<pid>\d+) \((?P<process>[^)]+)\)"
        r"|oom-kill:constraint=CONSTRAINT_MEMCG|mem_cgroup_out_of_memory\+0x",
        "the kernel killed a process since its cgroup's limit was reached (a "
        "container's, a service's, "
        "Slurm's): the host need not be short of memory",
        "raise that limit (--memory, MemoryMax, --mem), or use less: fewer workers, smaller "
        "shuffle buffers",
        _GPUD,
        mistaken_for="too little memory of the host",
    ),
    Signature(
        "kernel.oom",
        r"Out of memory: Kill(?:ed)? process (?P<pid>\d+) \((?P<process>[^)]+)\)"
        r"|oom_reaper: reaped process (?P<pid2>\d+) \((?P<process2>[^)]+)\)",
        "the host ran out of memory, and the kernel killed {process}",
        "fewer data loaders, smaller shuffle and prefetch buffers, or a larger machine; what "
        "else uses memory there",
        "linux: mm/oom_kill.c",
        mistaken_for="a crash of the program or of mpirun",
    ),
    Signature(
        "kernel.oom-invoked",
        r"(?P<process>[\w./-]+) invoked oom-killer|systemd-oomd\[\d+\]: Killed"
        r"|Killed process (?P<pid>\d+)",
        "memory ran out, and the kernel killed a process",
        "the next lines name the process and its memory",
        "linux: mm/oom_kill.c",
        role=Role.SYMPTOM,
    ),
    Signature(
        "kernel.hung-task",
        r"task (?P<process>[^\s:]+(?::\d+)?):(?P<pid>\d+) blocked for more than (?P<seconds>\d+)"
        r" seconds",
        "{process} (pid {pid}) waits in the kernel for longer than {seconds} s: for a disk, a "
        "network file system or a driver",
        "the stack below the line: nfs_*, jbd2/nvme, or nvidia; then that disk, server or GPU",
        _GPUD,
        role=Role.SYMPTOM,
    ),
    Signature(
        "kernel.soft-lockup",
        r"(?:soft|hard) lockup - CPU#(?P<cpu>\d+)|hard LOCKUP on cpu (?P<cpu2>\d+)|rcu_(?:sched"
        r"|preempt): (?:self-)?detected stalls?|rcu: INFO: rcu_\w+ (?:self-)?detected stall",
        "a CPU of the host did nothing but one thing in the kernel for long: a kernel, driver or "
        "hardware fault",
        "replace the node; if it is on all, the kernel or a driver",
        _GPUD,
    ),
    Signature(
        "kernel.panic",
        r"Kernel panic - not syncing|BUG: unable to handle (?:kernel|page)|Oops: \d+ \[#"
        r"|kernel BUG at "
        r"|general protection fault: \d+ \[#",
        "the kernel crashed",
        "replace the node; its console (`aws ec2 get-console-output`) has the stack",
        "linux: kernel/panic.c",
    ),
    Signature(
        "kernel.mce",
        r"(?:mce: )?\[Hardware Error\]: |Machine [Cc]heck (?:Exception|events logged)"
        r"|EDAC MC\d+: \d+ UE",
        "the machine reports a hardware error",
        "replace the node",
        _GPUD,
    ),
    Signature(
        "kernel.pcie",
        r"pcieport .*AER: (?:Uncorrected|Multiple Uncorrected|Fatal)"
        r"|PCIe Bus Error: severity=Uncorrected|AER: .*Fatal",
        "an error on the PCI bus that could not be corrected",
        "an Xid 79 or a lost disk beside it says of which device; replace the node",
        "linux: drivers/pci/pcie/aer.c",
    ),
    Signature(
        "kernel.nvme-timeout",
        r"(?P<disk>nvme\d+): I/O .*timeout",
        "a disk ({disk}) does not answer: an EBS volume that is impaired, or an instance store's "
        "drive that fails",
        "EBS: the volume's status in EC2, nvme_core.io_timeout=4294967295; instance store: "
        "replace the node",
        "docs.aws.amazon.com/ebs/latest/userguide/timeout-nvme-ebs-volumes.html",
    ),
    Signature(
        "kernel.nvme-lost",
        r"Disabling device after reset failure|nvme \S+: (?:controller is down"
        r"|Removing after probe failure|Device not ready)|Removing after probe failure status",
        "a disk is lost",
        "replace the node; for EBS detach and attach the volume",
        _GPUD,
    ),
    Signature(
        "kernel.io-error",
        r"(?:blk_update_request: )?(?:critical (?:medium|target) error"
        r"|I/O error), dev (?P<disk>\w+)|print_req_error: .*dev (?P<disk2>\w+)",
        "reads or writes of {disk} fail",
        "smartctl or the volume's status in EC2; replace the node",
        _GPUD,
    ),
    Signature(
        "kernel.md",
        r"md/raid\S*: Disk failure on (?P<disk>\w+)|md\S*: .*(?:Operation continuing on"
        r"|failed disk)",
        "a drive of the instance store's RAID failed",
        "replace the node",
        _GPUD,
    ),
    Signature(
        "kernel.fs-error",
        r"Remounting filesystem read-only|EXT4-fs error \(device (?P<disk>[^)]+)\)"
        r"|EXT4-fs \([^)]+\): (?:re-mounted|Remounting).*read-only|XFS \([^)]+\): (?:Corruption"
        r"|[Mm]etadata corruption|log I/O error|Filesystem has been shut down)"
        r"|Buffer I/O error on dev",
        "a file system is damaged or lost its disk, and can only be read now",
        "the disk's own errors above; then fsck, or replace the node",
        _GPUD,
        role=Role.SYMPTOM,
    ),
    Signature(
        "kernel.nfs",
        r"nfs: server (?P<server>\S+) not responding",
        "the NFS (EFS) server {server} does not answer; whatever touches it waits in the kernel",
        "the server and the network to it (port 2049 in the security group); `nfs: server … OK` "
        "later means that it came back",
        _GPUD,
    ),
    Signature(
        "kernel.lustre",
        r"LustreError: .*(?:was evicted|Connection .*lost|timed out|connect.*failed)"
        r"|Lustre: .*(?:Connection to \S+ .*was lost|Request sent has timed out)",
        "Lustre (FSx) does not answer",
        "the file system's state, and its security group (ports 988, 1018-1023)",
        "docs.aws.amazon.com/fsx/latest/LustreGuide/troubleshooting.html",
    ),
    Signature(
        "kernel.segfault",
        r"(?P<process>[\w./-]+)\[(?P<pid>\d+)\]: segfault at (?P<address>\w+) ip \w+ sp \w+"
        r" error \d+(?: in (?P<library>[\w.+-]+))?",
        "{process} (pid {pid}) crashed in {library}",
        "usually libraries that do not fit each other; in libnccl or libcuda first look for "
        "Xid lines of the same minute",
        "linux: arch/x86/mm/fault.c; leptonai/gpud: nvidia/nccl",
        role=Role.SYMPTOM,
    ),
    Signature(
        "kernel.trap-opcode",
        r"trap invalid opcode ip|SIGILL|[Ii]llegal instruction",
        "a program has instructions that this CPU lacks (AVX-512, AVX2): it was built on another "
        "family",
        "build it (Horovod, NumPy, TensorFlow) on the machine it runs on, or take the packaged "
        "one; TensorFlow's packages need AVX",
        "tensorflow/tensorflow#19584",
    ),
    Signature(
        "kernel.ena",
        r"ena \S+(?: \w+)?: Found a Tx that wasn't completed|Keep alive watchdog timeout"
        r"|(?:TX|Tx) hasn't completed",
        "the network card (ENA) stopped and was reset: the host was too busy to serve it, or the "
        "hardware fails",
        "once: nothing; again and again: a newer ENA driver, fewer busy CPUs, else replace the "
        "node",
        "amzn/amzn-drivers: kernel/linux/ena/ENA_Linux_Best_Practices.rst",
        severity=Severity.WARNING,
    ),
    Signature(
        "kernel.link-down",
        r"NETDEV WATCHDOG: (?P<card>\S+) .*transmit queue \d+ timed out"
        r"|(?P<name>\w+): NIC Link is Down",
        "a network card stopped or lost its link",
        "the instance's state in EC2; replace the node if it comes again",
        "linux: net/sched/sch_generic.c",
    ),
    Signature(
        "kernel.clock",
        r"clocksource: .*(?:unstable|skew is too large)"
        r"|timekeeping watchdog on CPU\d+: Marking clocksource 'tsc' as unstable",
        "the kernel changed its clock",
        "nothing, unless times of the hosts differ (`chronyc tracking`)",
        "linux: kernel/time/clocksource.c",
        role=Role.HARMLESS,
    ),
    Signature(
        "system.quota",
        r"[Dd]isk quota exceeded|\[Errno 122\]|EDQUOT",
        "a user's or project's quota on that file system is used up",
        "`quota -s` or `lfs quota -h PATH` there; delete, another folder, or a larger quota",
        "man 2 write; open-mmlab/mmdetection#12069",
        mistaken_for="a full disk: df shows room",
    ),
    Signature(
        "system.semaphores",
        r"No space left on device\. +joblib will operate|_multiprocessing\.SemLock\([^\n]*\n"
        r"(?:[^\n]*\n){0,3}OSError: \[Errno 28\]",
        "/dev/shm has no room for a semaphore of Python's multiprocessing",
        "`df -h /dev/shm` on that host; a container: --shm-size=8g or --ipc=host",
        "python: Lib/multiprocessing/synchronize.py",
        mistaken_for="a full disk",
        lines=5,
    ),
    Signature(
        "system.io-error",
        r"\[Errno 5\] Input/output error(?:: '(?P<path>[^']+)')?",
        "a file system fails: its disk, or the server of a network file system",
        "`dmesg -T` on that host, and the file system of the path in the line",
        "man 2 read",
    ),
    Signature(
        "system.no-space",
        r"No space left on device|ENOSPC|not enough free disk space",
        "a disk is full (or has no inodes left, or /dev/shm or /tmp is meant)",
        "`clusterctl disk NAME` (df -h and df -i on that host): the volume of the path in the "
        "line; `clusterctl clean-logs NAME`, a larger volume",
        "the tutorial; man 2 write",
    ),
    Signature(
        "system.too-many-files",
        r"Too many open files|EMFILE",
        "a process has no file descriptors left (ulimit -n)",
        "nofile 65536 in /etc/security/limits.conf, for the logins by which mpirun starts its "
        "daemons too; fewer workers",
        "man 2 open",
    ),
    Signature(
        "system.read-only",
        r"Read-only file system|EROFS",
        "the file system can only be read: mounted so, or damaged",
        "`mount | grep ' ro'`; `dmesg | grep -i ext4` for the reason",
        "man 2 open",
        role=Role.SYMPTOM,
    ),
    Signature(
        "system.efa-fork-memory",
        r"OSError: \[Errno 12\] Cannot allocate memory|fork: Cannot allocate memory",
        "a fork was refused for want of memory: with EFA its huge pages are the cause, else the "
        "host is full",
        "FI_EFA_USE_HUGE_PAGE=0 with EFA; else `free -m`, fewer workers, vm.overcommit_memory=1",
        "aws-samples/awsome-distributed-training: efa-cheatsheet",
    ),
    Signature(
        "system.bus-error",
        r"[Bb]us error",
        "memory behind a file could not be filled: /dev/shm (a container's 64 MiB) or a disk is "
        "full",
        "`df -h /dev/shm /tmp`; --shm-size or --ipc=host",
        "man 7 signal; pytorch/pytorch#2244",
        role=Role.SYMPTOM,
    ),
    Signature(
        "system.segmentation",
        r"[Ss]egmentation fault|exited with exit code: ?139",
        "a program crashed: usually because of libraries that do not fit each other",
        "which library: the stack (`*** Process received signal ***`, faulthandler) or the "
        "kernel's `segfault at` line; PYTHONFAULTHANDLER=1",
        "man 7 signal",
        role=Role.SYMPTOM,
    ),
    Signature(
        "system.killed",
        r"^(?:.*: )?(?:line \d+: +)?\d* *Killed(?: +.*)?$|failed \(exitcode: -9\)"
        r"|exitcode +: -9 |Signal 9 \(SIGKILL\) received by PID",
        "a process was killed by signal 9; the log does not say by whom",
        "`dmesg -T | grep -i -e oom -e 'killed process'` on that host: with such a line it was "
        "memory, else a scheduler or a person",
        "man 7 signal",
        role=Role.SYMPTOM,
        mistaken_for="proof of too little memory",
    ),
    Signature(
        "system.service-oom",
        r"Failed with result 'oom-kill'|A process of this unit has been killed by the OOM killer"
        r"|OOMKilled",
        "a service or container was killed for want of memory",
        "its own limit (MemoryMax, a container's memory), then the host's memory; dmesg names "
        "the process",
        "systemd; kubernetes",
    ),
    Signature(
        "slurm.limit",
        r"(?:slurmstepd|srun|slurmd): error: .*(?:Exceeded job memory limit|oom[-_]kill"
        r"|Detected \d+ oom)|CANCELLED AT \S+ DUE TO (?P<why>TIME LIMIT|PREEMPTION|NODE FAILURE)"
        r"|DUE TO TIME LIMIT",
        "Slurm ended the job",
        "a longer --time, more --mem; after a node failure submit it again",
        "SchedMD/slurm",
    ),
    Signature(
        "slurm.exit",
        r"srun: error: \S+: tasks? [\d,-]+: (?:Exited with exit code|Killed|Terminated"
        r"|Segmentation|Aborted|Out Of Memory)|slurmstepd: error: \*\*\* STEP",
        "Slurm tells which task ended with an error",
        "that task's own last lines",
        "SchedMD/slurm",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "system.glibc",
        r"version `(?P<version>(?:GLIBC|GLIBCXX|CXXABI"
        r"|GOMP)_[\d.]+)' not found(?: \(required by (?P<program>[^)]+)\))?",
        "{program} needs {version}, and this host's library is older",
        "a build for this distribution, a newer image, or the environment's own libstdc++ first "
        "in LD_LIBRARY_PATH",
        "man 8 ld.so",
    ),
    Signature(
        "system.exec-format",
        r"[Ee]xec format error|cannot execute binary file",
        "a program is for another processor (x86-64, ARM), or a script lacks its `#!` line",
        "`file PROGRAM` and `uname -m`",
        "man 2 execve",
    ),
    Signature(
        "system.undefined-symbol",
        r"(?P<library>[^\s:'\"(]+\.so[\w.]*)[:,]* undefined symbol: (?P<symbol>[\w@.]+)"
        r"|symbol lookup error: (?P<library2>\S+?): undefined symbol: (?P<symbol2>\w+)",
        "{library} needs the symbol {symbol}, which none of the libraries that are loaded has: "
        "it was built with "
        "another version of one of them",
        "`c++filt {symbol}` tells whose it is, `ldd {library}` what is loaded; install "
        "{library}'s package again, built for "
        "the versions that are there",
        "man 8 ld.so",
    ),
    Signature(
        "system.library-missing",
        r"error while loading shared libraries: (?P<library>[^\s:]+)|(?:ImportError"
        r"|OSError): (?P<library2>lib[\w.+-]+\.so[.\d]*): cannot open shared object file"
        r"|(?P<library3>lib[\w.+-]+\.so[.\d]*): cannot open shared object file",
        "the library {library} is not on that host, or not in the library path",
        "install its package, or add its folder to LD_LIBRARY_PATH (with mpirun: -x "
        "LD_LIBRARY_PATH); `ldd PROGRAM` lists all",
        "man 8 ld.so",
    ),
)
