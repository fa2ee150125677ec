"""Two machines launch clusters of one name in one account, in random orders and at the same time.

No machine removes nodes of the other unless its user was shown them and agreed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.domain.cluster import ClusterSpec
from clusterctl.domain.errors import ClusterctlError, NoSuchCluster
from clusterctl.domain.files import ClusterFolder
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.launch.observe import fixed_request
from clusterctl.ec2.resources import find_made
from clusterctl.ec2.session import Clients
from clusterctl.ec2.tags import Creations
from clusterctl.operations import down as down_module
from clusterctl.operations import members
from clusterctl.operations import up as up_module
from clusterctl.operations.launcher import Launcher
from clusterctl.operations.site import NotLaunchedHere
from tests.moto_ec2 import clients_of, reset
from tests.operations.commands import NAME, SHORT
from tests.operations.wire import Mode, Wire, WiredClients
from tests.variants import usual

pytestmark = pytest.mark.usefixtures("soon")
SPEC = ClusterSpec(NAME, 2, "g5.xlarge")
MODES = (Mode.REFUSED, Mode.FAILED, Mode.LOST, Mode.STOPPED, Mode.INTERRUPTED)
Act = Callable[["Machine"], None]


class WatchedWire(Wire):
    """A wire that calls `on_call` before each call."""

    def __init__(self, on_call: Callable[[str, Any], None]) -> None:
        super().__init__()
        self.on_call = on_call

    def _before_call(self, model: Any, params: Any, **more: Any) -> None:
        self.on_call(model.name, params["body"])
        super()._before_call(model, params, **more)


class Machine:
    """A machine with its own home. `agreed` is what its user has agreed to remove."""

    def __init__(self, name: str, account: Account, home: Path) -> None:
        self.name, self.account = name, account
        self.folder = ClusterFolder(home / name / NAME)
        self.clients = WiredClients(account.plain)
        self.agreed: tuple[str, ...] = ()
        self.at_call: tuple[int, Callable[[], None]] | None = None
        self.clients.wire = WatchedWire(self._before_call)

    def _before_call(self, name: str, body: Any) -> None:
        if name == "RunInstances":
            self.account.launched_by[body["ClientToken"]] = self
        if name == "TerminateInstances":
            ids = [value for key, value in body.items() if key.startswith("InstanceId")]
            self.account.check_may_end(self, ids)
        if self.at_call:
            left, act = self.at_call
            self.at_call = (left - 1, act) if left else None
            if not left:
                act()

    def up(self) -> None:
        launcher = Launcher(self.clients, self.folder, timeouts=SHORT)
        up_module.up(launcher, fixed_request(SPEC))

    def remove(self) -> None:
        members.remove(Launcher(self.clients, self.folder, timeouts=SHORT), [1])

    def down(self) -> None:
        down_module.down(self.clients, self.folder, None, SHORT)

    def down_all(self) -> None:
        """Look at what would be removed, and agree."""
        self.agreed = down_module.find_removable(self.clients, self.folder, SHORT).others
        try:
            down_module.down(self.clients, self.folder, None, SHORT, self.agreed)
        finally:
            self.agreed = ()

    def lose_folder(self) -> None:
        """Another home, as of another user of the same machine."""
        for path in sorted(self.folder.path.glob("*")):
            path.unlink()


class Account:
    """The account of both machines, and who has launched what in it."""

    def __init__(self, plain: Clients, home: Path, chance: random.Random) -> None:
        self.plain, self.chance = plain, chance
        self.launched_by: dict[str, Machine] = {}
        self.machines = [Machine(name, self, home) for name in ("one", "two")]
        self.told: list[str] = []

    def alive(self, machine: Machine) -> set[str]:
        there = find_instances(self.plain.ec2, NAME)
        own = [one for one in there if self.launched_by[one.launch_token] is machine]
        return {one.node.instance_id for one in own}

    def check_may_end(self, machine: Machine, ids: list[str]) -> None:
        for other in self.machines:
            if other is not machine:
                agreed = " ".join(machine.agreed)
                taken = [one for one in ids if one in self.alive(other) and one not in agreed]
                assert not taken, "\n".join(self.told)

    def step(self) -> None:
        """Run a command of one machine; perhaps one of its calls fails, or the other one acts."""
        machine, other = self.chance.sample(self.machines, 2)
        broken = self.chance.random() < 0.3
        if broken:
            machine.clients.wire.break_at(self.chance.randrange(25), self.chance.choice(MODES))
        if self.chance.random() < 0.5:
            machine.at_call = (self.chance.randrange(20), lambda: self.run(other))
        self.run(machine)
        machine.at_call = None
        machine.clients.wire.mend()

    def run(self, machine: Machine) -> None:
        acts: list[Act] = [Machine.up, Machine.up, Machine.down, Machine.down_all, Machine.remove]
        act = self.chance.choice(acts)
        if self.chance.random() < 0.1:
            act = Machine.lose_folder
        self.told.append(f"{machine.name} begins {act.__name__}")
        try:
            act(machine)
            ended = "done"
        except (ClusterctlError, KeyboardInterrupt) as error:
            ended = repr(error)
        self.told.append(f"{machine.name} ended {act.__name__}: {ended}")

    def end(self) -> None:
        """Assert that each machine removes its own nodes, and that all of it can be removed."""
        for machine in self.machines:
            kept = machine.folder.key.exists()
            own = self.alive(machine)
            try:
                machine.down()
            except (NotLaunchedHere, NoSuchCluster):
                pass
            if kept and own:
                assert not self.alive(machine), "\n".join(self.told)
        for machine in self.machines:
            try:
                machine.down_all()
            except NoSuchCluster:
                pass
        creations = Creations(Path("/nonexistent"))
        assert find_made(self.plain.ec2, NAME, creations) == (), "\n".join(self.told)
        assert not find_instances(self.plain.ec2, NAME), "\n".join(self.told)


@pytest.mark.parametrize("seed", usual(1, range(30)))
def test_no_machine_removes_nodes_of_the_other(moto_url, tmp_path, seed):
    reset()
    account = Account(clients_of(moto_url), tmp_path, random.Random(seed))
    for _ in range(12):
        account.step()
    account.end()
