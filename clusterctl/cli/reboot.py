"""`clusterctl reboot NAME`: reboot nodes, and wait until they are back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.params import Duration, Indices
from clusterctl.cli.wiring import Wiring, account_options
from clusterctl.domain.units import format_duration

if TYPE_CHECKING:
    from clusterctl.domain.results import HostOutcome
    from clusterctl.operations.reboot import Rebooted


@click.command()
@click.argument("name")
@click.option("--nodes", "indices", type=Indices(), help="Only these nodes: 0-3,5.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until they are back.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(),
    default="10m",
    show_default=True,
    help="How long to wait for each node: 30s, 5m.",
)
@click.option("--force", is_flag=True, help="Even while a job runs.")
@click.option("--json", "as_json", is_flag=True, help="Outcomes as JSON.")
@account_options
def reboot(
    wiring: Wiring,
    name: str,
    indices: tuple[int, ...] | None,
    wait: bool,
    timeout_s: float,
    force: bool,
    as_json: bool,
) -> int:
    """Reboot the nodes of cluster NAME, the head node last.

    \b
    clusterctl reboot demo
    clusterctl reboot demo --nodes 0-3,5 --timeout 15m

    A node is back when its boot id is another one and SSH answers.
    """
    from clusterctl.operations.reboot import exit_status_of
    from clusterctl.operations.reboot import reboot as reboot_nodes

    def show(outcome: HostOutcome[Rebooted]) -> None:
        if as_json:
            return
        if outcome.value:
            after_s = outcome.value.back_after_s
            back = "rebooting" if after_s is None else f"back after {format_duration(after_s)}"
            output.line(f"{outcome.host}: {back}")
        else:
            hostlines.show_failures([outcome])

    with wiring.open(name) as access:
        result = reboot_nodes(
            access, indices, wait=wait, timeout_s=timeout_s, force=force, on_outcome=show
        )
    if as_json:
        output.data([_as_data(outcome) for outcome in result.outcomes])
    return exit_status_of(result)


def _as_data(outcome: HostOutcome[Rebooted]) -> dict[str, Any]:
    if outcome.value is None:
        return hostlines.failure_data(outcome)
    return {"host": outcome.host, "back_after_s": outcome.value.back_after_s}
