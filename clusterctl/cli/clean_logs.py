"""`clusterctl clean-logs NAME`: remove the logs and checkpoints of past runs."""

from __future__ import annotations

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.wiring import Wiring, account_options
from clusterctl.domain.units import format_bytes


@click.command(name="clean-logs")
@click.argument("name")
@click.option("--jobs", is_flag=True, help="The logs of ended jobs too (clusterctl logs).")
@click.option("--dry-run", is_flag=True, help="Show what would go, and remove nothing.")
@click.option("--force", is_flag=True, help="Even while a job runs.")
@click.option("--json", "as_json", is_flag=True, help="What was removed as JSON.")
@account_options
def clean_logs(
    wiring: Wiring, name: str, jobs: bool, dry_run: bool, force: bool, as_json: bool
) -> int:
    """Remove the trainer's log folders, checkpoints included, on every node of cluster NAME.

    \b
    clusterctl clean-logs demo --dry-run
    clusterctl clean-logs demo --jobs

    These are ~/imagenet_resnet and ~/examples/horovod/tensorflow/imagenet_resnet.
    """
    from clusterctl.operations.clean_logs import clean_logs as clean

    with wiring.open(name) as access:
        result = clean(access, jobs, dry_run, force)
    if as_json:
        output.data(
            [
                {"host": node.host, "freed_bytes": node.freed_bytes, "folders": dict(node.removed)}
                for node in result.values
            ]
        )
    verb = "would free" if dry_run else "freed"
    for node in result.values:
        folders = f"{len(node.removed)} folder{'' if len(node.removed) == 1 else 's'}"
        if not as_json:
            output.line(f"{node.host}: {verb} {format_bytes(node.freed_bytes)} ({folders})")
        for sentence in node.failed:
            output.note(f"error: {node.host}: not removed: {sentence}")
    hostlines.show_failures(result.failures)
    if result.failures:
        return 255
    return int(any(node.failed for node in result.values))
