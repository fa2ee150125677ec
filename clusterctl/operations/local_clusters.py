"""The clusters that this machine keeps a folder of, and those it is at work on."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import is_cluster_name
from clusterctl.ec2.launch.record import SETTLED_AFTER_S
from clusterctl.operations.down import await_sent
from clusterctl.operations.folder import ClusterFolder
from clusterctl.operations.local_state import Site, kept_site, locked, sent_launches

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients


@dataclass(frozen=True)
class LocalClusters:
    """Clusters by region and name. `locked` are under way now, `unsettled` were sent a launch
    whose outcome is not known.
    """

    here: frozenset[tuple[str, str]]
    locked: frozenset[tuple[str, str]]
    unsettled: frozenset[tuple[str, str]]


def local_clusters(home: Path, sites: Mapping[str, Site]) -> LocalClusters:
    """What `home` has of these regions, and the account that is asked there."""
    paths = [path for path in home.glob("*") if path.is_dir() and is_cluster_name(path.name)]
    regions = {folder: _regions(folder, sites) for folder in map(ClusterFolder, paths)}
    recent = time.time() - SETTLED_AFTER_S
    return LocalClusters(
        here=_identities(regions, regions),
        locked=_identities(
            regions, [folder for folder in regions if _is_locked(folder.path / "lock")]
        ),
        unsettled=_identities(
            regions,
            [
                folder
                for folder in regions
                if any(one.sent_at > recent for one in sent_launches(folder))
            ],
        ),
    )


@contextmanager
def to_itself(
    clients: Clients, folder: ClusterFolder, tell: Callable[[str], None]
) -> Iterator[None]:
    """No other command works on the cluster, and its launches have shown what they made."""
    with locked(folder):
        await_sent(clients.ec2, folder, tell)
        yield


def _regions(folder: ClusterFolder, sites: Mapping[str, Site]) -> frozenset[str]:
    """Where the cluster of a folder may be. Before its site is written, that is anywhere."""
    kept = kept_site(folder)
    return frozenset(region for region, site in sites.items() if not kept or kept.may_be(site))


def _identities(
    regions: Mapping[ClusterFolder, frozenset[str]], folders: Iterable[ClusterFolder]
) -> frozenset[tuple[str, str]]:
    return frozenset((region, folder.path.name) for folder in folders for region in regions[folder])


def _is_locked(lock: Path) -> bool:
    """Whether a command holds it now. Shared, and only for a moment: nobody is kept waiting."""
    try:
        file = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(file)
