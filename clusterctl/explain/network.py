"""Signatures of messages of SSH, rsync, name resolution and the network."""

from __future__ import annotations

from clusterctl.explain.signature import Role, Signature

_SSH = "openssh-portable: ssh.c, sshconnect.c, sshconnect2.c"

SIGNATURES = (
    Signature(
        "ssh.key-permissions",
        r"UNPROTECTED PRIVATE KEY FILE"
        r"|Permissions (?P<mode>\d+) for '(?P<path>[^']+)' are too open"
        r"|It is required that your private key files are NOT accessible",
        "ssh does not use a key file that others can read",
        "chmod 600 of the key file",
        "openssh-portable: authfile.c",
        mistaken_for="a refused key: `Permission denied (publickey)` follows",
    ),
    Signature(
        "ssh.key-missing",
        r"Identity file (?P<path>\S+) not accessible"
        r"|Load key \"(?P<key>[^\"]+)\": (?P<error>[\w ]+)",
        "ssh cannot read the key file",
        "the path after -i; `invalid format` or `error in libcrypto` is a file that was damaged "
        "or made on Windows",
        "openssh-portable: ssh.c",
    ),
    Signature(
        "ssh.publickey",
        r"Permission denied \((?P<methods>publickey[\w,-]*)\)"
        r"|Permission denied, please try again|Authentication failed\."
        r"|No supported authentication methods available",
        "the host does not accept the key: another user name (ubuntu, ec2-user, admin), a key "
        "that is not "
        "authorised there, or no agent",
        "`clusterctl ssh NAME` uses the right ones; `ssh -v` shows which keys are offered; "
        "~/.ssh/authorized_keys on the host",
        _SSH,
    ),
    Signature(
        "ssh.too-many-keys",
        r"Too many authentication failures",
        "the agent offers more keys than the server takes, before the right one",
        "-o IdentitiesOnly=yes -i KEY",
        _SSH,
    ),
    Signature(
        "ssh.host-key-changed",
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Offending \w+ key in (?P<path>\S+)",
        "the host shows another key than the pinned one: usually a new instance with an old "
        "one's address, "
        "else someone in between",
        "`clusterctl up NAME` compares with EC2's console (docs/troubleshooting.md); do not just "
        "delete the pin",
        _SSH,
    ),
    Signature(
        "ssh.host-key",
        r"Host key verification failed"
        r"|No \w+ host key is known for (?P<host>\S+) and you have requested strict checking",
        "the host's key is not known here, and nobody could be asked",
        "`clusterctl ssh`, or known_hosts of the cluster (-F its ssh_config); each node needs "
        "the others' keys, its own included",
        _SSH + "; horovod/horovod#125",
    ),
    Signature(
        "ssh.kex",
        r"(?:kex|ssh)_exchange_identification: (?P<what>[\w :]+)|Connection (?:closed"
        r"|reset) by (?P<host>[\w.:-]+) port (?P<port>\d+)|banner exchange: Connection",
        "the SSH server dropped the connection before the login: too many at a time "
        "(MaxStartups), it was "
        "just starting, it blocks this address, or the port is not SSH's",
        "fewer at a time, and again; MaxStartups 100:30:500 in sshd_config; `journalctl -u ssh` "
        "on the host",
        _SSH + "; openpmix/prrte#1493",
    ),
    Signature(
        "ssh.timeout",
        r"connect to host (?P<host>\S+) port (?P<port>\d+): (?:Connection timed out"
        r"|Operation timed out|Connection timeout)",
        "no answer from {host} on port {port}: the security group does not let this address in "
        "(it may have "
        "changed), there is no public address or route, or the instance is not up",
        "the instance's state; the security group's source against `curl ifconfig.me`; the "
        "subnet's route to the internet",
        _SSH,
    ),
    Signature(
        "ssh.refused",
        r"connect to host (?P<host>\S+) port (?P<port>\d+): Connection refused",
        "{host} is up, and nothing listens on port {port}: the SSH server has not started yet, "
        "or has another port",
        "wait for the boot's end; a container's port: -mca plm_rsh_args '-p 12345'",
        _SSH,
    ),
    Signature(
        "ssh.no-route",
        r"connect to host (?P<host>\S+) port (?P<port>\d+): (?:No route to host"
        r"|Network is unreachable|Host is down)",
        "there is no way from here to {host}",
        "the address (private addresses only work within the VPC), routes, and whether the host "
        "is up",
        _SSH,
    ),
    Signature(
        "ssh.resolve",
        r"Could not resolve hostname (?P<host>[^\s:]+(?::\d+)?)",
        "the name {host} is not known: DNS is off in the VPC, or `host:slots` was given where a "
        "host belongs",
        "addresses in place of names (`clusterctl hosts NAME`)",
        "horovod/horovod#1032",
    ),
    Signature(
        "ssh.algorithms",
        r"Unable to negotiate with (?P<host>\S+) port \d+: (?P<what>no matching [\w ]+ found)"
        r"|no mutual signature (?:algorithm|supported)",
        "client and server have no algorithm in common: one of them is too old",
        "an ed25519 key; or for an old server -o PubkeyAcceptedAlgorithms=+ssh-rsa -o "
        "HostKeyAlgorithms=+ssh-rsa",
        _SSH,
    ),
    Signature(
        "ssh.nologin",
        r"System is booting up\. Unprivileged users are not permitted to log in"
        r"|This account is currently not available|pam_nologin",
        "the host is still booting (or shutting down), and lets nobody in yet",
        "wait, and try again",
        "linux-pam: pam_nologin",
    ),
    Signature(
        "ssh.login-as",
        r"Please login as the user \"(?P<user>[\w-]+)\" rather than the user \"(?P<wrong>[\w-]+)\"",
        "this image wants the user {user}, and the login was as {wrong}",
        "log in as {user}",
        "canonical/cloud-init: disable_root_opts",
    ),
    Signature(
        "ssh.tty",
        r"Pseudo-terminal will not be allocated because stdin is not a terminal"
        r"|stdin: is not a tty|mesg: ttyname failed|bind: Address already in use.*X11"
        r"|Warning: Permanently added",
        "ssh tells of terminals and new hosts",
        "nothing",
        _SSH,
        role=Role.HARMLESS,
    ),
    Signature(
        "ssh.client-loop",
        r"client_loop: send disconnect|packet_write_wait: Connection to"
        r"|Timeout, server (?P<host>\S+) not responding|Write failed: Broken pipe"
        r"|Connection to (?P<to>\S+) closed by remote host"
        r"|Read from remote host \S+: (?:Connection|Operation)",
        "an SSH connection broke while it was used: the host went away, or a firewall dropped a "
        "quiet one",
        "the host's state; ServerAliveInterval 30; long work in the background (`clusterctl "
        "train` is detached)",
        _SSH,
        role=Role.SYMPTOM,
    ),
    Signature(
        "ssh.fork-limit",
        r"(?:fork|pthread_create|posix_spawn\w*): (?:retry: )?Resource temporarily unavailable"
        r"|BlockingIOError: \[Errno 11\] Resource temporarily unavailable|can't start new thread"
        r"|pthread_create failed for thread|creation via pthread_create\(\) failed"
        r"|libgomp: Thread creation failed|OMP: System error #11",
        "the limit of processes and threads of this user (ulimit -u, a cgroup's pids.max) is "
        "reached",
        "what runs there (`ps -eLf | wc -l`); OPENBLAS_NUM_THREADS=1, OMP_NUM_THREADS=1; a "
        "higher limit",
        "man 2 fork, pthread_create",
    ),
    Signature(
        "rsync.not-found",
        r"rsync: (?:-c: line \d+: )?(?:command not found|not found)|(?:bash|sh): (?:line \d+: "
        r"|\d+: )?rsync: (?:command )?not found",
        "rsync is not installed on the other host",
        "install it there (and here); `clusterctl copy` needs none",
        "rsync: main.c; exit status 127",
    ),
    Signature(
        "rsync.protocol",
        r"protocol version mismatch -- is your shell clean\?|unexpected tag \d+ \["
        r"|invalid message \d+:|rsync error: protocol incompatibility",
        "the login shell of the other host prints something, and rsync reads it as its own "
        "protocol",
        "`ssh HOST true` has to print nothing: put echo behind a test for interactive shells in "
        ".bashrc",
        "rsync: FAQ, is your shell clean",
    ),
    Signature(
        "rsync.no-space",
        r"rsync: (?:\[\w+\] )?(?:write|mkstemp|mkdir|recv_\w+).*No space left on device \(28\)",
        "the disk of the receiving host is full (or has no inodes left)",
        "`clusterctl disk NAME` (df -h, df -i); a larger volume, or the instance store",
        "rsync: receiver.c",
    ),
    Signature(
        "rsync.denied",
        r"rsync: (?:\[\w+\] )?[\w ]+ \"(?P<path>[^\"\n]+)\"(?: \(in \w+\))?:? (?:failed: )?"
        r"(?P<error>[A-Z][\w -]+) \(\d+\)",
        "rsync cannot use {path}: {error}",
        "the path, its owner, and the folder above it, which has to exist, on the host that is "
        "named",
        "rsync: exit status 23 or 3",
    ),
    Signature(
        "rsync.partial",
        r"rsync error: some files(?:/attrs)? (?:could not be|were not) transferred"
        r"|rsync warning: some files vanished|file has vanished",
        "rsync could not copy all files: the lines above name them",
        "see the lines `rsync: …` above",
        "rsync: exit status 23, 24",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "rsync.killed",
        r"rsync error: received SIG(?:INT|TERM|HUP|USR1)|rsync error: (?:sibling process"
        r"|unexplained error)",
        "rsync was ended from outside, or its other half was",
        "see the lines above, and the other host's",
        "rsync: exit status 20, 19",
        role=Role.CONSEQUENCE,
    ),
    Signature(
        "rsync.timeout",
        r"rsync error: timeout in data send/receive|io timeout after \d+ seconds",
        "the other rsync was silent for longer than --timeout",
        "a slow disk, or a cut network; look at both hosts; a longer --timeout",
        "rsync: exit status 30",
        role=Role.SYMPTOM,
    ),
    Signature(
        "rsync.connection",
        r"rsync: (?:\[\w+\] )?connection unexpectedly closed"
        r"|rsync error: error in rsync protocol data stream|rsync error: unexplained"
        r"|rsync error: error in socket IO|rsync: (?:\[\w+\] )?(?:read|write"
        r"|safe_\w+).*(?:Connection reset|Broken pipe|Connection timed out)",
        "the other end of the copy is gone: the login failed, the disk there was full, it was "
        "killed, or the network broke",
        "the line above (ssh's own), the other host's disk and memory; the same rsync again goes "
        "on, with --partial",
        "rsync: exit status 12",
        role=Role.SYMPTOM,
        mistaken_for="a fault of rsync",
    ),
    Signature(
        "rsync.daemon",
        r"rsync: (?:\[\w+\] )?failed to connect to (?P<host>\S+)(?: \([\d.]+\))?: (?P<error>[\w"
        r" ]+)|@ERROR: (?P<daemon>.{3,80})",
        "rsync's own server on {host} cannot be reached, or refuses",
        "with one colon (HOST:PATH) rsync goes through SSH; `::` and rsync:// need a daemon there",
        "rsync: clientserver.c",
    ),
    Signature(
        "net.resolve",
        r"Temporary failure in name resolution|Name or service not known"
        r"|Temporary failure resolving '(?P<name>[^']+)'|Could not resolve host: (?P<host>\S+)"
        r"|getaddrinfo failed|Name does not resolve|no such host",
        "a name could not be resolved: no way out (hosts of the local EC2 have none), no DNS in "
        "the VPC (enableDnsSupport), or a wrong name",
        "`resolvectl query NAME` on that host; the VPC's DNS settings; addresses in place of names",
        "horovod/horovod#1032; man getaddrinfo",
    ),
    Signature(
        "net.neighbour-table",
        r"arp_cache: neighbor table overflow"
        r"|Neighbour table overflow",
        "the table of neighbours (ARP) is full: too many hosts in one subnet for the kernel's "
        "limit",
        "sysctl net.ipv4.neigh.default.gc_thresh3=8192 (gc_thresh2, gc_thresh1 with it)",
        "linux: net/core/neighbour.c",
    ),
    Signature(
        "net.conntrack",
        r"nf_conntrack: (?:nf_conntrack: )?table full, dropping packet",
        "the firewall's table of connections is full, and packets are dropped",
        "a higher net.netfilter.nf_conntrack_max, or no connection tracking for the cluster's "
        "own traffic",
        "linux: net/netfilter/nf_conntrack_core.c",
    ),
    Signature(
        "net.ssl-certificate",
        r"CERTIFICATE_VERIFY_FAILED|certificate (?:verify failed|is not yet valid|has expired)"
        r"|SSL certificate problem",
        "a server's certificate is not trusted: the clock is wrong, ca-certificates are old, or "
        "a proxy is in between",
        "`timedatectl`; install ca-certificates; the proxy's certificate",
        "openssl; curl",
    ),
)
