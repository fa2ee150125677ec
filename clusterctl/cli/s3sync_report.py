"""The output of a sync: its start, state, log and end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from clusterctl.cli import hostlines, output
from clusterctl.copy.s3sync import SyncRecord, SyncState
from clusterctl.domain.errors import UsageError
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import FanoutResult
from clusterctl.domain.units import format_bytes, format_duration
from clusterctl.operations.s3sync import StartedSync, follow_sync, latest
from clusterctl.transport.connections import Connections
from clusterctl.transport.target import Target


def show_started(started: StartedSync, name: str, as_json: bool) -> int:
    """Print where the sync runs and how to follow and end it; return the exit status so far."""
    hosts = [outcome.host for outcome in started.nodes.outcomes if outcome.value]
    if hosts:
        output.note(f"sync {started.sync_id} runs on {fold_hosts(hosts)}, by {started.how}")
        output.note(f"  how far:   clusterctl s3sync {name} --status")
        output.note(f"  follow it: clusterctl s3sync {name} --follow")
        output.note(f"  end it:    clusterctl s3sync {name} --cancel")
    if as_json:
        output.data({"id": started.sync_id, "how": started.how, "hosts": hosts})
    hostlines.show_failures(started.nodes.failures)
    return started.nodes.failure_status


def latest_or_raise(
    listed: FanoutResult[list[SyncRecord]], name: str, asked: str | None = None
) -> str:
    """Return the id of the latest sync. `asked`: the only id that was listed.

    Raises UsageError if there is none, HostError if none was found and a node did not answer.
    """
    sync_id = latest(listed)
    for failure in listed.failures if sync_id is None else ():
        assert failure.error
        raise failure.error
    if sync_id is None and asked:
        raise UsageError(
            f"no sync {asked} has run on {name}", f"the latest: clusterctl s3sync {name} --status"
        )
    if sync_id is None:
        raise UsageError(
            f"no sync has run on {name}", f"start one: clusterctl s3sync {name} s3://BUCKET DST"
        )
    return sync_id


def hosts_of(listed: FanoutResult[list[SyncRecord]], sync_id: str) -> set[str]:
    """Return the hosts that have this sync, and those that did not answer."""
    having = {one.host for records in listed.values for one in records if one.sync_id == sync_id}
    return having | {failure.host for failure in listed.failures}


def show_records(listed: FanoutResult[list[SyncRecord]], as_json: bool) -> int:
    """Print one line per node; return 1 if one failed, 255 if one did not answer, else 0."""
    records = [record for records in listed.values for record in records]
    if as_json:
        _print_json(records, listed)
    else:
        output.table(
            ("NODE", "STATE", "FILES", "BYTES", "RATE", "TIME", "BY", "DST"),
            [_row(record) for record in records],
        )
        hostlines.show_reasons(_reasons(records))
    hostlines.show_failures(listed.failures)
    return max(_status(records), listed.failure_status)


def show_cancelled(ended: FanoutResult[list[SyncRecord]], as_json: bool) -> int:
    """Print how the sync ended on each node; return 1 if one still runs, 255 if one is silent."""
    records = [record for records in ended.values for record in records]
    if as_json:
        _print_json(records, ended)
    else:
        for text, same in _by_text(records, _end_of):
            output.line(f"{fold_hosts([record.host for record in same])}: {text}")
    hostlines.show_failures(ended.failures)
    still = any(record.running for record in records)
    return max(int(still), ended.failure_status)


def follow(
    connections: Connections, targets: Sequence[Target], name: str, sync_id: str, as_json: bool
) -> int:
    """Show the logs until the sync has ended on all nodes.

    Return its exit status, or 130 after Ctrl-C, which does not end the sync.
    """
    lines = hostlines.HostLines()

    def show(host: str, text: bytes) -> None:
        lines.take(host, "stderr" if as_json else "stdout", text)

    try:
        result = follow_sync(connections, targets, sync_id, show)
    except KeyboardInterrupt:
        output.note(f"\nno longer following: sync {sync_id} goes on")
        output.note(f"  follow it: clusterctl s3sync {name} --follow")
        return output.INTERRUPTED
    records = result.values
    if as_json:
        _print_json(records, result)
    for text, same in _by_text(records, lambda record: record.shown_state):
        took = format_duration(max(record.duration_s for record in same))
        output.note(f"{fold_hosts([record.host for record in same])}: {text} after {took}")
    hostlines.show_reasons(_reasons(records))
    hostlines.show_failures(result.failures)
    return max(_status(records), result.failure_status)


def _print_json(records: Sequence[SyncRecord], result: FanoutResult[Any]) -> None:
    failures = [hostlines.failure_data(failure) for failure in result.failures]
    output.data([record.as_data() for record in records] + failures)


def _by_text(
    records: Sequence[SyncRecord], text_of: Callable[[SyncRecord], str]
) -> list[tuple[str, list[SyncRecord]]]:
    groups: dict[str, list[SyncRecord]] = {}
    for record in records:
        groups.setdefault(text_of(record), []).append(record)
    return list(groups.items())


def _end_of(record: SyncRecord) -> str:
    return record.shown_state if record.was_running else "nothing runs there"


def _row(record: SyncRecord) -> tuple[object, ...]:
    files = "-" if record.files is None else f"{record.files}/{record.total_files}"
    if record.present:
        files += f", {record.present} were there"
    size = "-"
    if record.bytes is not None and record.total_bytes is not None:
        size = f"{format_bytes(record.bytes)} of {format_bytes(record.total_bytes)}"
    rate = "-" if record.rate is None else f"{format_bytes(record.rate)}/s"
    took = format_duration(record.duration_s)
    return (
        record.host,
        record.shown_state,
        files,
        size,
        rate,
        took,
        record.how,
        record.destination,
    )


def _reasons(records: Sequence[SyncRecord]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield host, message and hint of each sync that failed."""
    for record in records:
        if record.state is SyncState.LOST:
            gone = "its process is gone: was the node rebooted?"
            yield record.host, (gone, "start it again")
        elif record.state in (SyncState.FAILED, SyncState.INCOMPLETE):
            yield record.host, (record.why, record.hint)


def _status(records: Sequence[SyncRecord]) -> int:
    over = (SyncState.RUNNING, SyncState.SUCCEEDED)
    return int(any(record.state not in over for record in records))
