"""Instances of the lab with a guard, joined into a cluster as by `up`."""

from __future__ import annotations

import json
import subprocess
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.bootstrap.guard import guard_update_script
from clusterctl.bootstrap.inspection import MPI_KEY, inspection_script
from clusterctl.bootstrap.trust import NodeIdentity, node_script
from clusterctl.node.guard.settings import GuardSettings, Worker
from tests.lab.conftest import Instances
from tests.lab.running import client, make_key, ssh, wait_until

HISTORY = """\
cat >history.sh <<'END'
while :; do cat /run/clusterctl/guard-state.json >>history; sleep 1; done
END
setsid nohup sh history.sh </dev/null >/dev/null 2>&1 &
"""
RANK = "OMPI_COMM_WORLD_RANK=0 setsid nohup sleep 1000 </dev/null >/dev/null 2>&1 & echo $!"


@dataclass
class GuardedNodes:
    """The nodes of one cluster, the head node first, and logins to them."""

    made: Instances
    nodes: list[dict]
    sessions: list[subprocess.Popen] = field(default_factory=list)

    def on(self, index: int, script: str) -> str:
        """Return the output of a script for `sh -s`. It has to succeed."""
        return self.made.run(self.nodes[index], f"sh -s <<'OUTER'\n{script}\nOUTER\n")

    def address(self, index: int) -> str:
        return self.nodes[index]["PrivateIpAddress"]

    def tell(self, index: int, left_s: float | None = None, **limits) -> None:
        workers = [
            Worker(f"demo-{other}", self.address(other)) for other in range(1, len(self.nodes))
        ]
        settings = GuardSettings(
            "demo",
            index=index,
            user="ubuntu",
            workers=tuple(workers) if index == 0 else (),
            **limits,
        )
        assert self.on(index, guard_update_script(settings, left_s)).endswith("complete")

    def state(self, index: int) -> dict | None:
        said = self.on(index, "cat /run/clusterctl/guard-state.json 2>/dev/null || :")
        return json.loads(said) if said.strip() else None

    def history(self, index: int) -> list[dict]:
        """Return the guard's states since HISTORY started, including those without a login."""
        lines = self.on(index, "cat history 2>/dev/null || :").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def is_off(self, index: int, state: str = "stopped") -> None:
        self.made.in_state(self.nodes[index]["InstanceId"], state)

    def joined(self) -> None:
        """Set keys and known hosts as `up` does."""
        said = self.on(0, inspection_script(True))
        key = next(line[8:] for line in said.splitlines() if line.startswith("mpi-key "))
        assert MPI_KEY in key or key.startswith("ssh-ed25519")
        members = []
        for index, node in enumerate(self.nodes):
            keys = self.on(index, "cut -d' ' -f1,2 /etc/ssh/ssh_host_*_key.pub").splitlines()
            address = node["PrivateIpAddress"]
            members.append(
                NodeIdentity(f"demo-{index}", address, None, f"demo-{index}", tuple(keys))
            )
        for index in range(len(self.nodes)):
            self.on(index, node_script(members, key, "ubuntu", index == 0))

    def login(self, index: int, command: str) -> subprocess.Popen:
        """Open a session that stays open. Its output can be read as it arrives."""
        lab, key = self.made.lab, self.made.key
        # The same options as in tests.lab.running.ssh.
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
        if lab.proxy_command:
            options += ["ProxyCommand=" + " ".join(lab.proxy_command), "ProxyUseFdpass=yes"]
        flags = [flag for option in options for flag in ("-o", option)]
        far = [f"ubuntu@{self.address(index)}", command]
        session = subprocess.Popen(
            ["ssh", "-F", "/dev/null", "-i", str(key), *flags, *far],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.sessions.append(session)
        return session


class Launcher:
    """Makes clusters for the tests of a module, and terminates them."""

    def __init__(self, lab, folder: Path) -> None:
        self.lab, self.key = lab, make_key(folder, "id_ed25519")
        self.ec2 = client(lab)
        public = self.key.with_suffix(".pub").read_bytes()
        # A separate key for each module: the lab is shared by the whole session.
        self.key_name = f"guarded-{uuid.uuid4().hex[:8]}"
        self.ec2.import_key_pair(KeyName=self.key_name, PublicKeyMaterial=public)
        self.made = Instances(lab, self.ec2, self.key)
        self.clusters: list[GuardedNodes] = []

    def up(
        self,
        count: int = 1,
        behaviour: str = "stop",
        user_data: bytes = b"",
        await_login: bool = True,
        instance_type: str = "p3.2xlarge",
    ) -> GuardedNodes:
        # Do not wait for a machine that may end itself at any moment.
        start = self.made.up if await_login else self.made.request
        nodes = start(
            MinCount=count,
            MaxCount=count,
            KeyName=self.key_name,
            InstanceType=instance_type,
            InstanceInitiatedShutdownBehavior=behaviour,
            **({"UserData": user_data} if user_data else {}),
        )
        for node in nodes if await_login else ():
            self._await_login(node)
        cluster = GuardedNodes(self.made, nodes)
        self.clusters.append(cluster)
        return cluster

    def _await_login(self, node) -> None:
        address = node["PrivateIpAddress"]
        wait_until(
            lambda: ssh(self.lab, self.key, address, "cloud-init status --wait").returncode == 0,
            f"a login on {address}",
        )

    def end(self) -> None:
        for cluster in self.clusters:
            for session in cluster.sessions:
                session.kill()
                session.communicate()
        if self.made.ids:
            self.ec2.terminate_instances(InstanceIds=self.made.ids)
