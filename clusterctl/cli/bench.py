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
@click.option("--network", is_flag=True, help="Measure the network between the nodes, no GPUs.")
@click.option(
    "--streams",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="With --network: connections of a pair at once.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    show_default=True,
    help="With --network: how long each of a pair's four rates is measured.",
)
@click.option("--force", is_flag=True, help="Even while a job runs.")
@click.option("--json", "as_json", is_flag=True, help="All figures as JSON.")
@click.option("--plot", metavar="FILE", help="Draw a picture: .png, .svg or .pdf.")
@account_options
def bench(
    app: AppContext,
    name: str,
    gpus: str | None,
    network: bool,
    streams: int,
    seconds: float,
    force: bool,
    as_json: bool,
    plot: str | None,
) -> int:
    """Measure how training scales on cluster NAME, or what its network carries.

    \b
    clusterctl bench demo --gpus 1,8,16,32
    clusterctl bench demo --network --plot network.png
    """
    from clusterctl.bench.plan import Settings, order, parse_sizes

    if network:
        from clusterctl.cli.bench_network import bench_network

        if gpus:
            raise UsageError("--network measures without GPUs", "leave out --gpus")
        return bench_network(
            app,
            name,
            streams=streams,
            seconds=seconds,
            force=force,
            as_json=as_json,
            plot=plot,
        )
    if not gpus:
        raise UsageError("which sizes?", f"say them: clusterctl bench {name} --gpus 1,8")
    keys = order(Settings(name), parse_sizes(gpus), repeats=3, seed=0)
    output.table(("GPUS", "DATA", "REPEAT"), [(key.gpus, key.data, key.repeat) for key in keys])
    output.note(f"{count(len(keys), 'run')} in this order")
    return 0
