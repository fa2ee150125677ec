"""A running cluster from Python: one verified fabric Connection per node (docs/python.md)."""

from __future__ import annotations

from dataclasses import dataclass

from fabric import Connection

from clusterctl.cli.app_context import AppContext
from clusterctl.config import load_settings
from clusterctl.domain.cluster import Cluster
from clusterctl.transport.fabric import VerifiedConnection


@dataclass(frozen=True)
class ConnectedCluster:
    """A running cluster and a connection to each node in service, the head node first.

    As a context manager it closes all connections at the end.
    """

    cluster: Cluster
    connections: tuple[Connection, ...]

    def __enter__(self) -> ConnectedCluster:
        return self

    def __exit__(self, *exception: object) -> None:
        for connection in self.connections:
            connection.close()

    @property
    def head(self) -> Connection:
        return self.connections[0]

    @property
    def workers(self) -> tuple[Connection, ...]:
        return self.connections[1:]


def connect(
    name: str, *, lab: bool | None = None, region: str | None = None, profile: str | None = None
) -> ConnectedCluster:
    """Return the running cluster NAME. A connection opens when it is first used.

    Options that are None come from the environment or clusterctl.yaml, as on the command line.

    Raises ClusterctlError if there is no such cluster, if none of its nodes runs, or if its key is
    not on this machine.
    """
    app = AppContext(load_settings(lab=lab, region=region, profile=profile, cluster=name))
    with app.open(name) as access:
        shared = (access.connections.identity, access.connections.host_keys)
        return ConnectedCluster(
            access.cluster,
            tuple(VerifiedConnection(target, *shared) for target in access.targets),
        )
