"""The local folder of a cluster, ~/.clusterctl/NAME. `down` works without it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ClusterFolder:
    """The paths of the files in one cluster's folder. This class writes none of them."""

    path: Path

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.path.name

    @property
    def home(self) -> Path:
        """The folder that holds the folders of all clusters, and what is kept for all of them."""
        return self.path.parent

    @property
    def key(self) -> Path:
        """The private key that logs in to the nodes (0600); the public half is in `key`.pub."""
        return self.path / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The nodes' known host keys, with the id of the instance that each belongs to."""
        return self.path / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """How `ssh` reaches the nodes."""
        return self.path / "ssh_config"

    @property
    def hosts(self) -> Path:
        """The hosts file: private addresses and slots of the nodes in service."""
        return self.path / "hosts"

    @property
    def site(self) -> Path:
        """The region, endpoint and account that the cluster is in, on one line."""
        return self.path / "account"

    @property
    def launch(self) -> Path:
        """The RunInstances requests whose outcome is not known.

        The file exists, even with no request in it, from the first launch until `down` has found
        that nothing of the cluster is left.
        """
        return self.path / "launch.json"

    @property
    def creations(self) -> Path:
        """When `up` last began to make a key pair, a group or an address, as JSON."""
        return self.path / "creations.json"

    @property
    def end(self) -> Path:
        """When a limit ends the cluster, as JSON; there is no such file without a limit."""
        return self.path / "end.json"

    @property
    def fetched(self) -> Path:
        """Into which folders of this machine `fetch` put which jobs: a line of JSON each."""
        return self.path / "fetched.jsonl"

    def failed_job(self, job_id: str) -> Path:
        """What was fetched by itself of a failed job. It is no cluster's folder: `down` deletes
        that, and this may be the only copy of the log."""
        return self.home / "failed_jobs" / job_id

    @property
    def launched(self) -> bool:
        """Whether a launch was sent from here and `down` has not yet removed all of the cluster."""
        return self.launch.exists() or self.ssh_config.exists()

    def node_addresses(self) -> dict[str, str]:
        """Return the address in ssh_config of each node, by its name. Raises OSError."""
        return {node: names[-1] for node, names in self._nodes().items()}

    def node_names(self) -> dict[str, str]:
        """Return the node's name for each name and address in ssh_config. Raises OSError."""
        return {name: node for node, names in self._nodes().items() for name in names}

    def _nodes(self) -> dict[str, list[str]]:
        """Return all names of each node in ssh_config, the address last, by the first of them."""
        found: dict[str, list[str]] = {}
        names: list[str] = []
        for line in self.ssh_config.read_text(errors="replace").splitlines():
            word, *values = line.split() or [""]
            if word == "Host":
                names = values
            elif word == "HostName" and names:  # the last block is of all nodes, without one
                found[names[0]] = [*names, *values]
        return found
