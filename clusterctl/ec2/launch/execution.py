"""Carry out a plan: its steps in order, and each launch at the first place that has room."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import AwsError
from clusterctl.domain.units import count, format_duration
from clusterctl.ec2 import tags
from clusterctl.ec2.cluster_resources import await_available
from clusterctl.ec2.errors import gaps, throttled, translated
from clusterctl.ec2.instances import PRESENT, Instance, find_instances, members_of, tag
from clusterctl.ec2.launch.attempt import (
    MADE_JUST_NOW,
    Attempt,
    SentLaunch,
    read_launches,
    write_launches,
)
from clusterctl.ec2.launch.capacity import Move, Place, move_for, next_place, out_of_capacity
from clusterctl.ec2.launch.plan import LaunchPlan
from clusterctl.ec2.launch.request import Step
from clusterctl.ec2.network.vpcs import release_addresses
from clusterctl.ec2.session import without_retries

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


FIRST_WAIT_S, LONGEST_WAIT_S = 30.0, 600.0


class CapacityTimeout:
    """Waits for capacity, ever longer, for `timeout_s` in all."""

    def __init__(self, timeout_s: float) -> None:
        self._deadline = time.monotonic() + timeout_s
        self._gaps = gaps(FIRST_WAIT_S, 2.0, LONGEST_WAIT_S)

    def wait(self, failure: AwsError, on_step: Callable[[str], None]) -> None:
        """Wait until the next try. Raises `failure` when there is no time for another."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise failure
        wait_s = min(next(self._gaps), left_s)
        why = "no capacity" if "Capacity" in failure.code else failure.code
        on_step(
            f"{why}; next try in {format_duration(wait_s)}, giving up in {format_duration(left_s)}"
        )
        time.sleep(wait_s)


def search(
    plan: LaunchPlan,
    step: Step,
    results: dict[str, Any],
    attempt: Attempt,
    timeout: CapacityTimeout,
    on_step: Callable[[str], None],
) -> tuple[Instance, ...]:
    """The instances that the step launched, at the first of the plan's places that has room.

    Raises AwsError: what no other place mends, or that all were tried and time is up.
    """
    indices = attempt.indices_of(step)
    place = _place_of(plan, step)
    tried: list[Place] = []
    for number in itertools.count(1):
        try:
            return attempt.launch(step, results)
        except AwsError as error:
            move, failure = move_for(error.code), error
        if move not in (Move.NEXT_PLACE, Move.WAIT):
            raise failure
        tried.append(place)
        other = next_place(plan.places, tried, failure.message)
        if move is Move.WAIT:
            # Another place would not change it.
            timeout.wait(failure, on_step)
            tried, other = [], place
        elif other is None:
            bound = bool(members_of(plan.seen.instances))
            timeout.wait(out_of_capacity(tried, failure, bound), on_step)
            tried, other = [], plan.places[0]
        place = other
        # Never the same token twice after a definite answer: EC2 would compare the requests.
        step = plan.step_at(place, indices, f"{plan.launch_id}-{indices[0]}-{number}")
        on_step(f"{failure.code}; {step.describe()}")
    raise AssertionError("unreachable")


def _place_of(plan: LaunchPlan, step: Step) -> Place:
    subnet = step.arguments["NetworkInterfaces"][0].get("SubnetId")
    instance_type = step.arguments["InstanceType"]
    return next(
        place
        for place in plan.places
        if (place.instance_type, place.subnet_id) == (instance_type, subnet)
    )


ATTEMPTS = 5
STOPS_WITHIN_S = 600.0
# What EC2 says of an instance that takes no address because it is still starting.
STILL_STARTING = ("InvalidInstanceID", "IncorrectInstanceState")
# A step may meet what the step before has made before all of EC2 knows of it.
NOT_YET_KNOWN = (
    *MADE_JUST_NOW,
    "InvalidNetworkInterfaceID.NotFound",
    "InvalidAllocationID.NotFound",
    "InvalidInstanceID.NotFound",
)


@dataclass
class _Remaining:
    """The steps of one plan that are left, and what the others have brought so far.

    `last` is the operation of the last one that was done. `lost` are the indices of nodes that were
    not to be had, and can be done without.
    """

    steps: list[Step]
    results: dict[str, Any] = field(default_factory=dict)
    launched: list[str] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    last: str = ""


def carry_out(
    client: EC2Client,
    plan: LaunchPlan,
    launch_record: Path,
    on_step: Callable[[str], None] = lambda text: None,
    capacity_timeout_s: float = 0.0,
    before_start: Callable[[], None] = lambda: None,
) -> tuple[Instance, ...]:
    """Execute the steps, and wait until none of the launched instances is pending any more.

    `before_start` is called before each request to start what is stopped.

    Returns the cluster's members. A launch of unknown outcome stays in `launch_record`.
    Raises AwsError, ClusterctlError; an attempt that failed has left nothing running.
    """
    work = _Remaining(list(plan.steps))
    attempt = Attempt(client, without_retries(client), plan.spec.name, launch_record, on_step)
    write_launches(launch_record, _sent_again(plan, launch_record))
    try:
        _carry_out(client, plan, work, attempt, CapacityTimeout(capacity_timeout_s), before_start)
    except AwsError:
        # Without nodes an address only costs. Where a launch may have taken place it is kept.
        if "AllocationId" in work.results and not read_launches(launch_record):
            _give_back(client, plan.spec.name, on_step)
        raise
    if work.lost:
        _accept_fewer(client, plan, work.lost, on_step)
    write_launches(launch_record, ())
    unchanged = work.last == "run_instances" and not work.lost
    found = attempt.seen if unchanged else find_instances(client, plan.spec.name, states=())
    return _members(found, work.launched)


def _carry_out(
    client: EC2Client,
    plan: LaunchPlan,
    work: _Remaining,
    attempt: Attempt,
    timeout: CapacityTimeout,
    before_start: Callable[[], None],
) -> None:
    on_step = attempt.on_step
    while work.steps:
        step = work.steps.pop(0)
        work.last = step.operation
        on_step(step.describe())
        if step.operation == "run_instances":
            if "Placement" in step.arguments:
                await_available(client, plan.spec.name)
            _launch(plan, step, work, attempt, timeout)
        elif step.operation == "start_instances":
            _start(client, step, timeout, before_start, on_step)
        elif step.operation == "associate_address":
            _associate(client, plan.spec.name, step, work.results)
        else:
            # Each repetition that botocore makes of this one would bring one more.
            sent_by = attempt.once if step.operation == "allocate_address" else client
            answer = _repeated(sent_by, step, step.resolved(work.results))
            work.results.update({key: answer[key] for key in step.gives})


def _give_back(client: EC2Client, name: str, on_step: Callable[[str], None]) -> None:
    """Release the cluster's address if it has no instance left. `up` again would find it."""
    with suppress(AwsError):
        if not find_instances(client, name):
            released = release_addresses(client, name)
            on_step(f"ReleaseAddress: {', '.join(released)}, there is no node to have it")


def _associate(client: EC2Client, name: str, step: Step, results: Mapping[str, Any]) -> None:
    """A node that is still starting takes no address yet."""
    deadline = time.monotonic() + STOPS_WITHIN_S
    arguments = step.resolved(results)
    for gap_s in gaps(0.5):
        try:
            _repeated(client, step, arguments)
            return
        except AwsError as error:
            if error.code not in STILL_STARTING or time.monotonic() > deadline:
                raise
            interface = arguments["NetworkInterfaceId"]
            head = [one for one in find_instances(client, name) if one.interface_id == interface]
            if not any(one.node.state is NodeState.PENDING for one in head):
                # It may have got there since; what EC2 says then is final.
                _repeated(client, step, arguments)
                return
        time.sleep(gap_s)


def _launch(
    plan: LaunchPlan, step: Step, work: _Remaining, attempt: Attempt, timeout: CapacityTimeout
) -> None:
    indices = attempt.indices_of(step)
    made: tuple[Instance, ...] = ()
    try:
        made = search(plan, step, work.results, attempt, timeout, attempt.on_step)
    except AwsError as failure:
        scarce = move_for(failure.code) in (Move.NEXT_PLACE, Move.WAIT)
        if not scarce or not plan.can_do_without(indices, len(work.launched)):
            raise
        attempt.on_step(failure.message)
    work.launched += [found.node.instance_id for found in made]
    work.results.update(_known_of(made))
    there = {found.node.index for found in made}
    work.lost += [index for index in indices if index not in there]
    types = {found.node.instance_type for found in made} - {step.arguments["InstanceType"]}
    for other in types:
        # What comes after the launch was planned for another type of machine.
        work.steps = list(plan.steps_after(other))


def _accept_fewer(
    client: EC2Client, plan: LaunchPlan, lost: list[int], on_step: Callable[[str], None]
) -> None:
    """Say it, in the tags too: nothing brings the others but asking for them again."""
    wanted = [index for index in plan.wanted if index not in lost]
    on_step(
        f"{len(lost)} of {count(len(plan.missing), 'new node')} were not to be had, which "
        f"--min-nodes allows: the cluster has {count(len(wanted), 'node')}"
    )
    members = [found for found in find_instances(client, plan.spec.name) if not found.retired]
    ids = [found.node.instance_id for found in members]
    tag(client, ids, {tags.NODES: tags.indices_text(wanted)})


def _sent_again(plan: LaunchPlan, launch_record: Path) -> list[SentLaunch]:
    tokens = {step.arguments.get("ClientToken") for step in plan.steps}
    return [sent for sent in read_launches(launch_record) if sent.token in tokens]


def _known_of(made: tuple[Instance, ...]) -> Mapping[str, str]:
    head = next((found for found in made if found.node.index == 0), None)
    return {"HeadInterface": head.interface_id} if head else {}


def _members(found: Sequence[Instance], launched: list[str]) -> tuple[Instance, ...]:
    """Return the members. A node that was just launched is one whatever its state: who waits for
    it is told how it ended."""
    return members_of(
        [
            one
            for one in found
            if one.node.instance_id in launched or one.node.state.value in PRESENT
        ]
    )


def _repeated(client: EC2Client, step: Step, arguments: dict[str, Any]) -> Any:
    for wait_s in itertools.islice(gaps(0.5, 2.0), ATTEMPTS):
        try:
            with translated():
                return getattr(client, step.operation)(**arguments)
        except AwsError as error:
            if error.code in step.done_if:
                return {}
            if error.code not in NOT_YET_KNOWN and not throttled(error):
                raise
            failure = error
            time.sleep(wait_s)
    raise failure


def _start(
    client: EC2Client,
    step: Step,
    timeout: CapacityTimeout,
    before: Callable[[], None],
    on_step: Callable[[str], None],
) -> None:
    """Start what is stopped; what still stops is waited for, and so is capacity."""
    deadline = time.monotonic() + STOPS_WITHIN_S
    once = without_retries(client)
    too_fast = iter(range(ATTEMPTS))
    for gap_s in gaps(0.5):
        before()
        try:
            with translated():
                once.start_instances(**step.resolved({}))
            return
        except AwsError as error:
            stops = error.code == "IncorrectInstanceState" and time.monotonic() < deadline
            if stops or (throttled(error) and next(too_fast, None) is not None):
                time.sleep(gap_s)
            elif move_for(error.code) in (Move.NEXT_PLACE, Move.WAIT):
                timeout.wait(_no_room_to_start(error), on_step)
            else:
                raise


def _no_room_to_start(failure: AwsError) -> AwsError:
    return AwsError(
        failure.code,
        f"{failure.message} A stopped node can be started in its own zone only",
        "wait with --capacity-timeout 2h, or terminate and launch elsewhere: clusterctl down",
    )
