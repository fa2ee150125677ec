"""The one error family: what happened, and what to do about it.

Exit statuses (docs/exit-status.md): 1 the operation failed, 2 the request made
no sense, 255 a host could not be reached (as `ssh` and `clush` have it), 130 interrupted.
"""

from __future__ import annotations

import shlex


class ClusterctlError(Exception):
    """Anything a user is told about. `hint` is the next step, in the imperative."""

    exit_status = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(ClusterctlError):
    """The request makes no sense as it was given; nothing was done."""

    exit_status = 2


class MissingTool(ClusterctlError):
    """A program or a file that the work needs is not on this machine."""


class HostError(ClusterctlError):
    """Something about one host. `host` is its name as the user knows it.

    `is_off`: EC2 says that its instance does not run; to try again is of no use.
    """

    exit_status = 255
    is_off = False

    def __init__(self, host: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.host = host


class HostUnreachable(HostError):
    """No SSH connection: refused, no route, timed out, name not found, closed."""


class HostKeyUnknown(HostError):
    """The host shows a key and none is pinned for it."""


class HostKeyChanged(HostError):
    """The host shows another key than the pinned one."""


class KeyRefused(HostError):
    """The host accepts none of the user's keys."""


class CommandTimeout(HostError):
    """The command did not end before its deadline. The output so far is in `stdout`, `stderr`."""

    def __init__(self, host: str, message: str, stdout: str = "", stderr: str = "") -> None:
        super().__init__(host, message)
        self.stdout = stdout
        self.stderr = stderr


class ConnectionLost(HostError):
    """The host went away while a command was running on it."""


class CommandFailed(HostError):
    """A command that had to succeed did not."""

    exit_status = 1


class AwsError(ClusterctlError):
    """EC2 refused. `code` is AWS's error code, for example ``UnauthorizedOperation``."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class NoSuchCluster(ClusterctlError):
    """No instance carries this cluster's tag."""


class NotEnoughGpus(UsageError):
    """More GPUs asked for than the cluster has."""


class LabError(ClusterctlError):
    """The local EC2 could not be started or reached."""


def unquoted_home(path: str, home: str, option: str = "") -> str:
    """What to do about a ~ that the user's shell made their own `home` of; empty if it did not.

    `option` is the one to give the path with.
    """
    home = home.rstrip("/")
    if not home or not f"{path}/".startswith(f"{home}/"):
        return ""
    return (
        f"{home} is your home on this machine: quote the ~, so that the nodes' is meant: "
        f"{option}{' ' if option else ''}{shlex.quote('~' + path[len(home) :])}"
    )
