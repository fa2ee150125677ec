"""Where a cluster is: region, endpoint and account, which its folder records. And whether what EC2
has under its name was made from this machine, or elsewhere.

The tags have the cluster's name, and two machines may use the same one. They differ in the key
pair: a region of an account has one of each name, `up` imports it before it launches anything, and
its private half is in the cluster's folder.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.domain.files import ClusterFolder, MadeByNewer, read_file, write_file
from clusterctl.domain.findings import Finding
from clusterctl.domain.timeouts import Timeouts
from clusterctl.domain.units import count
from clusterctl.ec2.instances import Instance
from clusterctl.ec2.resources import (
    CREATED_BY,
    KeyPair,
    Resource,
    ResourceKind,
    anothers_key,
    find_key_pairs,
)
from clusterctl.ec2.session import is_local
from clusterctl.ec2.tags import CREATIONS, Creations, own_tags_count
from clusterctl.node.untrusted import text_in
from clusterctl.operations.local_state import locked, public_key, sent_launches

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

    from clusterctl.ec2.session import Clients


@dataclass(frozen=True)
class Site:
    """Where a cluster is: `REGION at ENDPOINT`, and the number of the AWS account.

    `account` is empty where only the endpoint is compared. A folder that older versions must not
    change has more in this line, as `, format 2`: they refuse it.
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
    if later := re.fullmatch(r".* at .*, account \d{12}(, .+)", text, re.ASCII):
        raise MadeByNewer(f"{later[1]!r} is not known here")
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


# In a message. The rest is counted.
MOST_NAMED = 6


class NotLaunchedHere(ClusterctlError):
    """Something has the cluster's name that nothing on this machine shows to be its own."""

    def __init__(self, name: str, others: Sequence[str]) -> None:
        super().__init__(
            f"{others_text(name, others)}: none of that was removed",
            "remove it from the machine that launched it. If you want to remove it from here: "
            f"clusterctl down {name} requires a confirmation on a terminal; in a script, add "
            "--launched-elsewhere",
        )


def others_text(name: str, others: Sequence[str]) -> str:
    """Return in words that these resources of the cluster are not known to be this machine's."""
    more = [f"{len(others) - MOST_NAMED} more"] if len(others) > MOST_NAMED else []
    named = ", ".join([*others[:MOST_NAMED], *more])
    return f"cluster {name} has {count(len(others), 'resource')} not made from here: {named}"


def others_finding(name: str, others: Sequence[str]) -> Finding:
    """Return the warning before these resources are removed all the same."""
    hint = "refuse, unless you know that it is unused"
    return Finding.warning("down.elsewhere", others_text(name, others), hint)


@dataclass(frozen=True)
class Ownership:
    """What proves that resources with a cluster's name were made from this machine.

    `is_whole`: EC2 has the key pair of the cluster's folder, so everything is this machine's.
    `is_denied`: it has another one, so that only nodes can be. `instance_ids` are those whose host
    keys the folder has, `tokens` the client tokens of its launches, `started` boto3's methods that
    made something from here. `agreed` are resources of others, as `others` names them, that the
    user wants removed.
    """

    is_whole: bool
    is_denied: bool
    instance_ids: frozenset[str]
    tokens: frozenset[str]
    started: frozenset[str]
    agreed: frozenset[str]

    def has(self, one: Instance) -> bool:
        """Return whether an instance may be terminated: it is this machine's, or agreed."""
        own = one.node.instance_id in self.instance_ids or one.launch_token in self.tokens
        return self.is_whole or own or named_instance(one) in self.agreed

    def others(self, instances: Iterable[Instance], made: Iterable[Resource]) -> tuple[str, ...]:
        """Return the names of all that may not be removed: `node demo-0 (i-0abc)`, ..."""
        if self.is_whole:
            return ()
        nodes = [named_instance(one) for one in instances if not self.has(one)]
        started = frozenset[str]() if self.is_denied else self.started
        rest = [_named(one) for one in made if CREATED_BY[one.kind] not in started]
        return (*nodes, *(text for text in rest if text not in self.agreed))


def named_instance(one: Instance) -> str:
    """Return the name of an instance for a message: `node demo-0 (i-0abc)`."""
    return f"node {one.node.name} ({one.node.instance_id})"


def _named(one: Resource) -> str:
    """Return the name of another resource for a message: `security group sg-0abc`."""
    name = one.id if one.kind is ResourceKind.SECURITY_GROUP else one.name
    return f"{CREATIONS[CREATED_BY[one.kind]]} {name}"


def ownership(
    folder: ClusterFolder,
    creations: Creations,
    key_pairs: Sequence[KeyPair],
    agreed: Collection[str] = (),
) -> Ownership:
    """Return what the folder proves. `key_pairs` are those that EC2 has of the cluster."""
    key = public_key(folder)
    started = creations.started
    # Without a key to compare, an import that was not refused proves it: the name was free then.
    own = [
        pair.holds(key) if key and pair.public_key else "import_key_pair" in started
        for pair in key_pairs
    ]
    return Ownership(
        is_whole=bool(own) and all(own),
        is_denied=not all(own),
        instance_ids=frozenset(text_in(folder.known_hosts).split()),
        tokens=frozenset(sent.token for sent in sent_launches(folder)),
        started=started,
        agreed=frozenset(agreed),
    )


def check_not_anothers(client: EC2Client, folder: ClusterFolder) -> None:
    """Raise MissingTool if EC2 has another key of the cluster than its folder. Raises AwsError.

    Without a key in the folder nothing is checked: then this machine claims no cluster.
    """
    key, name = public_key(folder), folder.name
    if not key:
        return
    if any(one.public_key and not one.holds(key) for one in find_key_pairs(client, name)):
        raise anothers_key(name)
