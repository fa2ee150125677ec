"""An EC2 with one cluster, and the resources that it has in addition to the initial ones."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

from clusterctl.domain.errors import ClusterctlError
from clusterctl.ec2.instances import find_instances, unfinished_of
from clusterctl.ec2.launch.attempt import read_launches
from clusterctl.operations import gc as gc_module
from clusterctl.operations.costs import price_cache
from clusterctl.operations.folder import ClusterFolder
from clusterctl.operations.gc import GarbageCollector, GcOptions
from clusterctl.operations.launcher import Launcher
from tests.moto_ec2 import REGION, clients_of, reset
from tests.operations.commands import NAME, Command, Deed, nothing
from tests.operations.fault_cases import CALLS
from tests.operations.killed import Slayer
from tests.operations.leaks import everything
from tests.operations.wire import Mode, wired

INTERFACES = 5  # of a p4d.24xlarge: one, and an EFA on each of four cards
ALONE = ("eipalloc", "sg", "key", f"clusterctl-{NAME}")  # a cluster has one of each
CASES = 10  # the most cases that share a world


class World:
    """An EC2 with a cluster. `_ready` is the action that made its state, None if it is unknown."""

    def __init__(self, endpoint_url: str, home: Path) -> None:
        self._url = endpoint_url
        self._homes = (home / f"world-{number}" for number in itertools.count())
        self._home = next(self._homes)
        self.clients = wired(endpoint_url)
        self.plain = clients_of(endpoint_url)
        self.folder = ClusterFolder(self._home / NAME)
        self._ready: Deed | None = None
        self._before: set[str] = set()
        self._cases = 0

    @property
    def launcher(self) -> Launcher:
        """The launcher whose calls fail."""
        return Launcher(self.clients, self.folder)

    def prepare(self, deed: Deed) -> None:
        """Perform an action in a new world, unless the last case has left its state."""
        self._cases += 1
        # EC2 shows terminated instances for an hour, which makes reads slow.
        if self._ready is not deed or self._cases > CASES:
            self._cases = 0
            reset()
            self._home = next(self._homes)
            self.folder = ClusterFolder(self._home / NAME)
            self._before = everything(self.plain.ec2)
        if deed is nothing:
            price_cache(self._home).unlink(missing_ok=True)
        self._ready = None
        self.clients.wire.mend()
        deed(self.launcher)

    def left_for(self, deed: Deed) -> None:
        """Note that the case has passed. The next case may use the state for this action."""
        self._ready = deed

    def break_off(self, slayer: Slayer, name: str, command: Command, n: int, mode: Mode) -> bool:
        """Run the command with call `n` broken. Return whether it succeeded anyway."""
        if mode.kills:
            assert slayer.run(name, self.folder.path, n, mode) == 9
            # A killed command prints nothing: `status` shows whether the call was reached.
            there = find_instances(self.plain.ec2, NAME)
            return CALLS[name].split()[n] == "DeleteTags" and not unfinished_of(there)
        self.clients.wire.break_at(n, mode)
        ended = False
        launcher = self.launcher
        try:
            command.act(launcher)
            ended = True
        except ClusterctlError:
            pass
        except KeyboardInterrupt:
            assert mode in (Mode.STOPPED, Mode.INTERRUPTED)
            ended = launcher.progress.done
        called = len(self.clients.wire.calls)
        self.clients.wire.mend()
        assert called > n, (called, ended)
        return ended

    @property
    def extra(self) -> Counter[str]:
        """Count all additional resources by kind, whoever owns them; placement groups by name."""
        more = everything(self.plain.ec2) - self._before
        return Counter(one if one.startswith("clusterctl-") else one.split("-")[0] for one in more)

    def check_whole(self, command: Command) -> None:
        """Assert that there are exactly the wanted nodes, and only the resources that they need."""
        nodes = find_instances(self.plain.ec2, NAME)
        assert [found.node.index for found in nodes] == list(command.indices)
        assert {found.node.state for found in nodes} == {command.state}
        assert {found.wanted for found in nodes} == {command.indices}
        assert not any(found.retired or found.unfinished for found in nodes)
        assert nodes[0].node.public_ip or command.state.value == "stopped"
        count = len(nodes)
        whole = {"i": count, "vol": count, "eni": count * INTERFACES, **dict.fromkeys(ALONE, 1)}
        assert self.extra == whole, self.extra
        assert read_launches(self.folder.launch) == ()

    def check_nothing(self) -> None:
        assert self.extra == {}, self.extra
        assert not self.folder.path.exists()

    def orphans(self) -> list[str]:
        """What `gc` would remove in an hour."""
        found = self._collector(GcOptions()).sweep()
        assert found.unseen == ()
        return [f"{one.resource.kind.value}: {one.why}" for one in found.orphans]

    def collect(self) -> None:
        """Run `gc --cluster` on a machine without the cluster's folder."""
        elsewhere = GarbageCollector(
            {REGION: self.plain}, self._home / "elsewhere", GcOptions(cluster=NAME)
        )
        assert elsewhere.remove(elsewhere.sweep().orphans).left == ()

    def collect_here(self) -> None:
        """`gc --cluster` where its folder is."""
        here = self._collector(GcOptions(cluster=NAME))
        removed = here.remove(here.sweep().orphans)
        assert removed.left == ()

    def _collector(self, wishes: GcOptions) -> GarbageCollector:
        return GarbageCollector({REGION: self.plain}, self._home, wishes)


class Later(datetime):
    """Makes all resources appear an hour old to the collector."""

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + timedelta(hours=1)


def an_hour_later(monkeypatch) -> None:
    monkeypatch.setattr(gc_module, "datetime", Later)
