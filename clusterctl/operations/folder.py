"""What a cluster's owner keeps: ~/.clusterctl/NAME. Losing it loses no machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ClusterFolder:
    """The file names in one cluster's folder. Nothing here is read or written by this class."""

    path: Path

    @property
    def key(self) -> Path:
        """The private key that logs in to the nodes (0600); its public half is `key`.pub."""
        return self.path / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.path / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        return self.path / "ssh_config"

    @property
    def hosts(self) -> Path:
        return self.path / "hosts"

    @property
    def site(self) -> Path:
        """Region, endpoint and account that the cluster is in, on one line."""
        return self.path / "account"

    @property
    def launch(self) -> Path:
        """The RunInstances calls whose outcome is not known yet. There, perhaps with none, from
        the first launch until `down` has seen the cluster's end.
        """
        return self.path / "launch.json"
