"""A simulated cluster of relays: its own clock, links with rates, faults at given times."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from clusterctl.copy.coordinator import Coordinator
from clusterctl.copy.topology import SOURCE, CopyTimeouts
from clusterctl.node.relay.messages import (
    UNKNOWN,
    Begin,
    Done,
    Event,
    Gap,
    Listed,
    Listening,
    Lost,
    Order,
    Progress,
    PullFrom,
    Stop,
)

STEP_S = 0.05
MIB = 1 << 20


@dataclass(frozen=True)
class Plan:
    order: tuple[str, ...]
    block_bytes: int = MIB
    streams: int = 2


@dataclass
class Node:
    """One relay. Rates are in bytes/s. `blocked` are the nodes that it cannot connect to.

    `have` is an integer with a bit for each block.
    """

    name: str
    blocks: int
    up: float
    down: float
    have: int = 0
    compare_s: float = 0.0
    listens_at: float = 0.0
    tells_behind: bool = True
    blocked: set[str] = field(default_factory=set)
    frozen: bool = False
    dead: bool = False
    gone: bool = False
    upstream: str = ""
    partial: float = 0.0
    received: int = 0
    begun: bool = False
    has_manifest: bool = False
    ready_at: float | None = None
    gap_told: bool = False
    done_told: bool = False
    listening: bool = False
    stopped: bool = False
    ordered_at: float = 0.0
    heartbeat_at: float = 0.0
    lost_at: float = 0.0
    worked: bool = False
    # Its connections are open, and nothing comes over them until it is linked anew.
    muted: bool = False
    # Its heartbeats come so late, each by another time.
    late_s: float = 0.0
    # It reads so slowly that a file takes this long; what it reads goes on.
    reads_slowly: bool = False
    # The step in which it hangs.
    hangs: str = ""
    moves: int = 0
    arrived: int = 0
    manifest_at: float = 0.0
    sent_at: float = -9.0
    told: tuple = ()
    got_at: float | None = None

    @property
    def works(self) -> bool:
        return not (self.dead or self.frozen or self.stopped)

    @property
    def whole(self) -> bool:
        return self.gap_told and self.have == every(self.blocks)

    def lacks_of(self, other: Node) -> int:
        """Return the blocks that the other node has and this one lacks."""
        return other.have & ~self.have


def every(blocks: int) -> int:
    return (1 << blocks) - 1


def count(blocks: int) -> int:
    return bin(blocks).count("1")


class World:
    """The simulation. `run` advances time until the coordinator stops, or to `limit_s`."""

    def __init__(
        self,
        count: int = 8,
        *,
        rate: float = 20 * MIB,
        blocks: int = 256,
        plan: Plan | None = None,
        timeouts: CopyTimeouts | None = None,
        dry_run: bool = False,
    ) -> None:
        self.names = [f"n{number}" for number in range(count)]
        self.source = Node(SOURCE, blocks, rate, rate, every(blocks))
        self.nodes = {name: Node(name, blocks, rate, rate) for name in self.names}
        self.all = {SOURCE: self.source, **self.nodes}
        self.blocks, self.rate = blocks, rate
        self.plan = plan or Plan(tuple(self.names))
        self.now = 100.0
        self.beside_source = ""
        self.later: list[tuple[float, str, Event]] = []
        self.delays = random.Random(count)
        self.manifest_s = 0.0
        self.faults: list[tuple[float, Callable[[World], None]]] = []
        self.relinks = 0
        self.coordinator = Coordinator(
            self.names, lambda *_: self.plan, dry_run=dry_run, timeouts=timeouts
        )
        for name in self.all:
            self.coordinator.started(self.now, name)

    @property
    def ideal_s(self) -> float:
        return self.blocks * self.plan.block_bytes / self.rate

    @property
    def elapsed_s(self) -> float:
        return self.now - 100.0

    def at(self, when_s: float, what: Callable[[World], None]) -> World:
        self.faults.append((when_s, what))
        return self

    def kill(self, *names: str, noticed: bool = True) -> None:
        for name in names:
            self.all[name].dead = True
            if noticed:
                self.all[name].gone = True
                self.coordinator.ended(self.now, name)

    def freeze(self, *names: str) -> None:
        for name in names:
            self.all[name].frozen = True

    def thaw(self, *names: str) -> None:
        for name in names:
            self.all[name].frozen = False

    def read_fast(self) -> None:
        self.source.up, self.source.reads_slowly = self.rate, False

    def run(self, limit_s: float = 3000.0) -> float:
        """Return the simulated seconds until the end. Fail if it does not end."""
        while not self.coordinator.stopped:
            assert self.elapsed_s < limit_s, self.describe()
            self.step()
        return self.elapsed_s

    def describe(self) -> str:
        peers = self.coordinator.net.peers
        return "\n".join(
            f"{n.name}: {count(n.have)}/{n.blocks} from {n.upstream!r} rate "
            f"{peers[n.name].rate(self.coordinator.now) / MIB:.1f} {peers[n.name].state} "
            f"frozen {n.frozen} dead {n.dead} avoid {peers[n.name].unreachable} "
            f"moves {peers[n.name].moves}"
            for n in self.nodes.values()
        )

    def step(self) -> None:
        self.now += STEP_S
        for fault in [one for one in self.faults if one[0] <= self.elapsed_s]:
            self.faults.remove(fault)
            fault[1](self)
        self._speak()
        self._deliver()
        self._move()
        for name, order in self.coordinator.tick(self.now):
            self._obey(self.all[name], order)
        for node in self.nodes.values():
            self._no_circle(node)

    def _say(self, node: Node, event: Event) -> None:
        waiting = [at for at, name, _ in self.later if name == node.name]
        if node.late_s or waiting:  # events of one node stay in order
            at = self.now + self.delays.uniform(0, node.late_s)
            self.later.append((max([at, *waiting]), node.name, event))
        else:
            self.coordinator.handle_event(self.now, node.name, event)

    def _deliver(self) -> None:
        due = [one for one in self.later if one[0] <= self.now]
        self.later = [one for one in self.later if one[0] > self.now]
        for _, name, event in due:
            if not self.all[name].gone:
                self.coordinator.handle_event(self.now, name, event)

    def _speak(self) -> None:
        for number, node in enumerate(self.all.values()):
            if not node.works:
                continue
            if not node.listening and self.elapsed_s >= node.listens_at:
                node.listening = True
                host = "source" if node.name in (SOURCE, self.beside_source) else node.name
                self._say(node, Listening(host, 4000 + number))
                if node is self.source:
                    size = self.blocks * self.plan.block_bytes
                    self._say(node, Listed("d", 3, size))
            if not node.listening:
                continue
            self._get_ready(node)
            self._tell(node)

    def _get_ready(self, node: Node) -> None:
        if node is self.source:
            node.has_manifest = node.gap_told = True
            return
        upstream = self._reached(node)
        if node.begun and not node.has_manifest and upstream and upstream.has_manifest:
            node.arrived += 1
            node.manifest_at = node.manifest_at or self.elapsed_s + self.manifest_s
            if self.elapsed_s >= node.manifest_at:
                node.has_manifest, node.ready_at = True, self.elapsed_s + node.compare_s
        ready = node.ready_at is not None and self.elapsed_s >= node.ready_at
        if ready and not node.gap_told and node.hangs != "comparing":
            node.gap_told = True
            size = (self.blocks - count(node.have)) * self.plan.block_bytes
            self._say(node, Gap(1, size))
        if node.whole and not node.done_told and node.hangs != "writing to disk":
            node.done_told, node.got_at = True, self.elapsed_s
            self._say(node, Done(1, node.received))

    def _tell(self, node: Node) -> None:
        figures = (count(node.have) if node.gap_told else 0, node.received + int(node.partial))
        due = 0.25 if figures != node.told else 1.0
        if self.now - node.sent_at < due:
            return
        node.told, node.sent_at = figures, self.now
        behind, upstream = UNKNOWN, self.all.get(node.upstream)
        if node.tells_behind and upstream:
            behind = count(node.lacks_of(upstream)) if upstream.gap_told else 0
        node.moves += node.reads_slowly
        stuck = node.hangs == "comparing" and node.ready_at is not None and not node.gap_told
        step = node.hangs if stuck or (node.hangs == "writing to disk" and node.whole) else ""
        step = step or ("reading" if node.reads_slowly else "")
        path = "/data/x" if step else ""
        self._say(
            node,
            Progress(
                *figures, behind, step=step, path=path, moves=node.moves, arrived=node.arrived
            ),
        )

    def _reached(self, node: Node) -> Node | None:
        upstream = self.all.get(node.upstream)
        ok = upstream and upstream.works and upstream.name not in node.blocked and not node.muted
        return upstream if ok else None

    def _move(self) -> None:
        busy: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            if not (node.works and node.begun) or node.whole:
                continue
            upstream = self._reached(node)
            if upstream:
                node.heartbeat_at, node.worked = self.now, True
            self._tell_loss(node)
            if upstream and node.gap_told and upstream.gap_told and node.lacks_of(upstream):
                busy.setdefault(upstream.name, []).append(node)
        for name, children in busy.items():
            up = self.all[name].up * STEP_S
            left = len(children)
            for child in sorted(children, key=lambda one: one.down):
                share = min(up / left, child.down * STEP_S)
                up, left = up - share, left - 1
                self._receive(child, self.all[name], share)

    def _receive(self, node: Node, upstream: Node, size: float) -> None:
        node.partial += size
        node.arrived += int(size)
        lacking = node.lacks_of(upstream)
        while node.partial >= self.plan.block_bytes and lacking:
            node.partial -= self.plan.block_bytes
            first = lacking & -lacking
            node.have, lacking = node.have | first, lacking ^ first
            node.received += self.plan.block_bytes
        if not lacking:
            node.partial = 0.0

    def _tell_loss(self, node: Node) -> None:
        """Say each second that there is no connection, as `TargetRelay._lost` does.

        A new connection to a frozen relay is not answered, and TCP finds after 14 s that a path is
        cut.
        """
        upstream = self.all.get(node.upstream)
        if upstream is None or self.now - node.lost_at < 1.0:
            return
        for_s = self.now - max(node.heartbeat_at, node.ordered_at)
        kind = ""
        if upstream.name in node.blocked:
            kind = "refused"
        elif upstream.dead and upstream.gone:
            kind = "closed"
        elif not upstream.works:
            kind, for_s = "silent", for_s - 14.0
        if kind and for_s >= 1.0:
            node.lost_at = self.now
            self._say(node, Lost(node.upstream, kind, kind, for_s, node.worked))

    def _obey(self, node: Node, order: Order) -> None:
        if isinstance(order, Begin):
            node.begun = True
        elif isinstance(order, PullFrom):
            assert order.name != node.name
            self.relinks += 1
            node.upstream, node.ordered_at, node.worked = order.name, self.now, False
            node.muted = False
        elif isinstance(order, Stop):
            node.stopped = True

    def _no_circle(self, node: Node) -> None:
        seen, above = [node.name], self.all.get(node.upstream)
        while above is not None and not above.whole:
            assert above.name not in seen, f"a circle: {seen}"
            seen.append(above.name)
            above = self.all.get(above.upstream)

    def check(self) -> None:
        """Assert that all healthy nodes have everything, and that only unhealthy ones failed."""
        for name, node in self.nodes.items():
            error = self.coordinator.net.peers[name].error
            if node.hangs and not (node.dead or node.frozen):
                assert error is None or f"it hangs {node.hangs} /data/x" in error.message, error
            elif not (node.dead or node.frozen):
                assert error is None, (name, error, self.describe())
                assert node.whole, (name, self.describe())


def scenario(seed: int) -> World:
    """Return a random cluster with random faults. At least one node stays healthy."""
    rng = random.Random(seed)
    count = rng.randint(1, 12)
    world = World(count, blocks=rng.choice([1, 7, 64, 200]), rate=rng.choice([5, 20, 100]) * MIB)
    tells = rng.random() < 0.7
    for node in world.nodes.values():
        node.tells_behind = tells
        if rng.random() < 0.3:
            node.have = rng.getrandbits(world.blocks) & rng.getrandbits(world.blocks)
        if rng.random() < 0.15:
            node.down = world.rate / rng.choice([3, 10])
        if rng.random() < 0.15:
            node.up = world.rate / rng.choice([3, 10])
        if rng.random() < 0.1:
            node.listens_at = rng.uniform(0, 8)
        if rng.random() < 0.2:
            node.compare_s = rng.uniform(0, 12)
        if rng.random() < 0.1:
            node.blocked = set(rng.sample(world.names, rng.randint(0, count))) - {node.name}
    faulty = world.names[: rng.randint(0, max(0, count - 1))]
    rng.shuffle(faulty)
    for name in faulty[: rng.randint(0, len(faulty))]:
        when, kind = rng.uniform(0, 2 * world.ideal_s), rng.random()
        if kind < 0.4:
            world.at(when, lambda w, n=name: w.kill(n))
        elif kind < 0.6:
            world.at(when, lambda w, n=name: w.kill(n, noticed=False))
        elif kind < 0.8:
            world.at(when, lambda w, n=name: w.freeze(n))
        else:
            world.at(when, lambda w, n=name: w.freeze(n))
            world.at(when + rng.uniform(0.5, 10), lambda w, n=name: w.thaw(n))
    return world


def restless(seed: int, steps: int = 50) -> World:
    """Return a cluster to which something happens at each of `steps` random times.

    Connections are cut for seconds, or stay open and carry nothing; heartbeats race; the source
    reads slowly; nodes hang in a step, freeze, or die. At least one node stays healthy. What is
    cut is whole again before anybody has to give up.
    """
    rng = random.Random(f"restless {seed}")
    count = rng.randint(2, 8)
    world = World(count, blocks=rng.choice([64, 200]), rate=rng.choice([1, 5]) * MIB)
    healthy = rng.choice(world.names)
    until = 3 * world.ideal_s

    def happen(kind: float, name: str, other: str, for_s: float) -> Callable[[World], None]:
        def act(now: World) -> None:
            node = now.all[name]
            if kind < 0.35:
                node.blocked = node.blocked | {other}
                now.at(now.elapsed_s + for_s, lambda w: w.all[name].blocked.discard(other))
            elif kind < 0.55:
                node.muted = name != SOURCE and bool(node.upstream)
            elif kind < 0.75:
                node.late_s = rng.choice([0.0, 0.3, 0.9])
            elif kind < 0.85:
                source = now.source
                source.up, source.reads_slowly = now.rate / rng.choice([5, 20]), True
                now.at(now.elapsed_s + for_s, World.read_fast)
            elif name not in (healthy, SOURCE) and rng.random() < 0.2:
                if kind < 0.9:
                    node.hangs = rng.choice(["comparing", "writing to disk"])
                elif kind < 0.95:
                    now.freeze(name)
                else:
                    now.kill(name)

        return act

    for _ in range(steps):
        one, other = rng.sample([SOURCE, *world.names], 2)
        if one != SOURCE:
            world.at(rng.uniform(0, until), happen(rng.random(), one, other, rng.uniform(0.5, 20)))
    return world
