"""Launches against the lab's API, with its faults. Every RunInstances request is recorded."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from clusterctl.domain.cluster import ClusterSpec
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.launch import execution
from clusterctl.ec2.launch.attempt import read_launches
from clusterctl.ec2.launch.observe import fixed_request, observe
from clusterctl.ec2.launch.plan import plan_launch
from clusterctl.ec2.tags import Creations
from clusterctl.lab.ec2 import placement_groups
from clusterctl.lab.faults.page import admit
from clusterctl.lab.faults.store import FAULTS
from clusterctl.lab.hosts.instances import all_lab_instances
from tests.clock import LabClock
from tests.hostless import clear_faults
from tests.lab.running import wait_until
from tests.moto_ec2 import clients_with

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGpKsSb4iRTaMhcPcU3cYKcwWxW8oXhGJFRSgkE3Jd2k x"
TYPE, ZONES = "p4d.24xlarge", ("us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d")


def refused(code: str, status: int = 400) -> ClientError:
    """Return EC2's error for a refused request."""
    response: Any = {
        "Error": {"Code": code, "Message": f"says EC2: {code}"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, "RunInstances")


class Trouble:
    """A client one method of which raises these errors, one per call, before or after the call."""

    def __init__(self, client, method, *errors, after=False):
        self._client, self._method, self._after = client, method, after
        self._errors = list(errors)
        self.requests = []

    def __getattr__(self, name):
        return self._call if name == self._method else getattr(self._client, name)

    def _call(self, **arguments):
        self.requests.append(arguments)
        error = self._errors.pop(0) if self._errors else None
        if error and not self._after:
            raise error
        answer = getattr(self._client, self._method)(**arguments)
        if error:
            raise error
        return answer


@dataclass
class Launches:
    """Launches. `sent` are the requests of RunInstances; `told` are the messages to the user."""

    client: Any
    record: Path
    sent: list[dict[str, Any]] = field(default_factory=list)
    written: list[list[str]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    clock: LabClock = field(default_factory=LabClock)
    timeouts: Timeouts | None = None
    errors: list[Exception | None] = field(default_factory=list)

    def refuse(self, code: str, status: int = 400, times: int = 1) -> None:
        """Make the next requests of RunInstances fail."""
        self.errors += [refused(code, status)] * times

    @property
    def creations(self) -> Creations:
        path = self.record.with_name("creations.json")
        return Creations(path, self.timeouts or Timeouts(self.clock))

    def plan(self, spec: ClusterSpec, launch_id: str = "launch"):
        clients = clients_with(self.client)
        observed = observe(clients, spec.name, fixed_request(spec), self.record, self.creations)
        return plan_launch(observed, PUBLIC_KEY, launch_id)

    def up(self, spec: ClusterSpec, launch_id: str = "launch", capacity_timeout_s: float = 0.0):
        plan = self.plan(spec, launch_id)
        assert not plan.refused, plan.findings
        return self.carry_out(plan, capacity_timeout_s)

    def carry_out(self, plan, capacity_timeout_s: float = 0.0):
        creations = replace(self.creations, notify=self.told.append)
        clients = clients_with(self.client)
        return execution.carry_out(clients, plan, self.record, creations, capacity_timeout_s)

    def alive(self) -> list[tuple[int, str]]:
        """Return index and zone of the running and pending instances."""
        found = find_instances(self.client, "demo")
        return [(one.node.index, one.node.zone[-1]) for one in found]

    def subnet(self, zone: str) -> str:
        named = [
            {"Name": "availability-zone", "Values": [zone]},
            {"Name": "default-for-az", "Values": ["true"]},
        ]
        return str(self.client.describe_subnets(Filters=named)["Subnets"][0]["SubnetId"])

    def tokens(self) -> list[str]:
        return [request["ClientToken"] for request in self.sent]

    def keep(self, params: dict[str, Any], **_: Any) -> None:
        self.sent.append(params)
        self.written.append([one.token for one in read_launches(self.record)])
        error = self.errors.pop(0) if self.errors else None
        if error:
            raise error


# To make a client takes as long as a launch.
single_attempts = functools.lru_cache(maxsize=2)(execution.without_retries)


@pytest.fixture
def launches(client, tmp_path, monkeypatch):
    yield from launches_with(client, tmp_path, monkeypatch)


def launches_with(client, tmp_path, monkeypatch):
    """Yield the launches of a fixture."""
    made = Launches(client, tmp_path / "launch.json")
    once = single_attempts(client)
    monkeypatch.setattr(placement_groups, "PENDING_S", 0.03)
    monkeypatch.setattr(execution, "without_retries", lambda _: once)
    event = "provide-client-params.ec2.RunInstances"
    once.meta.events.register(event, made.keep)
    yield made
    once.meta.events.unregister(event, made.keep)


@pytest.fixture
def faults():
    """Return a function that sets faults. The end of the test removes them and their effects."""
    yield lambda fault: FAULTS.add(admit(fault))
    clear_faults()
    wait_until(
        lambda: all(one.is_stable for one in all_lab_instances() if one.state != "pending"),
        "settled",
    )
