"""`clusterctl bench NAME`: how training scales on a cluster."""

from __future__ import annotations

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.domain.errors import UsageError
from clusterctl.domain.units import count


@click.command(cls=ClusterCommand)
@click.argument("name")
@click.option("--gpus", metavar="N,N...", help="The sizes to measure: 1,8,16,32.")
@account_options
def bench(app: AppContext, name: str, gpus: str | None) -> int:
    """Measure how training scales on cluster NAME.

    \b
    clusterctl bench demo --gpus 1,8,16,32
    """
    from clusterctl.bench.plan import Settings, order, parse_sizes

    if not gpus:
        raise UsageError("which sizes?", f"say them: clusterctl bench {name} --gpus 1,8")
    keys = order(Settings(name), parse_sizes(gpus), repeats=3, seed=0)
    output.table(("GPUS", "DATA", "REPEAT"), [(key.gpus, key.data, key.repeat) for key in keys])
    output.note(f"{count(len(keys), 'run')} in this order")
    return 0
