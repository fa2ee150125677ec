"""Start and inspect a lab, and log in to its hosts."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from clusterctl.cli.main import cli, run_command
from clusterctl.lab.record import ACCOUNTS, LabRecord, read_record
from tests.changes import CHECKOUT

DLAMI_OWNER = "898082745236"
# The program as users type it: the hints of `python -m clusterctl` begin with these words.
CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))

# Waits for a process to end, and stops the lab of a home.
STOP_WITH_TESTS = """
import contextlib, os, select, sys
from pathlib import Path
with contextlib.suppress(ProcessLookupError):
    select.select([os.pidfd_open(int(sys.argv[1]))], [], [])
from clusterctl.lab import lifecycle, record
running = record.read_record(Path(sys.argv[2]))
if running:
    lifecycle.stop(running)
"""


def why_no_lab() -> str:
    """Return why this machine cannot run a lab, or "" if it can."""
    if not Path("/usr/sbin/sshd").exists():
        return "no OpenSSH server on this machine"
    probe = subprocess.run(
        ["unshare", "--user", "--map-root-user", "true"], check=False, capture_output=True
    )
    return "no user namespaces on this machine" if probe.returncode else ""


class LabHome:
    """A CLUSTERCTL_HOME with a lab."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *arguments: str) -> int:
        """Run `clusterctl lab ...` for this home. Return its exit status."""
        before = os.environ.get("CLUSTERCTL_HOME")
        os.environ["CLUSTERCTL_HOME"] = str(self.path)
        try:
            return run_command(cli, ["lab", *arguments])
        finally:
            del os.environ["CLUSTERCTL_HOME"]
            if before is not None:
                os.environ["CLUSTERCTL_HOME"] = before

    def start(self) -> LabRecord:
        assert self.run("start") == 0
        record = read_record(self.path)
        assert record is not None
        return record

    def stop(self) -> None:
        """Stop the lab, with the clusters that a failed test has left in it."""
        assert self.run("stop", "--yes") == 0
        assert read_record(self.path) is None

    def processes(self) -> dict[int, str]:
        """Return {pid: role} of all processes of the lab, including those of hosts."""
        record = read_record(self.path)
        return descendants(record.pid) if record else {}


@contextlib.contextmanager
def home_of_lab(path: Path) -> Iterator[LabHome]:
    """Yield a LabHome, and stop its lab in the end, or when this process is killed."""
    guard = [sys.executable, "-c", STOP_WITH_TESTS, str(os.getpid()), str(path)]
    quiet = subprocess.DEVNULL
    with (
        subprocess.Popen(
            guard, cwd=CHECKOUT, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        ) as watching,
        contextlib.ExitStack() as at_the_end,
    ):
        at_the_end.callback(watching.kill)
        home = LabHome(path)
        at_the_end.callback(home.stop)
        yield home


def descendants(root: int) -> dict[int, str]:
    """Return {pid: start time} of a process and its descendants. Pids are reused, so both count."""
    stats = {int(path.name): _stat(path) for path in Path("/proc").glob("[0-9]*")}
    found = {root}
    while (
        more := {pid for pid, stat in stats.items() if stat[1:2] and int(stat[1]) in found} - found
    ):
        found |= more
    return {pid: stats[pid][19] for pid in found if stats.get(pid)}


def processes_of_hosts(record: LabRecord) -> set[int]:
    """Return the lab's processes that belong to a host, not to the API or the daemon."""
    found = {pid: _command(pid) for pid in descendants(record.pid) if pid != record.pid}
    return {pid for pid, command in found.items() if command and "daemon/__main__" not in command}


def shared_with_hosts(record: LabRecord) -> set[str]:
    """Return the sockets and pipes that processes of hosts share with the lab's own processes.

    With the daemon's control socket, root on a host would be root of the lab.
    """
    everything, hosts = set(descendants(record.pid)), processes_of_hosts(record)
    of_hosts, own = _open_files(hosts), _open_files(everything - hosts)
    assert of_hosts
    assert own
    return {name for name in of_hosts & own if "[" in name}


def real_uids(pids: set[int]) -> set[int]:
    """Return the user ids of these processes, as this machine sees them."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            status = Path(f"/proc/{pid}/status").read_text()
            found.add(int(status.partition("\nUid:")[2].split()[0]))
    return found


def _command(pid: int) -> str:
    """Return the command line of a process, or "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _open_files(pids: set[int]) -> set[str]:
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            found |= {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()}
    return found


def remaining_of(record: LabRecord, processes: dict[int, str], patience_s: float = 10) -> list[str]:
    """Return what remains of a lab that ended: processes, its link, mounts of its home."""
    deadline = time.monotonic() + patience_s
    while (left := _left(record, processes)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _left(record: LabRecord, processes: dict[int, str]) -> list[str]:
    left = [f"process {pid}" for pid, began in processes.items() if _alive(pid, began)]
    if record.link and Path("/sys/class/net", record.link).exists():
        left.append(f"link {record.link}")
    mounts = Path("/proc/self/mountinfo").read_text()
    return left + [line for line in mounts.splitlines() if "/run/lab" in line]


def _alive(pid: int, began: str) -> bool:
    stat = _stat(Path(f"/proc/{pid}"))
    return bool(stat) and stat[19] == began and stat[0] != "Z"


def _stat(process: Path) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent, .... Empty if it ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def keys_of(record: LabRecord, account: str = ACCOUNTS[0]) -> dict[str, str]:
    """Return boto3's arguments to use one of the lab's accounts."""
    asked = account_of(record, account)
    return {"aws_access_key_id": asked.access_key, "aws_secret_access_key": asked.secret_key}


def account_of(record: LabRecord, account: str = ACCOUNTS[0]):
    """Return the Account for clusterctl's own clients to use one of the lab's accounts."""
    from clusterctl.ec2.session import Account

    told = record.environment_of(account)
    return Account(
        region=record.region,
        endpoint_url=record.endpoint_url,
        access_key=told["AWS_ACCESS_KEY_ID"],
        secret_key=told["AWS_SECRET_ACCESS_KEY"],
    )


def client(
    record: LabRecord,
    region: str | None = None,
    service: str = "ec2",
    account: str = ACCOUNTS[0],
    **more,
):
    """Return a client of the lab that uses no other configuration."""
    import boto3

    return boto3.client(
        service,
        region_name=region or record.region,
        endpoint_url=record.endpoint_url,
        **keys_of(record, account),
        **more,
    )


def signed_headers(record: LabRecord, body: bytes, service: str, path: str, method: str, headers):
    """Return the headers of a request that is made by hand and signed by the first account."""
    from botocore.auth import S3SigV4Auth, SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    asked = account_of(record)
    request = AWSRequest(method, record.endpoint_url + path, dict(headers), body)
    signer = S3SigV4Auth if service == "s3" else SigV4Auth
    signer(Credentials(asked.access_key, asked.secret_key), service, "us-east-1").add_auth(request)
    return dict(request.headers.items())


def once_client(record: LabRecord, service: str = "ec2", attempts: int = 1):
    """Return a client of the lab that makes `attempts` attempts at a request."""
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": attempts}
    config = Config(retries=retries, max_pool_connections=32, read_timeout=120)
    return client(record, service=service, config=config)


def make_profile(iam, name: str) -> str:
    """Make an instance profile with a role, and wait until EC2 knows it. Return its ARN."""
    from clusterctl.lab.ec2.options import KNOWN_AFTER_S  # imports moto

    allowed = {"Effect": "Allow", "Action": "sts:AssumeRole"}
    trust = {"Version": "2012-10-17", "Statement": [allowed]}
    # Test files of one worker share its lab: another file may have made it.
    with contextlib.suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))
        iam.create_instance_profile(InstanceProfileName=name)
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    made = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    known_at = made["CreateDate"].timestamp() + KNOWN_AFTER_S
    wait_until(lambda: time.time() > known_at, "EC2 to know the profile")
    return made["Arn"]


def newest_image(ec2) -> str:
    images = ec2.describe_images(Owners=[DLAMI_OWNER])["Images"]
    return max(images, key=lambda image: image["CreationDate"])["ImageId"]


def shown(ec2, ids):
    """Return whether EC2 shows all of these instances."""
    try:
        return bool(ec2.describe_instances(InstanceIds=ids)["Reservations"])
    except ec2.exceptions.ClientError as refused:
        assert refused.response["Error"]["Code"] == "InvalidInstanceID.NotFound"
        return False


def make_key(folder: Path, name: str) -> Path:
    key = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    return key


def wait_until(true, what: str, timeout_s: float = 240):
    """Return the first true value of `true()`. Fail with `what` at the deadline.

    The deadline is long: test machines are busy, and it costs time only if a test fails. The pause
    between two calls is as long as a call takes, and longer in a long wait: without, a call that is
    a whole command would keep a processor busy.
    """
    start = time.monotonic()
    while (began := time.monotonic()) < start + timeout_s:
        value = true()
        if value:
            return value
        ended = time.monotonic()
        time.sleep(min(1.0, max(0.03, ended - began, (ended - start) / 50)))
    raise AssertionError(f"not within {timeout_s} s: {what}")


def ssh(
    record: LabRecord,
    key: Path,
    address: str,
    command: str,
    user: str = "ubuntu",
    timeout_s: float = 240,
    given: str | None = None,
):
    """Run a command on a host, by the system's ssh. `given` is its standard input."""
    options = ["IdentitiesOnly=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"]
    options += ["LogLevel=ERROR", "BatchMode=yes", "ConnectTimeout=20"]
    if record.proxy_command:
        options += ["ProxyCommand=" + shlex.join(record.proxy_command), "ProxyUseFdpass=yes"]
    flags = [flag for option in options for flag in ("-o", option)]
    argv = ["ssh", "-F", "/dev/null", "-i", str(key), *flags, f"{user}@{address}", command]
    return subprocess.run(
        argv, check=False, capture_output=True, text=True, timeout=timeout_s, input=given
    )
