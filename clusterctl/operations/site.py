"""Where a cluster is: region, endpoint and account, which its folder records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.domain.errors import UsageError
from clusterctl.domain.files import read_file, write_file
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2.instances import Instance
from clusterctl.ec2.session import is_local
from clusterctl.ec2.tags import own_tags_count
from clusterctl.operations.folder import ClusterFolder
from clusterctl.operations.local_state import locked

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients


@dataclass(frozen=True)
class Site:
    """Where a cluster is: `REGION at ENDPOINT`, and the number of the AWS account.

    `account` is empty where only the endpoint is compared.
    """

    endpoint: str
    account: str = ""

    def __str__(self) -> str:
        """Return the site as one line, which `parse_site` reads."""
        return f"{self.endpoint}, account {self.account}" if self.account else self.endpoint


def parse_site(text: str) -> Site:
    """Parse `REGION at ENDPOINT, account NUMBER`."""
    match = re.fullmatch(r"(.*), account (\d{12})", text.strip(), re.ASCII)
    return Site(match[1], match[2]) if match else Site(text.strip())


def site_of(clients: Clients, instances: Sequence[Instance] = ()) -> Site:
    """Return the site of these clients.

    The account is the owner of `instances`, which these clients have found; without any, STS is
    called. Raises AwsError.
    """
    account = next((one.owner_id for one in instances if one.owner_id), "")
    return Site(_endpoint(clients), account or clients.account_id)


def _endpoint(clients: Clients) -> str:
    # The local EC2 takes any free port when it starts, so its URL is no part of the site.
    meta = clients.ec2.meta
    url = meta.endpoint_url
    return f"{meta.region_name} at {'a local EC2' if is_local(url) else url}"


def kept_site(folder: ClusterFolder) -> Site | None:
    """Return where the folder's cluster is; None if the folder does not record it.

    Raises ClusterctlError for an empty or unreadable file: the cluster may be anywhere.
    """
    hint = (
        "it has the cluster's region and account; if you are sure of both (--region, --profile, "
        "--lab), delete the file"
    )
    return read_file(folder.site, _parse_file, hint)


def _parse_file(content: bytes) -> Site:
    text = content.decode().strip()
    site = parse_site(text)
    if not (site.account and " at " in site.endpoint):
        raise ValueError(f"{text!r} has not that form" if text else "it is empty")
    return site


def keep_site(folder: ClusterFolder, site: Site) -> None:
    """Record in the folder where its cluster is."""
    write_file(folder.site, f"{site}\n")


@contextmanager
def changing(
    folder: ClusterFolder, clients: Clients, timeouts: Timeouts = Timeouts()
) -> Iterator[None]:
    """Hold the cluster's lock in the cluster's region and account, for a command that changes it.

    The command's own tags count at once. Raises what `locked` and `check_site` raise, and
    MissingTool if another machine has the name.
    """
    from clusterctl.operations.ownership import check_not_anothers

    with locked(folder), own_tags_count(clients.ec2, timeouts):
        check_site(folder, clients)
        check_not_anothers(clients.ec2, folder)
        yield


def check_site(
    folder: ClusterFolder, clients: Clients, instances: Sequence[Instance] | None = None
) -> None:
    """Raise UsageError if the folder's cluster is in another region or account, and ClusterctlError
    if its file cannot be read.

    Without this check `down` with the wrong --profile would find nothing and report success, and
    `up` would launch a second cluster. `instances` are the cluster's instances if the caller has
    listed them. Raises AwsError if the account cannot be determined.
    """
    kept = kept_site(folder)
    if kept is None:
        return
    if kept.endpoint != _endpoint(clients):
        raise _elsewhere(folder, kept, Site(_endpoint(clients)))
    here = site_of(clients, instances or ())
    if kept != here:
        raise _elsewhere(folder, kept, here)


def check_account(folder: ClusterFolder, clients: Clients) -> None:
    """Raise UsageError if, by its folder, its cluster is in another account.

    For commands that read several regions: the region is not checked. Raises AwsError, and
    ClusterctlError if the folder's file cannot be read.
    """
    kept = kept_site(folder)
    if kept and kept.account != clients.account_id:
        raise _elsewhere(folder, kept, Site(kept.endpoint, clients.account_id))


def _elsewhere(folder: ClusterFolder, kept: Site, here: Site) -> UsageError:
    name = folder.name
    if kept.endpoint == here.endpoint:
        message = f"cluster {name} is in account {kept.account}, not in account {here.account}"
    else:
        message = f"cluster {name} is in {kept}, not in {here}"
    return UsageError(
        message,
        "use the same --region, --profile, credentials and --lab as for `up`; "
        f"if that cluster is gone for good, delete {folder.path}",
    )
