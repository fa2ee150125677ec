"""Try the places of a plan until one has room: the next zone, another type, or wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any

from clusterctl.domain.errors import AwsError
from clusterctl.domain.units import format_duration
from clusterctl.ec2.instances import Instance, members_of
from clusterctl.ec2.launch.attempt import Attempt
from clusterctl.ec2.launch.capacity import Move, Place, move_for, next_place, out_of_capacity
from clusterctl.ec2.launch.plan import LaunchPlan
from clusterctl.ec2.launch.steps import Step
from clusterctl.ec2.polling import gaps

FIRST_WAIT_S, LONGEST_WAIT_S = 30.0, 600.0


class CapacityTimeout:
    """Waits for capacity, ever longer, for `timeout_s` in all."""

    def __init__(self, timeout_s: float) -> None:
        self._deadline = time.monotonic() + timeout_s
        self._gaps = gaps(FIRST_WAIT_S, 2.0, LONGEST_WAIT_S)

    def wait(self, failure: AwsError, on_step: Callable[[str], None]) -> None:
        """Until the next try. Raises `failure` when there is no time for another."""
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
    for number in count(1):
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
