"""Carry out a plan: its steps, in order, each launch written down before it is sent."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.ec2.errors import outcome_unknown, throttled, translated
from clusterctl.ec2.instances import PRESENT, Instance, find_instances
from clusterctl.ec2.plan import LaunchPlan
from clusterctl.ec2.polling import gaps
from clusterctl.ec2.record import SentLaunch, read_launches, write_launches
from clusterctl.ec2.session import without_retries
from clusterctl.ec2.steps import Step

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

ATTEMPTS = 5
VISIBLE_WITHIN_S = 120.0
# A step may meet what the step before has made before all of EC2 knows of it.
_NOT_YET_KNOWN = ("InvalidGroup.NotFound", "InvalidKeyPair.NotFound")


def carry_out(
    client: EC2Client,
    plan: LaunchPlan,
    launch_record: Path,
    on_step: Callable[[Step], None] = lambda step: None,
) -> tuple[Instance, ...]:
    """Execute the steps, and wait until EC2 shows every instance they launched.

    Returns the cluster's instances. A launch of unknown outcome stays in `launch_record`.
    Raises AwsError, ClusterctlError.
    """
    once = without_retries(client)
    results: dict[str, Any] = {}
    launched: list[str] = []
    write_launches(launch_record, _sent_again(plan, launch_record))
    for step in plan.steps:
        on_step(step)
        arguments = step.resolved(results)
        if step.operation == "run_instances":
            answer = _launch(once, arguments, launch_record)
            launched += [made["InstanceId"] for made in answer["Instances"]]
        else:
            answer = _repeated(client, step, arguments)
        results.update({key: answer[key] for key in step.gives})
    instances = _await_visible(client, plan.spec.name, launched)
    write_launches(launch_record, ())
    return instances


def _sent_again(plan: LaunchPlan, launch_record: Path) -> list[SentLaunch]:
    tokens = {step.arguments.get("ClientToken") for step in plan.steps}
    return [sent for sent in read_launches(launch_record) if sent.token in tokens]


def _launch(once: EC2Client, request: dict[str, Any], launch_record: Path) -> Any:
    token = request["ClientToken"]
    others = [sent for sent in read_launches(launch_record) if sent.token != token]
    write_launches(launch_record, [*others, SentLaunch(request, time.time())])
    for wait_s in islice(gaps(0.5, 2.0), ATTEMPTS):
        try:
            with translated():
                return once.run_instances(**request)
        except AwsError as error:
            if outcome_unknown(error) or throttled(error):
                failure = error
                time.sleep(wait_s * random.uniform(0.5, 1.0))
                continue
            write_launches(launch_record, others)
            raise
    if not outcome_unknown(failure):
        write_launches(launch_record, others)
        raise failure
    raise AwsError(
        failure.code,
        f"whether EC2 launched the nodes is not known: {failure.message}",
        "run `up` again: it sends the same request, and nothing is launched twice",
    ) from failure


def _repeated(client: EC2Client, step: Step, arguments: dict[str, Any]) -> Any:
    for wait_s in islice(gaps(0.5, 2.0), ATTEMPTS):
        try:
            with translated():
                return getattr(client, step.operation)(**arguments)
        except AwsError as error:
            if error.code in step.done_if:
                return {}
            if error.code not in _NOT_YET_KNOWN:
                raise
            failure = error
            time.sleep(wait_s)
    raise failure


def _await_visible(client: EC2Client, name: str, launched: list[str]) -> tuple[Instance, ...]:
    """The cluster's instances once all those just launched are among them, whatever their state."""
    deadline = time.monotonic() + VISIBLE_WITHIN_S
    for gap_s in gaps():
        found = find_instances(client, name, states=())
        missing = set(launched) - {instance.node.instance_id for instance in found}
        if not missing:
            break
        if time.monotonic() > deadline:
            raise ClusterctlError(
                f"EC2 launched {', '.join(sorted(missing))} and does not show them",
                f"look again with `clusterctl status {name}`, then run `up` again",
            )
        time.sleep(gap_s)
    return tuple(
        instance
        for instance in found
        if instance.node.instance_id in launched or instance.node.state.value in PRESENT
    )
