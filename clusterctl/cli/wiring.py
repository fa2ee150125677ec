"""What commands share: the options that choose an account, and the way to a cluster."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterctl.cli import output
from clusterctl.cli.params import CLUSTERS
from clusterctl.config import Settings, load_settings
from clusterctl.domain.cluster import check_cluster_name
from clusterctl.domain.errors import LabError, UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

    from clusterctl.ec2.session import Clients
    from clusterctl.operations.access import Access
    from clusterctl.operations.folder import ClusterFolder

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings to use in place of clusterctl.yaml.",
)
# As a user would type it; not a path, nor a name that ends so.
_OURS = re.compile(r"(?<![\w./-])clusterctl((?: \w[\w-]*)+)")
_OPTIONS = (
    click.option(
        "--lab/--no-lab", default=None, help="Use the local EC2 (or set CLUSTERCTL_LAB=1)."
    ),
    click.option("--region", metavar="REGION", help="AWS region."),
    click.option("--profile", metavar="NAME", help="AWS profile."),
    click.option("--endpoint-url", metavar="URL", help="Another EC2 endpoint."),
    config_option,
)


class Wiring:
    """The settings of this run, and what is made from them when it is first needed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @functools.cached_property
    def proxy_command(self) -> tuple[str, ...]:
        """How SSH gets to the instances, where their addresses cannot be dialled."""
        record = self._lab
        return tuple(record.proxy_command or ()) if record else ()

    @property
    def ec2(self) -> EC2Client:
        return self.clients.ec2

    @functools.cached_property
    def clients(self) -> Clients:
        from clusterctl.ec2.session import Account, Clients

        record = self._lab
        if record:
            # The environment of `lab env` says as which of the lab's accounts.
            key = record.key_named(os.environ.get("AWS_ACCESS_KEY_ID"))
            account = Account(
                region=_lab_region(self.settings.region or record.region),
                endpoint_url=record.endpoint_url,
                access_key=key.id,
                secret_key=key.secret,
            )
        else:
            account = Account(
                region=self.settings.region,
                profile=self.settings.profile,
                endpoint_url=self.settings.endpoint_url,
            )
        return Clients(account)

    @functools.cached_property
    def _lab(self) -> Any:
        if not self.settings.lab:
            return None
        from clusterctl.lab.record import read_record

        record = read_record(self.settings.home)
        if record is None:
            raise LabError("the local EC2 is not running", "start it: clusterctl lab start")
        return record

    def folder(self, name: str) -> ClusterFolder:
        from clusterctl.operations.folder import ClusterFolder

        return ClusterFolder(Path(self.settings.home) / check_cluster_name(name))

    def open(self, name: str) -> Access:
        """Access to the running cluster NAME. Raises NoSuchCluster and what open_access does."""
        from clusterctl.operations.access import open_access
        from clusterctl.operations.status import cluster_status

        folder = self.folder(name)
        cluster = cluster_status(self.clients, folder).cluster
        return open_access(cluster, folder, self.proxy_command)


def _lab_region(region: str) -> str:
    from clusterctl.lab.addresses import REGIONS

    if region not in REGIONS:
        raise UsageError(f"the local EC2 has no region {region}", f"it has {', '.join(REGIONS)}")
    return region


def _complete_suggestions(context: click.Context) -> Callable[[str], str]:
    """Puts the options of `account_options` that were typed into each command that a text suggests,
    and the cluster's name where it has none: pasted, it means the same account and cluster."""
    root, given = context.find_root().command, context.params
    typed = {"lab": {None: [], True: ["--lab"], False: ["--no-lab"]}[given["lab"]]}
    for option in ("region", "profile", "endpoint_url", "config"):
        value = given[option]
        typed[option] = [] if value is None else [f"--{option.replace('_', '-')}", str(value)]
    of_network = context.parent is not None and context.parent.info_name == "network"

    def complete(found: re.Match[str]) -> str:
        command, words, at = root, found[1].split(), 0
        while isinstance(command, click.Group) and at < len(words):
            inner = command.get_command(context, words[at])
            if inner is None:
                break
            command, at = inner, at + 1
        if isinstance(command, click.Group) or words[0] == "lab":
            return found[0]
        needs = any(one.name == "name" and one.required for one in command.params)
        if needs and given.get("name") and of_network == (words[0] == "network"):
            if words[at : at + 1] in ([], ["NAME"]):
                words[at : at + 1] = [given["name"]]
            at += words[at] == given["name"]
        # Up to where another command may begin.
        rest = re.split(r"[`;\n]|clusterctl ", found.string[found.end() :])[0].split()
        for parameter in command.params:
            option = typed.get(parameter.name or "", [])
            if option and option[0] not in rest:
                words[at:at] = [shlex.join(option)]
                at += 1
        return " ".join(["clusterctl", *words])

    return lambda text: _OURS.sub(complete, text)


def account_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --lab, --region, --profile, --endpoint-url, --config; passes `wiring` to the command.

    Where the command has an argument `name`, that cluster's entry in the file counts.
    """

    @functools.wraps(command)
    def wired(
        *args: Any,
        lab: bool | None,
        region: str | None,
        profile: str | None,
        endpoint_url: str | None,
        config: Path | None,
        **kwargs: Any,
    ) -> Any:
        context = click.get_current_context()
        output.suggested = _complete_suggestions(context)
        for other in context.meta.get(CLUSTERS, set()) - {kwargs.get("name")}:
            raise UsageError(
                f"nodes of {other} are named, and the cluster is {kwargs.get('name')}",
                "name nodes of one cluster, or give their indices: 0-3,5",
            )
        settings = load_settings(
            lab=lab,
            region=region,
            profile=profile,
            endpoint_url=endpoint_url,
            config=config,
            cluster=kwargs.get("name"),
        )
        return command(*args, wiring=Wiring(settings), **kwargs)

    for option in reversed(_OPTIONS):
        wired = option(wired)
    return wired
