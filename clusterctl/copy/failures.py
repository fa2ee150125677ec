"""Errors that explain to the user why a node did not get all of the data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from clusterctl.copy.topology import SOURCE
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    CommandTimeout,
    ConnectionLost,
    HostError,
    MissingTool,
    UsageError,
    unquoted_home,
)
from clusterctl.domain.results import last_line, python_lacking
from clusterctl.node.relay.messages import Failed, printable

AGAIN = "run the same copy again: it goes on where it stopped"


def failure_of(host: str, event: Failed) -> ClusterctlError:
    """Return the error for a relay's `Failed` event."""
    why, hint = printable(event.why) or "it gave no reason", printable(event.hint)
    if host == SOURCE and event.kind in ("usage", "source"):
        return UsageError(why, hint or "name an existing file or folder")
    hint = hint or AGAIN * (event.kind == "lost")
    if host == SOURCE:
        return ClusterctlError(why, hint)
    return CommandFailed(host, why, hint)


def named_twice(host: str, event: Failed, other: str) -> ClusterctlError:
    """Return the error for a host whose destination is busy, on the machine of another host.

    It may be busy by the copy to the other host, or by a copy of someone else.
    """
    hint = "name each machine once, or wait for the other copy to end"
    return CommandFailed(host, f"it is the same machine as {other}: {printable(event.why)}", hint)


def with_unquoted_home(hint: str, why: str, paths: Iterable[str]) -> str:
    """Return the hint, extended if a path for the nodes is below the home folder on this machine.

    The user's shell has then replaced an unquoted `~`. Only errors that name the path, and
    permission errors are extended. These may name a parent folder that the node could not make.
    """
    denied, home = "Permission denied" in why, str(Path.home())
    tildes = [unquoted_home(path, home) for path in paths if denied or path in why]
    found = next(filter(None, tildes), "")
    return "; or ".join(filter(None, [hint, found]))


def died(host: str) -> ClusterctlError:
    """Return the error for a relay whose channel closed for an unknown reason."""
    if host == SOURCE:
        return ClusterctlError("it exited without an error message", AGAIN)
    return ConnectionLost(host, "the relay on it exited without an error message", AGAIN)


def not_responding_error(host: str, limit_s: float, listened: bool) -> ClusterctlError:
    """Return the error for a relay that sent nothing for `limit_s` seconds.

    `listened`: it had reported before that it listens.
    """
    what = f"sent nothing for {limit_s:g} s (frozen, or cut off)"
    if not listened:
        what = f"python3 did not start there within {limit_s:g} s"
    hint = AGAIN if listened else ""
    return ClusterctlError(what, hint) if host == SOURCE else _timeout(host, what, hint)


def no_data_error(host: str, limit_s: float, cut: str) -> ClusterctlError:
    """Return the error for a relay that responds but gets no data.

    `cut` is why it has no connection to its upstream; empty if it has one.
    """
    why = f"its connections fail: {cut}" if cut else "though there was data for it"
    return _timeout(host, f"got nothing for {limit_s:g} s: {why}")


def damaged_error(host: str, times: int) -> ClusterctlError:
    """Return the error for a node to which the same blocks come damaged again and again."""
    return CommandFailed(
        host,
        f"blocks came damaged {times} times, and none came whole in between",
        "a file that is rewritten all the time, or a machine's memory or network card: copy again "
        "when SRC does not change; check dmesg there and here",
    )


def hung_error(host: str, step: str, path: str, for_s: float) -> ClusterctlError:
    """Return the error for a relay that responds, but hangs in a step with a file."""
    what = f"it hangs {step} {printable(path)}: nothing went on for {for_s:.0f} s"
    hint = f"check that disk or file system (dmesg, df); then {AGAIN}"
    return ClusterctlError(what, hint) if host == SOURCE else _timeout(host, what, hint)


def unreachable_error(host: str, tried: Mapping[str, str]) -> ClusterctlError:
    """Return the error for a node that can pull from no relay. `tried` maps names to reasons."""
    names = [SOURCE, *[name for name in tried if name != SOURCE][:5]]
    why = tried.get(SOURCE) or next(iter(tried.values()), "")
    return CommandFailed(
        host,
        f"cannot connect to {' or '.join(names)}: {why}",
        "TCP between the nodes is blocked: open it in the security group or firewall, "
        "or choose a port that is open with --port",
    )


def source_died(host: str, error: ClusterctlError | None) -> ClusterctlError:
    """Return the error for a node whose source died. `error` is the source's, if known."""
    if error is None:
        return CommandFailed(host, "the source died", AGAIN)
    where = f" on {error.host}" if isinstance(error, HostError) else ""
    if error.hint == AGAIN:
        return CommandFailed(host, f"the source{where} died: {error.message}", AGAIN)
    message = f"the source{where}: {error.message}" if where else error.message
    return CommandFailed(host, message, error.hint)


def out_of_time(host: str, timeout_s: float) -> ClusterctlError:
    """Return the error for a node that was not done within the user's --timeout."""
    return _timeout(host, f"the copy did not end within {timeout_s:g} s")


def _timeout(host: str, what: str, hint: str = AGAIN) -> CommandTimeout:
    error = CommandTimeout(host, what)
    error.hint = hint
    return error


def ended_early(host: str, exit_status: int, stderr: str, spoke: bool) -> ClusterctlError:
    """Return the error for a relay whose process ended without an order to.

    `spoke`: it had sent an event.
    """
    complaint = printable(last_line(stderr))
    lacking = None if spoke else python_lacking(exit_status, complaint)
    if lacking:
        return MissingTool(*lacking) if host == SOURCE else CommandFailed(host, *lacking)
    if exit_status in (137, 139, 134):  # 128 plus SIGKILL, SIGSEGV and SIGABRT
        return CommandFailed(host, f"the relay on it was killed (exit status {exit_status})", AGAIN)
    return CommandFailed(host, f"the relay on it ended with exit status {exit_status}: {complaint}")
