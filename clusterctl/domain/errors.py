"""The errors that clusterctl raises: each has a message and a hint about what to do.

Exit statuses (docs/exit-status.md): 1 the operation failed, 2 the request made no sense, 255 a host
could not be reached (`ssh` and `clush` use 255 too), 130 interrupted.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any


class ClusterctlError(Exception):
    """Base class of all errors that are shown to users.

    `hint` is the next step in the imperative, or empty. `findings` are those of the checks that
    refuse the request; commands print them before the message.
    """

    exit_status = 1
    findings: Sequence[Any] = ()

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """The message and the first error among the findings: what Python's traceback shows."""
        wrong = (one for one in self.findings if one.severity.value == "error")
        first = [f"{one.host}: {one.message}" if one.host else one.message for one in wrong][:1]
        return "; ".join([self.message, *first])


class Interrupted(KeyboardInterrupt):
    """A Ctrl-C with a text for the user: what may go on. The text of any other KeyboardInterrupt is
    not ours; some codecs of Python give it one."""


class UsageError(ClusterctlError):
    """The request makes no sense, and nothing was done."""

    exit_status = 2


class MissingTool(ClusterctlError):
    """A required program or file is missing on this machine."""


class HostError(ClusterctlError):
    """An error of one host. `host` is its name as the user knows it.

    `is_off` is set if EC2 reports that its instance does not run, so that a retry is of no use, and
    `is_gone` if that is for good: its disk is gone as well.
    """

    exit_status = 255
    is_off = False
    is_gone = False

    def __init__(self, host: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.host = host


class HostUnreachable(HostError):
    """No SSH connection: refused, no route, timed out, name not found, closed."""


class HostKeyUnknown(HostError):
    """The host shows a host key, and no key is known for it."""


class HostKeyChanged(HostError):
    """The host shows a host key other than the known one."""


class KeyRefused(HostError):
    """The host accepts none of the user's keys."""


class CommandTimeout(HostError):
    """The command did not end before its deadline. The output so far is in `stdout`, `stderr`."""

    def __init__(
        self, host: str, message: str, stdout: str = "", stderr: str = "", hint: str = ""
    ) -> None:
        super().__init__(host, message, hint)
        self.stdout = stdout
        self.stderr = stderr


class ConnectionLost(HostError):
    """The connection was lost while a command was running on the host."""


class CommandFailed(HostError):
    """A command that had to succeed ended with an error."""

    exit_status = 1


# How the errors begin of what comes before a host is contacted.
UNKNOWN_NAME, PROXY_ENDED = "its name is not known", "its ProxyCommand ended"
LOGIN_FILES = (
    "sshd runs commands in the login shell, whose files may not end or replace it, read stdin, or "
    "send the output elsewhere: see ~/.bashrc there (for zsh ~/.zshenv, for fish "
    "~/.config/fish/config.fish, for tcsh ~/.tcshrc)"
)


# What nologin and restricted shells print.
_NO_COMMANDS = re.compile("account is (currently )?not available|: restricted(:|$)")


class CommandNotRun(CommandFailed):
    """The user's login shell or files keep commands from running, or disturb their output."""

    exit_status = 255

    def __init__(self, host: str, message: str) -> None:
        is_limited = _NO_COMMANDS.search(message)
        hint = LOGIN_FILES
        if is_limited:
            hint = "this account takes no commands: log in as another user"
        elif message.endswith("ended before the command, with 1"):  # and has printed nothing
            hint = f"if its login shell is /bin/false, log in as another user; else {LOGIN_FILES}"
        super().__init__(host, message, hint)


class AwsError(ClusterctlError):
    """AWS refused a call. `code` is AWS's error code, for example ``UnauthorizedOperation``."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class NotFound(ClusterctlError):
    """AWS or the nodes were asked for what the request names, and it is not there."""


class NoSuchCluster(NotFound):
    """No instance carries this cluster's tag."""


def no_such_cluster(name: str, region: str = "") -> NoSuchCluster:
    """Return the error for a cluster without instances, in `region` if it is given."""
    return NoSuchCluster(
        f"there is no cluster {name}" + (f" in {region}" if region else ""),
        f"see `clusterctl list`, or launch it: clusterctl up {name} --nodes N --instance-type TYPE",
    )


class NotEnoughGpus(UsageError):
    """The user requested more GPUs than the cluster has."""


class LabError(ClusterctlError):
    """The local EC2 could not be started or reached."""


def unquoted_home(word: str, home: str, option: str = "") -> str:
    """Return a hint for a word with a path below `home`: the user's shell has probably expanded a
    ~.

    Paths on the nodes need the nodes' home folder instead. `word` is the path, NAME=PATH or a
    command, and `option` the command's option for it, for example `--data-dir`. The hint is empty
    for a word without a path below `home`.
    """
    meant = with_tilde(word, home)
    if meant == word:
        return ""
    return (
        f"{home.rstrip('/')} is your home on this machine: quote the ~, so that the nodes' is "
        f"meant: {option}{' ' if option else ''}{shlex.quote(meant)}"
    )


def with_tilde(text: str, home: str) -> str:
    """Return the text with `~` for `home` where a path begins with it."""
    home = home.rstrip("/")
    return re.sub(rf"(?<![\w./~-]){re.escape(home)}(?![\w.-])", "~", text) if home else text


def check_home(path: str) -> None:
    """Raise UsageError for a path that begins with `~USER`: on a node, `~` is the own home only."""
    if path.startswith("~") and path[1:2] not in ("", "/"):
        raise UsageError(
            f"only your own home folder can be meant by ~, not {path!r}", "give the whole path"
        )


# Folders that a node or its programs need, by their names. Home folders are among them because no
# login would be possible without `.ssh`. This only finds the obvious before any connection: each
# node checks where a path leads (clusterctl.node.relay.protect).
_NODES_OWN = re.compile(
    r"~|\.|//?|/+(bin|boot|dev|etc|home(/[^/]+)?|lib\w*|opt|proc|root|run|sbin|sys|tmp|usr|var(/+tmp)?)"
    r"|(.*/)?\.(ssh|clusterctl)(/.*)?"
)


def is_needed_by_nodes(path: str) -> bool:
    """Return whether a path, absolute or below the home folder, is plainly a folder that a node
    needs: one for results, or for a mirror of data, it is not."""
    where = posixpath.normpath(path)
    return where.startswith("..") or bool(_NODES_OWN.fullmatch(where))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean nodes?` for a word close to a known one, else an empty text."""
    # Imported here: most runs need no suggestion.
    import difflib

    close = difflib.get_close_matches(word[:100].replace("_", "-"), list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""
