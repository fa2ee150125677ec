"""`clusterctl lab`: the local EC2."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from ipaddress import IPv4Network
from typing import Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from clusterctl.cli import output
from clusterctl.cli.app_context import in_lab
from clusterctl.cli.lab_fault import fault, running_lab
from clusterctl.cli.params import Group, Size, clusters_launched, json_option, yes_option
from clusterctl.config import load_settings
from clusterctl.domain.errors import UsageError
from clusterctl.domain.units import format_bytes
from clusterctl.lab.addresses import ALL_CANDIDATES, REGIONS
from clusterctl.lab.hosts.daemon.cgroups import MOST_PROCESSES
from clusterctl.lab.record import ACCOUNTS, LabOptions, LabRecord, read_record

# Fields of LabRecord that `lab status` does not print.
SECRETS = ("keys", "secret")
# Bytes of a host's /data.
SMALLEST_VOLUME, LARGEST_VOLUME = 2**20, 2**40


class LabNetwork(click.ParamType):
    """The network of the lab's hosts, a /16 of ALL_CANDIDATES, as text."""

    name = "network"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        try:
            network = IPv4Network(value)
        except ValueError as wrong:
            self.fail(f"{value!r}: {wrong}", param, ctx)
        if network.prefixlen != 16 or not network.subnet_of(ALL_CANDIDATES):
            self.fail(f"{value!r}: the lab has a /16 of {ALL_CANDIDATES}", param, ctx)
        return str(network)


@click.group(cls=Group)
def lab() -> None:
    """The local EC2: instances that are real Linux hosts on this machine.

    \b
    Example:
      clusterctl lab start
      eval "$(clusterctl lab env)"
      aws ec2 describe-instances
      clusterctl lab stop
    """


lab.add_command(fault)


@lab.command()
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Of the API; any free one.")
@click.option(
    "--region",
    default=REGIONS[0],
    show_default=True,
    type=click.Choice(REGIONS),
    help="The default for `lab env`; the lab has all of them.",
)
@click.option(
    "--data-size",
    "volume_bytes",
    default="1GiB",
    show_default=True,
    type=Size(SMALLEST_VOLUME, LARGEST_VOLUME),
    help="Of the /data of each host, in memory; of an instance store, too.",
)
@click.option(
    "--network",
    type=LabNetwork(),
    metavar="10.N.0.0/16",
    help="Of the hosts; one that this machine does not use.",
)
def start(port: int, region: str, volume_bytes: int, network: str | None) -> None:
    """Start the lab, and leave it running in the background.

    \b
    Example:
      clusterctl lab start
      clusterctl lab start --data-size 4GiB
      clusterctl lab start --network 10.200.0.0/16
    """
    home = load_settings().home
    running = read_record(home)
    if running:
        _check_same(running, port=port, region=region, volume_bytes=volume_bytes, network=network)
        output.note(f"the lab is already running at {running.endpoint_url}")
        return
    from clusterctl.lab import lifecycle

    output.note("starting the lab ...")
    options = LabOptions(str(home.absolute()), port, region, volume_bytes, network)
    _show(lifecycle.start(options))


def _check_same(running: LabRecord, **wanted: Any) -> None:
    """Raise UsageError for an option that was typed and that differs in the running lab."""
    context = click.get_current_context()
    has = {**vars(running), "port": urlsplit(running.endpoint_url).port}
    for option in context.command.params:
        name = str(option.name)
        typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        # 0 is any free port: the running lab has one.
        if typed and wanted[name] not in (has[name], 0):
            raise UsageError(
                f"the lab that runs has another {option.opts[0]}: see `clusterctl lab status`",
                "end it first, with its instances and all they store: clusterctl lab stop",
            )


@lab.command()
@yes_option
def stop(yes: bool) -> None:
    """Stop the lab. Its instances, everything they stored, and its clusters' folders are gone.

    \b
    Example:
      clusterctl lab stop

    It asks first if it would end clusters; a script has to give --yes.
    """
    from clusterctl.operations.local_state import delete_folder

    running = read_record(load_settings().home)
    folders = [folder for folder in clusters_launched() if in_lab(folder)]
    names = ", ".join(folder.name for folder in folders)
    if running is None:
        output.note("the lab is not running")
    else:
        from clusterctl.lab import lifecycle

        if folders:
            output.confirm(f"End {names}, with all that is on the nodes?", yes)
        lifecycle.stop(running)
        output.note("the lab is stopped, and nothing of it is left")
    for folder in folders:
        delete_folder(folder)
    if folders:
        output.note(f"removed the folders of its clusters: {names}")


@lab.command()
@json_option("LabStatus")
def status(as_json: bool) -> None:
    """What runs: the lab and its instances. Exit status 1 when it is not running.

    \b
    Example:
      clusterctl lab status
    """
    running = running_lab()
    from clusterctl.lab import lifecycle

    instances = lifecycle.instances(running)
    if as_json:
        output.data({**_public(running), "instances": instances})
        return
    _show(running)
    headers = ("INSTANCE", "NAME", "TYPE", "STATE", "ADDRESS", "BOOTS", "SSH")
    keys = ("instance_id", "name", "instance_type", "state", "private_ip", "boots")
    if instances:
        output.line()
        rows = [[one[key] or "-" for key in keys] + [_yes(one["ssh"])] for one in instances]
        output.table(headers, rows)
        for one in instances:
            if one["problem"]:
                output.note(f"{one['instance_id']}: {one['problem']}")
    else:
        output.line("instances  none")


@lab.command()
@click.option(
    "--account",
    default=ACCOUNTS[0],
    show_default=True,
    type=click.Choice(ACCOUNTS),
    help="Which of the lab's accounts to be.",
)
@json_option("Variables")
def env(account: str, as_json: bool) -> None:
    """The environment in which aws-cli, boto3, s5cmd and clusterctl --lab talk to the lab.

    \b
    Example:
      eval "$(clusterctl lab env)"
      eval "$(clusterctl lab env --account 210987654321)"
    """
    variables = running_lab().environment_of(account)
    if as_json:
        output.data(variables)
        return
    for name, value in variables.items():
        output.line(f"export {name}={shlex.quote(value)}")


def _public(running: LabRecord) -> dict[str, Any]:
    """Return the lab's record for `--json`, without its secrets."""
    accounts = [key.account for key in running.keys]
    shown = {name: value for name, value in asdict(running).items() if name not in SECRETS}
    return {**shown, "accounts": accounts, "home": str(running.home), "running": True}


def _show(running: LabRecord) -> None:
    output.line(f"endpoint   {running.endpoint_url}")
    output.line(f"mode       {running.mode}")
    output.line(f"network    {running.network}")
    output.line(f"public     {running.public_network}")
    output.line(f"s3         {running.endpoint_url}, for hosts {running.storage_url}")
    output.line(f"volumes    {format_bytes(running.volume_bytes)}")
    output.line(f"limits     {_limits(running)}")
    output.line(f"tcp        {_tcp(running.tcp)}")
    output.line(f"region     {running.region}")
    output.line(f"accounts   {', '.join(key.account for key in running.keys)}")
    output.line(f"process    {running.pid}, since {running.started_at}")


def _limits(running: LabRecord) -> str:
    if not running.cgroups:
        return "none of processes and memory: no control groups here that this lab may use"
    memory = f"{format_bytes(running.memory_bytes)} of memory for all hosts"
    return f"{MOST_PROCESSES} processes a host, {memory}"


def _tcp(chosen: str) -> str:
    unlike = " (images on EC2: cubic, which this machine does not allow to its hosts)"
    return chosen if chosen == "cubic" else chosen + unlike


def _yes(value: bool) -> str:
    return "yes" if value else "no"
