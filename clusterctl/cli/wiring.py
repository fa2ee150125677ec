"""What commands share: the options that choose an account, and the way to a cluster."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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


def typed_account() -> list[str]:
    """The options of `account_options` as they were typed, for a command that is suggested."""
    given = click.get_current_context().params
    words = {None: [], True: ["--lab"], False: ["--no-lab"]}[given.get("lab")]
    for name in ("region", "profile", "endpoint_url", "config"):
        if given.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", str(given[name])]
    return words


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
