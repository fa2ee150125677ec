"""`clusterctl reboot NAME`: reboot nodes, and wait until they are back as they were."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.app_context import AppContext, cluster_command, nodes_option
from clusterctl.cli.params import Duration, force_option, json_option, optional_indices_argument
from clusterctl.domain.errors import UsageError
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import HostOutcome, status_of
from clusterctl.domain.units import format_duration

if TYPE_CHECKING:
    from clusterctl.operations.reboot import Rebooted


class AtOnce(click.ParamType):
    """A number of nodes; `all` becomes 0."""

    name = "number"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, int):
            return value
        if value == "all":
            return 0
        if not re.fullmatch("[0-9]{1,9}", value) or not int(value):
            self.fail(f"not a number of nodes: {value!r}; write it as 1, 4 or all", param, ctx)
        return int(value)


@cluster_command()
@optional_indices_argument
@nodes_option
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Until they are back as they were."
)
@click.option(
    "--at-once", type=AtOnce(), metavar="N|all", help="So many nodes at a time. Default: 1."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(unit="m"),
    default="10m",
    show_default=True,
    help="How long to wait for each node: 30s, 5m.",
)
@force_option
@json_option("Reboots")
def reboot(
    app: AppContext,
    name: str,
    chosen: tuple[int, ...],
    indices: tuple[int, ...] | None,
    wait: bool,
    at_once: int | None,
    timeout_s: float,
    force: bool,
    as_json: bool,
) -> int:
    """Reboot the nodes INDEX... of cluster NAME, or all, the head node last.

    \b
    clusterctl reboot demo 2 3-5
    clusterctl reboot demo --at-once all --timeout 15m

    Nodes reboot one after another: if a reboot breaks something, only one node has it. A node is
    back when its boot id has changed, SSH answers, cloud-init has ended, and mounts and GPUs are
    there again. If a node does not come back, the remaining ones are not rebooted. `--at-once all`
    is quicker, for a cluster that is not in use. --no-wait reboots all at once, and does not wait.
    """
    from clusterctl.operations.reboot import RollingReboot
    from clusterctl.operations.reboot import reboot as reboot_nodes

    if chosen and indices is not None:
        raise UsageError("INDEX... and --nodes exclude each other", "give one of them")
    if at_once is not None and not wait:
        raise UsageError("--no-wait reboots all nodes at once", "leave out --at-once")
    course = _RebootProgress(as_json)
    with app.open(name) as access, course.interruptible():
        result = reboot_nodes(
            access,
            chosen or indices,
            # 0 (`all`) becomes None: no limit.
            rolling=RollingReboot(1 if at_once is None else at_once or None, timeout_s)
            if wait
            else None,
            force=force,
            on_sent=course.sent,
            on_outcome=course.ended,
        )
    if as_json:
        output.data(hostlines.data_of(result))
    else:
        hostlines.show_failures(course.untouched(result.failures))
    return status_of(result.failures)


class _RebootProgress:
    """Prints a line for each node whose reboot has ended; after an interrupt, which go on."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._under_way: dict[str, None] = {}
        self._back: list[str] = []

    def sent(self, host: str) -> None:
        self._under_way[host] = None

    def ended(self, outcome: HostOutcome[Rebooted]) -> None:
        self._under_way.pop(outcome.host, None)
        if outcome.value:
            self._back.append(outcome.host)
        if self._quiet or self.untouched([outcome]):
            return
        if outcome.value:
            after_s = outcome.value.back_after_s
            back = "rebooting" if after_s is None else f"back after {format_duration(after_s)}"
            output.line(f"{outcome.host}: {back}")
        else:
            hostlines.show_failures([outcome])

    @staticmethod
    def untouched(outcomes: list[HostOutcome[Rebooted]]) -> list[HostOutcome[Rebooted]]:
        """Return the outcomes of nodes that were not rebooted. They share one line at the end."""
        from clusterctl.operations.reboot import NotTouched

        return [outcome for outcome in outcomes if isinstance(outcome.error, NotTouched)]

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """After an interrupt, print which nodes still reboot, and which are back."""
        try:
            yield
        except KeyboardInterrupt:
            going, back = list(self._under_way), self._back
            output.note(
                (
                    f"rebooting; the command does not wait: {fold_hosts(going)}"
                    if going
                    else "none reboots"
                )
                + (f"; back: {fold_hosts(back)}" if back else "")
                + "; the others are as they were"
            )
            raise
