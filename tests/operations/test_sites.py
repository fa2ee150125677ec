"""A cluster is in one region of one account: random commands from other regions and accounts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from clusterctl.domain.cluster import ClusterSpec
from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.files import ClusterFolder
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.launch.observe import fixed_request
from clusterctl.ec2.session import Account, Clients
from clusterctl.operations import down as down_module
from clusterctl.operations import up as up_module
from clusterctl.operations.launcher import Launcher
from clusterctl.operations.local_state import local_key
from tests.cli.running import at_moto
from tests.moto_ec2 import OTHER_KEY, REGION, clients_of, forget_terminated, reset
from tests.operations.commands import NAME, SHORT, down_from
from tests.operations.wire import Mode, WiredClients
from tests.variants import usual

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("soon")]

SPEC = ClusterSpec(NAME, 1, "g5.xlarge")
# Faults of a call, by the network or by a killed command.
MODES = (Mode.REFUSED, Mode.FAILED, Mode.LOST, Mode.STOPPED, Mode.INTERRUPTED)


@dataclass(frozen=True)
class Place:
    """A region of an account. `clients` are its user's; their calls can be broken."""

    clients: WiredClients
    plain: Clients

    @property
    def region(self) -> str:
        return str(self.plain.account.region)

    def __str__(self) -> str:
        return f"{self.plain.account_id} {self.region}"

    def alive(self) -> set[str]:
        return {one.node.instance_id for one in find_instances(self.plain.ec2, NAME)}


@pytest.fixture(scope="module")
def places(moto_url):
    """Return two accounts with different credentials, in two regions each."""
    reset()
    second = Clients(Account(region=REGION, endpoint_url=moto_url, **OTHER_KEY))
    plain = [
        clients.in_region(region)
        for clients in (clients_of(moto_url), second)
        for region in (REGION, "us-west-2")
    ]
    return [Place(WiredClients(one), one) for one in plain]


class Machine:
    """One user's folder of a cluster, and the cluster's state in all places."""

    def __init__(self, places: list[Place], home: Path, chance: random.Random) -> None:
        self.places, self.chance = places, chance
        self.folder = ClusterFolder(home / "user" / NAME)
        self._elsewhere = ClusterFolder(home / "another" / NAME)
        self._keys: dict[str, str] = {}
        self.told: list[str] = []

    def step(self) -> None:
        act = self.chance.choice((self.up, self.up, self.down, self.others))
        act()
        self.check()

    def up(self) -> None:
        def command(place: Place) -> object:
            return up_module.up(Launcher(place.clients, self.folder), fixed_request(SPEC))

        self._command("up", command)

    def down(self) -> None:
        self._command("down", lambda place: down_module.down(place.clients, self.folder))

    def others(self) -> None:
        """End the nodes, as by --max-hours, or remove the cluster, as by a colleague."""
        place = self._where()
        if self.chance.random() < 0.5:
            self.told.append(f"ended in {place}")
            if place.alive():
                place.plain.ec2.terminate_instances(InstanceIds=[*place.alive()])
        else:
            self.told.append(f"removed by another in {place}")
            down_from(place.plain, self._elsewhere)

    def _where(self) -> Place:
        """Choose a place. The cluster's, or one where only the account is wrong, is more likely."""
        own = [place for place in self.places if place.alive()]
        near = [place for place in self.places for one in own if place.region == one.region]
        return self.chance.choice([*self.places, *own, *near, *near])

    def _command(self, name: str, act: Callable[[Place], object]) -> None:
        place = self._where()
        own = bool(place.alive())
        broken = self.chance.random() < 0.3
        wire = place.clients.wire
        if broken:
            wire.break_at(self.chance.randrange(22), self.chance.choice(MODES))
        self.told.append(f"{name} in {place}{', broken' if broken else ''}")
        try:
            act(place)
        except (ClusterctlError, KeyboardInterrupt) as error:
            self.told[-1] += f": {error!r}"
            assert broken or not own, self.told
        else:
            if name == "down":
                # After the message that the cluster is removed, nothing costs money.
                assert not any(one.alive() for one in self.places), self.told
                assert not self.folder.path.exists()
        finally:
            wire.mend()

    def check(self) -> None:
        """Assert that there is no second cluster, and that the key of running nodes is not lost."""
        alive = [place.alive() for place in self.places]
        assert sum(map(bool, alive)) <= 1, self.told
        ids = set().union(*alive)
        if ids:
            assert self.folder.key.exists(), self.told
            public = local_key(self.folder, NAME).public
            assert {self._keys.setdefault(one, public) for one in ids} == {public}, self.told

    def end(self) -> None:
        """Assert that `down` removes the cluster in its place, whatever has happened before."""
        for place in self.places:
            if place.alive():
                down_module.down(place.clients, self.folder)
                assert not self.folder.path.exists(), self.told
            down_from(place.plain, self._elsewhere)
            assert not place.alive()


@pytest.mark.parametrize("seed", usual(1, range(5)))
def test_no_key_is_lost_and_nothing_launched_twice(places, tmp_path, seed):
    machine = Machine(places, tmp_path, random.Random(seed))
    try:
        for _ in range(20):
            machine.step()
    finally:
        machine.end()


@pytest.fixture
def clusterctl(places, tmp_path, monkeypatch, capsys):
    """Return the command line with the first account's credentials, after it launched a cluster."""
    own = places[0]
    up_module.up(Launcher(own.clients, ClusterFolder(tmp_path / NAME)), fixed_request(SPEC))
    yield at_moto(own.plain.account.endpoint_url, tmp_path, monkeypatch, capsys, SHORT)
    for place in places:
        down_from(place.plain, ClusterFolder(tmp_path / "nowhere" / NAME))


COMMANDS = (
    "up demo --nodes 1 --instance-type g5.xlarge",
    "up demo",
    "up demo --nodes 1 --instance-type g5.xlarge --dry-run",
    "down demo --yes",
    "add demo 1",
    "add demo 1 --dry-run",
    "remove demo 0 --yes",
    "replace demo 0 --yes --force",
    "stop demo --force",
    "start demo",
    "status demo",
    "hosts demo",
    "run demo true",
    "train demo 1",
    "costs demo",
    "gc --cluster demo",
)


def test_every_command_with_the_wrong_credentials(clusterctl, places, monkeypatch):
    other = places[2]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", OTHER_KEY["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", OTHER_KEY["secret_key"])
    there = places[0].alive()
    # A cluster of the same name elsewhere does not belong to this folder.
    namesake = ClusterFolder(clusterctl.home / "namesake" / NAME)
    for launched in (False, True):
        if launched:
            up_module.up(Launcher(other.clients, namesake), fixed_request(SPEC))
        theirs = other.alive()
        for command in COMMANDS:
            ran = clusterctl(*command.split())
            assert (ran.status, ran.out) == (2, ""), (command, ran)
            assert "is in account 123456789012, not in account 210987654321" in ran.err, ran
        assert (places[0].alive(), other.alive()) == (there, theirs)
    assert ClusterFolder(clusterctl.home / NAME).key.exists()


def test_nothing_found_is_not_removed(clusterctl, places):
    folder = ClusterFolder(clusterctl.home / NAME)
    down_from(places[0].plain, ClusterFolder(clusterctl.home / "elsewhere" / NAME))
    forget_terminated()
    ran = clusterctl("down", "demo", "--yes")
    assert (ran.status, ran.out) == (1, "")
    assert f"rm -r {folder.path}" in ran.err
    assert folder.key.exists()


@pytest.mark.parametrize("key_pair", usual(1, [True, False]))
def test_a_machine_without_the_key_changes_nothing_but_by_stop_and_down(
    clusterctl, places, monkeypatch, key_pair
):
    own, ec2 = places[0], places[0].plain.ec2
    up_module.up(
        Launcher(own.clients, ClusterFolder(clusterctl.home / NAME)),
        fixed_request(replace(SPEC, nodes=2)),
    )
    assert clusterctl("quarantine", "demo", "1").status in (0, 255)
    if not key_pair:
        ec2.delete_key_pair(KeyName="clusterctl-demo")
    there = ec2.describe_instances()["Reservations"]
    monkeypatch.setenv("CLUSTERCTL_HOME", str(clusterctl.home / "other"))
    for command in (
        "up demo",
        "add demo 1 --yes",
        "remove demo 1 --yes",
        "remove demo 1 --yes --force",
        "replace demo 1 --yes",
        "replace demo 1 --yes --force",
        "start demo",
        "quarantine demo 1 --reason again",
        "release demo 1",
    ):
        ran = clusterctl(*command.split())
        assert (ran.status, ran.out) == (1, ""), (command, ran)
        assert "the key of cluster demo is not on this machine" in ran.err, (command, ran)
        assert ec2.describe_instances()["Reservations"] == there, command


@pytest.mark.parametrize(
    ("content", "says", "helps"),
    usual(
        2,
        [
            (b"\xff\xfe", "cannot read {}: ", "if you are sure of both"),
            (
                b"us-east-1 at x, account 123456789012, format 2\n",
                "{} was made by a newer clusterctl: ', format 2' is not known here",
                "use that version here, too",
            ),
            *(
                (content, "cannot read {}: ", "if you are sure of both")
                for content in (b"us-east-1, account 1", b"", b"\n", b"us-east-1")
            ),
        ],
    ),
)
def test_a_folder_that_cannot_say_where_its_cluster_is_stops_every_command(
    clusterctl, places, monkeypatch, content, says, helps
):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", OTHER_KEY["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", OTHER_KEY["secret_key"])
    folder = ClusterFolder(clusterctl.home / NAME)
    kept = folder.site.read_bytes()
    folder.site.write_bytes(content)
    for command in COMMANDS:
        ran = clusterctl(*command.split())
        assert (ran.status, ran.out) == (1, ""), (command, ran)
        assert says.format(folder.site) in ran.err, ran
        assert helps in ran.err, ran
    assert folder.key.exists()
    folder.site.write_bytes(kept)


def test_sts_is_asked_only_where_instances_do_not_say_whose_they_are(clusterctl, monkeypatch):
    def refuse(client):
        raise AwsError("AccessDenied", "no")

    monkeypatch.setattr(Clients, "account_id", property(refuse))
    assert clusterctl("status", "demo").status == 0
    assert clusterctl("up", "other", "--nodes", "1", "--instance-type", "g5.xlarge").status == 1
    assert not (clusterctl.home / "other").exists()
    assert clusterctl("down", "demo", "--yes").status == 0
    assert not (clusterctl.home / "demo").exists()
