"""The same files to every host: one rsync per host, side by side."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass

from clusterctl.domain.errors import CommandTimeout, HostUnreachable, MissingTool

# https://download.samba.org/pub/rsync/rsync.1#EXIT_VALUES
_MEANING = {
    1: "rsync refused its arguments",
    3: "cannot use the source or the destination",
    10: "the connection broke",
    11: "could not write there",
    12: "the connection broke, or rsync is not installed there",
    23: "some files could not be copied",
    24: "some files vanished while they were copied",
    30: "nothing moved for too long",
}

_SAID_BY_SSH = re.compile(
    r"ssh: |Host key verification failed|.*Permission denied \(|Connection (closed|reset|timed)"
    r"|kex_exchange_identification|.*: Too many authentication failures|client_loop: "
)
# What has come of a file that is not whole yet: never under the file's own name.
PARTIAL = ".clusterctl-partial"


@dataclass(frozen=True)
class CopyJob:
    """SRC to one host. `remote` is what rsync dials (an address or ssh_config name)."""

    host: str
    remote: str
    ssh: tuple[str, ...]
    source: str
    destination: str

    def argv(self) -> list[str]:
        """The whole rsync command line."""
        return [
            *("rsync", "--archive", f"--partial-dir={PARTIAL}", "--mkpath", "--stats"),
            *("--no-human-readable", "--protect-args", "--timeout=60"),
            *("-e", shlex.join(self.ssh), "--"),
            local_path(self.source),
            f"{_bracketed(self.remote)}:{remote_path(self.destination)}",
        ]


@dataclass(frozen=True)
class CopyReport:
    """What one rsync did. `sent_bytes` is the size of the files that were transferred."""

    host: str
    exit_status: int
    files: int
    sent_bytes: int
    duration_s: float
    message: str = ""


def remote_path(path: str) -> str:
    """`~/data` for rsync, which starts in the home folder and expands nothing."""
    if path in ("~", "~/", ""):
        return "."
    return path[2:] if path.startswith("~/") else path


def local_path(path: str) -> str:
    """A source that rsync does not take for HOST:PATH."""
    return f"./{path}" if ":" in path.partition("/")[0] else path


def _bracketed(remote: str) -> str:
    user, at, address = remote.rpartition("@")
    return f"{user}{at}[{address}]" if ":" in address else remote


def require_rsync() -> None:
    """Raises MissingTool when rsync is not installed here."""
    if not shutil.which("rsync"):
        raise MissingTool("rsync is not installed on this machine", "sudo apt-get install rsync")


def copy_to_host(job: CopyJob, timeout_s: float | None = None) -> CopyReport:
    """Run one rsync to its end. Raises HostUnreachable, CommandTimeout."""
    began = time.monotonic()
    process = subprocess.Popen(
        job.argv(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise CommandTimeout(job.host, f"the copy did not end within {timeout_s:g} s") from None
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate()
    complaint = stderr.decode(errors="replace")
    if unreachable(process.returncode, complaint):
        raise HostUnreachable(job.host, _ssh_line(complaint) or "ssh found no connection")
    files, sent_bytes = parse_stats(stdout.decode(errors="replace"))
    return CopyReport(
        host=job.host,
        exit_status=process.returncode,
        files=files,
        sent_bytes=sent_bytes,
        duration_s=time.monotonic() - began,
        message=explain(process.returncode, complaint),
    )


def parse_stats(text: str) -> tuple[int, int]:
    """Files and bytes transferred, from `rsync --stats`; zeros where it did not get so far."""
    numbers = []
    for label in ("Number of regular files transferred", "Total transferred file size"):
        match = re.search(rf"^{label}: ([\d,.]+)", text, re.MULTILINE)
        numbers.append(int(re.sub(r"\D", "", match[1])) if match else 0)
    return numbers[0], numbers[1]


def explain(exit_status: int, complaint: str) -> str:
    """One line for a failed rsync: its first complaint, and what its exit status means."""
    if exit_status == 0:
        return ""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("rsync:")), lines[0] if lines else "")
    meaning = _MEANING.get(exit_status, f"rsync ended with status {exit_status}")
    return f"{meaning}: {said}" if said else meaning


def unreachable(exit_status: int, complaint: str) -> bool:
    """Whether ssh failed. rsync ends with 12 if it sees the closed pipe before ssh's status."""
    return exit_status == 255 or (exit_status == 12 and bool(_ssh_line(complaint)))


def _ssh_line(complaint: str) -> str:
    lines = [line.strip() for line in complaint.splitlines()]
    return next((line for line in lines if _SAID_BY_SSH.match(line)), "")
