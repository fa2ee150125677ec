"""An EC2 with one cluster, and the resources that it has in addition to the initial ones."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.files import ClusterFolder
from clusterctl.ec2.gc.orphans import GcOptions
from clusterctl.ec2.instances import find_instances, unfinished_of
from clusterctl.ec2.launch.attempt import read_launches
from clusterctl.ec2.node_role import role_name
from clusterctl.operations import gc as gc_module
from clusterctl.operations.gc import GarbageCollector
from clusterctl.operations.launcher import Launcher
from tests.moto_ec2 import REGION, clients_of, forget_terminated, reset
from tests.operations.commands import COMMANDS, NAME, SHORT, Action, Command, nothing, stop, up
from tests.operations.commands import up_and_stopped as stopped
from tests.operations.killed import Killer
from tests.operations.leaks import everything
from tests.operations.wire import ApiCall, Mode, wired

INTERFACES = 3  # of a g6e.24xlarge: one, and an EFA on each of two cards
ROLE = role_name(NAME, REGION)
# A cluster has one of each.
ALONE = ("eipalloc", "sg", "key", f"clusterctl-{NAME}", f"role:{ROLE}", f"profile:{ROLE}")
# The calls of each command in a new world where nothing fails.
_recorded: dict[str, tuple[ApiCall, ...]] = {}


class World:
    """An EC2 with a cluster. `_ready` is the action that made its state, None if it is unknown."""

    def __init__(self, endpoint_url: str, home: Path) -> None:
        self._url = endpoint_url
        self._homes = (home / f"world-{number}" for number in itertools.count())
        self._home = next(self._homes)
        self.clients = wired(endpoint_url)
        self.plain = clients_of(endpoint_url)
        self.folder = ClusterFolder(self._home / NAME)
        self.timeouts = SHORT
        self._ready: Action | None = None
        self._before: set[str] = set()

    @property
    def launcher(self) -> Launcher:
        """The launcher whose calls fail."""
        return Launcher(self.clients, self.folder, timeouts=self.timeouts)

    def prepare(self, before: Action) -> None:
        """Make the state for a case, if possible from the one that the last case has left."""
        ready, self._ready = self._ready, None
        self.clients.wire.mend()
        if ready is up and before is stopped:
            stop(self.launcher)
        elif ready is not before:
            self._begin()
            before(self.launcher)
        if before is nothing:
            (self._home / "prices.json").unlink(missing_ok=True)
        self.clients.wire.mend()

    def _begin(self) -> None:
        reset()
        self._home = next(self._homes)
        self.folder = ClusterFolder(self._home / NAME)
        self._before = everything(self.plain.ec2, self.plain.iam)

    def left_for(self, state: Action) -> None:
        """Note that the case has passed. The next case may use the state that it has left."""
        # EC2 shows them for an hour, which makes reads slow.
        forget_terminated()
        self._ready = state

    def leave(self, command: Command) -> None:
        """Return to the state of `up`, if possible, after a command that has passed."""
        if command.back:
            command.back(self.launcher)
            self.left_for(up)

    def calls_of(self, name: str) -> tuple[ApiCall, ...]:
        """Return the calls of a command, recorded in its first run."""
        if name not in _recorded:
            command = COMMANDS[name]
            # A command can make more calls in a world with a history, for example to note costs.
            self._ready = None
            self.prepare(command.before)
            command.act(self.launcher)
            _recorded[name] = tuple(self.clients.wire.calls)
            self.clients.wire.mend()
            if name == "down":
                self.check_nothing()
                self.left_for(nothing)
            else:
                self.check_whole(command)
                self.leave(command)
        return _recorded[name]

    def break_off(self, killer: Killer, name: str, call: ApiCall, mode: Mode) -> bool:
        """Run the command with a call broken. Return whether it succeeded anyway."""
        if mode.kills:
            assert killer.run(name, self.folder.path, call, mode) == 9
            # A killed command prints nothing: `status` shows whether the call was reached.
            there = find_instances(self.plain.ec2, NAME)
            return call.action == "DeleteTags" and not unfinished_of(there)
        wire = self.clients.wire
        wire.break_at(call, mode)
        ended = False
        launcher = self.launcher
        try:
            COMMANDS[name].act(launcher)
            ended = True
        except ClusterctlError:
            pass
        except KeyboardInterrupt:
            assert mode in (Mode.STOPPED, Mode.INTERRUPTED)
            ended = launcher.progress.done
        calls = wire.calls
        wire.mend()
        # A state may be reached after fewer reads than in the run that was recorded.
        assert call in calls or (ended and not call.changes), calls
        return ended

    @property
    def extra(self) -> Counter[str]:
        """Count all additional resources by kind, whoever owns them; placement groups by name."""
        more = everything(self.plain.ec2, self.plain.iam) - self._before
        return Counter(one if "clusterctl-" in one else one.split("-")[0] for one in more)

    def check_whole(self, command: Command) -> None:
        """Assert that there are exactly the wanted nodes, and only the resources that they need."""
        nodes = find_instances(self.plain.ec2, NAME)
        assert [found.node.index for found in nodes] == list(command.indices)
        assert {found.node.state for found in nodes} == {command.state}
        assert {found.wanted for found in nodes} == {command.indices}
        assert not any(found.retired or found.unfinished for found in nodes)
        assert nodes[0].node.public_ip or command.state.value == "stopped"
        assert {found.instance_profile for found in nodes} == {ROLE}
        count = len(nodes)
        whole = {"i": count, "vol": count, "eni": count * INTERFACES, **dict.fromkeys(ALONE, 1)}
        assert self.extra == whole, self.extra
        assert read_launches(self.folder.launch) == ()

    @property
    def instance_ids(self) -> set[str]:
        """The ids of the cluster's instances."""
        return {one.node.instance_id for one in find_instances(self.plain.ec2, NAME)}

    def check_end(self, name: str, before: set[str]) -> None:
        """Assert the end of a command, and how many of the instances of `before` it took."""
        if name == "down":
            self.check_nothing()
            return
        self.check_whole(COMMANDS[name])
        lost = {"remove": 1, "replace": 1, "replace-head": 1}
        assert len(before - self.instance_ids) == lost.get(name, 0)

    def check_nothing(self) -> None:
        assert self.extra == {}, self.extra
        assert not self.folder.path.exists()

    def orphans(self) -> list[str]:
        """What `gc` would remove in an hour."""
        found = self._collector(GcOptions()).sweep()
        assert found.failures == ()
        return [f"{one.resource.kind.value}: {one.why}" for one in found.orphans]

    def collect(self) -> None:
        """Run `gc --cluster` on a machine without the cluster's folder."""
        elsewhere = GarbageCollector(
            *({REGION: self.plain}, self._home / "elsewhere", GcOptions(cluster=NAME)),
            timeouts=self.timeouts,
        )
        assert elsewhere.remove(elsewhere.sweep().orphans).left == ()

    def collect_here(self) -> None:
        """`gc --cluster` where its folder is."""
        here = self._collector(GcOptions(cluster=NAME))
        removed = here.remove(here.sweep().orphans)
        assert removed.left == ()

    def _collector(self, wishes: GcOptions) -> GarbageCollector:
        return GarbageCollector({REGION: self.plain}, self._home, wishes, timeouts=self.timeouts)


class Later(datetime):
    """Makes all resources appear an hour old to the collector."""

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + timedelta(hours=1)


def an_hour_later(monkeypatch) -> None:
    monkeypatch.setattr(gc_module, "datetime", Later)
