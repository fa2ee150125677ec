"""What a cluster's owner keeps: ~/.clusterctl/NAME. Losing it loses no machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ClusterFolder:
    """The files in one cluster's folder. Nothing is written by this class."""

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

    @property
    def launched(self) -> bool:
        """Whether a launch was sent from here, and `down` has not seen the cluster's end."""
        return self.launch.exists() or self.ssh_config.exists()

    def node_names(self) -> dict[str, str]:
        """Every name and address of a node in ssh_config -> the node's name. Raises OSError."""
        names: dict[str, str] = {}
        node = ""
        for line in self.ssh_config.read_text(errors="replace").splitlines():
            word, *values = line.split() or [""]
            if word == "Host" and values:
                node = values[0]
            if word in ("Host", "HostName"):
                names.update({value: node for value in values if value not in names})
        return names
