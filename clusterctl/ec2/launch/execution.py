"""Execution of a launch plan: its steps in order, each launch at the first place with capacity. If
no place has any, it waits and tries again.

Before anything is made, EC2 is asked whether it would permit the launch.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import ASLEEP, NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.findings import Finding
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.timeouts import Age, Clock, Polling, Timeouts, backoff_delays
from clusterctl.domain.units import count, format_duration
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import outcome_unknown, retried, throttled, translated
from clusterctl.ec2.instances import (
    PRESENT,
    Instance,
    find_instances,
    find_with,
    members_of,
    tag,
    wanted_of,
)
from clusterctl.ec2.launch.attempt import (
    ATTEMPTS,
    MADE_JUST_NOW,
    Attempt,
    OutcomeUnknown,
    SentLaunch,
    indices_of,
    not_yet_known,
    read_launches,
    unknown_profile,
    write_launches,
)
from clusterctl.ec2.launch.capacity import (
    Place,
    RefusalAction,
    next_place,
    out_of_capacity,
    refusal_action,
)
from clusterctl.ec2.launch.plan import LaunchPlan, place_of
from clusterctl.ec2.launch.request import ResultOf, Step
from clusterctl.ec2.network.vpcs import release_arguments
from clusterctl.ec2.node_role import with_policy_hint
from clusterctl.ec2.resources import await_available
from clusterctl.ec2.session import without_retries
from clusterctl.ec2.tags import CREATIONS, Creations

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

    from clusterctl.ec2.session import Clients


# The first and the longest delay between two tries while EC2 has no capacity.
FIRST_WAIT_S, LONGEST_WAIT_S = 30.0, 600.0


class CapacityTimeout:
    """Waits between tries, each wait twice as long as the last, for `timeout_s` in all."""

    def __init__(self, timeout_s: float, clock: Clock) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + timeout_s
        self._gaps = backoff_delays(FIRST_WAIT_S, 2.0, LONGEST_WAIT_S)

    def wait(self, failure: AwsError, on_step: Callable[[str], None]) -> None:
        """Wait until the next try. Raises `failure` if the time is up."""
        left_s = self._deadline - self._clock.monotonic()
        if left_s <= 0:
            raise failure
        wait_s = min(next(self._gaps), left_s)
        why = "no capacity" if "Capacity" in failure.code else failure.code
        on_step(
            f"{why}; next try in {format_duration(wait_s)}, giving up in {format_duration(left_s)}"
        )
        self._clock.sleep(wait_s)


@dataclass
class PlanCheck:
    """Checks that no other command has changed the cluster since the plan's snapshot.

    A plan may be carried out long after it was made: after a wait for capacity, a question, or the
    sleep of a laptop. `is_tagged`: its tags were written, which EC2 may show a moment later.
    """

    client: EC2Client
    plan: LaunchPlan
    timeouts: Timeouts
    is_tagged: bool = False

    def __post_init__(self) -> None:
        self._age = self.plan.observed.age

    def if_old(self) -> None:
        """Read the cluster again if it was read too long ago. Raises ClusterctlError, AwsError."""
        if self._age.seconds < self.timeouts.holds_s:
            return
        changed = self._changed()
        if changed and self.is_tagged:
            self.timeouts.clock.sleep(self.timeouts.shown_s)
            changed = self._changed()
        if changed:
            raise ClusterctlError(
                f"{changed} since this command read the cluster: it launches and starts nothing "
                "more",
                f"see what there is: clusterctl status {self.plan.spec.name}; then run it again",
            )

    def _changed(self) -> str:
        self._age = Age(self.timeouts.clock)
        there = find_instances(self.client, self.plan.spec.name)
        return _changed(self.plan, there, self.is_tagged)


def _changed(plan: LaunchPlan, there: Sequence[Instance], is_tagged: bool) -> str:
    """Return what another command has done to the cluster; empty if the plan still holds."""
    tokens = {step.arguments.get("ClientToken") for step in plan.steps}
    there = [
        one
        for one in there
        if one.launch_token not in tokens and not one.launch_token.startswith(plan.launch_id)
    ]
    name, before, now = plan.spec.name, plan.observed.instances, members_of(there)
    if before and not there:
        return f"all nodes of {name} were removed"
    known = {one.node.instance_id for one in before}
    others = [one.node.name for one in now if one.node.instance_id not in known]
    if others:
        return f"another command has launched {fold_hosts(others)}"
    wanted, expected = set(wanted_of(there)), set(wanted_of(before))
    gone = (set(plan.missing) if is_tagged else expected) - wanted
    if now and gone:
        names = fold_hosts([f"{name}-{index}" for index in sorted(gone)])
        return f"another command has removed {names} from the cluster"
    if not is_tagged and wanted - expected:
        return f"another command has changed how many nodes {name} is to have"
    asleep = [one.node for one in now if one.node.state in ASLEEP]
    stopped = [node.name for node in asleep if node.index not in plan.stopped]
    return f"another command has stopped {fold_hosts(stopped)}" if stopped else ""


def is_about_filling(failure: AwsError) -> bool:
    """Return whether EC2 refused the rate at which it was to fill the volumes.

    EBS refuses it beyond the region's limit and where it has no room for it. AWS documents no code
    for that, so EC2's words decide.
    """
    return bool(re.search(r"volume ?initiali[sz]ation", failure.message, re.IGNORECASE))


# AssociateAddress fails with these for an instance that is still starting.
STILL_STARTING = ("InvalidInstanceID", "IncorrectInstanceState")
# EC2 is eventually consistent: a step may be refused with these because EC2 does not know yet what
# the step before has created.
NOT_YET_KNOWN = (
    *MADE_JUST_NOW,
    "InvalidNetworkInterfaceID.NotFound",
    "InvalidAllocationID.NotFound",
    "InvalidInstanceID.NotFound",
    "NoSuchEntity",
)


@dataclass
class _Execution:
    """A plan under way: its remaining steps, the results of the others, and what all need.

    `results` are parts of EC2's answers that later steps need. `launched` has the ids of the new
    instances. `lost` has the indices of nodes that EC2 had no capacity for and that --min-nodes
    makes optional. `last` is the operation of the last step carried out.
    """

    clients: Clients
    plan: LaunchPlan
    creations: Creations
    attempt: Attempt
    holds: PlanCheck
    capacity: CapacityTimeout
    before_start: Callable[[], None]
    steps: list[Step]
    results: dict[str, Any] = field(default_factory=dict)
    launched: list[str] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    last: str = ""

    def run(self) -> None:
        while self.steps:
            step = self.steps.pop(0)
            if step.operation == "create_tags" and not self.holds.is_tagged:
                self.holds.if_old()
                self.holds.is_tagged = True
            self.last = step.operation
            self.attempt.on_step(step.describe())
            if step.operation == "run_instances":
                self._launch(step)
            elif step.operation == "start_instances":
                self._start(step)
            elif step.operation == "associate_address":
                self._associate(step)
            elif "IamInstanceProfile" in step.arguments:
                self._give_profile(step)
            else:
                self._send(step)

    def _launch(self, step: Step) -> None:
        if "Placement" in step.arguments:
            await_available(self.clients.ec2, self.plan.spec.name, self.attempt.timeouts)
        indices = indices_of(step)
        made: tuple[Instance, ...] = ()
        try:
            made = self._search(step)
        except AwsError as failure:
            scarce = refusal_action(failure.code) in (RefusalAction.NEXT_PLACE, RefusalAction.WAIT)
            if not scarce or not self.plan.can_do_without(indices, len(self.launched)):
                raise
            self.attempt.on_step(failure.message)
        self.launched += [found.node.instance_id for found in made]
        self.results.update(_known_of(made))
        there = {found.node.index for found in made}
        self.lost += [index for index in indices if index not in there]
        types = {found.node.instance_type for found in made} - {step.arguments["InstanceType"]}
        for other in types:
            # EC2 had another type than planned, and the steps after the launch depend on the type.
            self.steps = list(self.plan.steps_after(other))

    def _search(self, step: Step) -> tuple[Instance, ...]:
        """Launch the step at the first of the plan's places that has room; return the instances.

        Raises AwsError for an error that no other place would fix, and when all places were tried
        and the time for capacity is up, and what `holds` raises.
        """
        plan, attempt, capacity = self.plan, self.attempt, self.capacity
        indices = indices_of(step)
        # Every step has a known place: the plan's own, and those of launches that are sent again
        # (`_resent`). The other value is never taken.
        place = place_of(step.arguments, plan.observed) or plan.places[0]
        tried: list[Place] = []
        fills = True
        for number in itertools.count(1):
            self.holds.if_old()
            try:
                return attempt.launch(step, self.results)
            except OutcomeUnknown:
                raise
            except AwsError as error:
                move, failure = refusal_action(error.code), error
            # After a definite answer take a new token: EC2 refuses a known token with another
            # request.
            launch_id = f"{plan.launch_id}-{indices[0]}-{number}"
            if fills and plan.launch_at(place, indices).load_mib_s and is_about_filling(failure):
                fills = False
                step = plan.step_at(place, indices, launch_id, fills)
                attempt.on_step(
                    f"{failure.message}; again without --disk-load: the first reads are slow"
                )
                continue
            if move not in (RefusalAction.NEXT_PLACE, RefusalAction.WAIT):
                raise failure
            tried.append(place)
            other = next_place(plan.places, tried, failure.message)
            if move is RefusalAction.WAIT:
                # Another place would be refused for the same reason.
                capacity.wait(failure, attempt.on_step)
                tried, other = [], place
            elif other is None:
                bound = bool(members_of(plan.observed.instances))
                capacity.wait(out_of_capacity(tried, failure, bound), attempt.on_step)
                tried, other = [], plan.places[0]
            place = other
            step = plan.step_at(place, indices, launch_id, fills)
            attempt.on_step(f"{failure.code}; {step.describe()}")
        raise AssertionError("unreachable")

    def _start(self, step: Step) -> None:
        """Start stopped nodes. Waits for nodes that are still stopping, and for capacity."""
        clock = self.attempt.timeouts.clock
        deadline = clock.monotonic() + self.attempt.timeouts.state_change_s
        too_fast = iter(range(ATTEMPTS))
        for gap_s in backoff_delays(0.5):
            self.holds.if_old()
            self.before_start()
            try:
                with translated():
                    self.attempt.once.start_instances(**step.resolved({}))
                return
            except AwsError as error:
                stops = error.code == "IncorrectInstanceState" and clock.monotonic() < deadline
                if stops or (throttled(error) and next(too_fast, None) is not None):
                    clock.sleep(gap_s)
                elif refusal_action(error.code) in (RefusalAction.NEXT_PLACE, RefusalAction.WAIT):
                    self.capacity.wait(_no_room_to_start(error), self.attempt.on_step)
                else:
                    raise

    def _associate(self, step: Step) -> None:
        """Associate the elastic address, retrying while the head node is still starting."""
        client, timeouts = self.clients.ec2, self.attempt.timeouts
        arguments = step.resolved(self.results)
        polling = Polling(timeouts.clock, timeouts.state_change_s, 0.5)
        while True:
            try:
                _repeated(client, step, arguments, timeouts.clock)
                return
            except AwsError as error:
                if error.code not in STILL_STARTING or polling.left_s < 0:
                    raise
                there = find_instances(client, self.plan.spec.name)
                interface = arguments["NetworkInterfaceId"]
                head = [one for one in there if one.interface_id == interface]
                if not any(one.node.state is NodeState.PENDING for one in head):
                    # It may have left `pending` after the call. The answer to one more is final.
                    _repeated(client, step, arguments, timeouts.clock)
                    return
            polling.wait()

    def _give_profile(self, step: Step) -> None:
        """Give a node an instance profile, retrying while the node changes its state and while EC2
        does not know a profile that was created just before."""
        clock = self.attempt.timeouts.clock
        try:
            retried(
                lambda: _repeated(self.clients.ec2, step, step.resolved({}), clock),
                lambda error: error.code in STILL_STARTING or not_yet_known(error),
                Polling(clock, self.attempt.timeouts.known_s, 0.5),
            )
        except AwsError as error:
            raise unknown_profile(error) from error

    def _send(self, step: Step) -> None:
        is_iam = step.service == "iam"
        client: Any = self.clients.iam if is_iam else self.clients.ec2
        if step.operation == "allocate_address":
            # It is not idempotent: every retry by botocore could allocate another.
            client = self.attempt.once
        messages = with_policy_hint() if is_iam else nullcontext()
        with messages, _recorded(step.operation, self.creations):
            answer = _repeated(
                client, step, step.resolved(self.results), self.attempt.timeouts.clock
            )
        self.results.update({key: answer[key] for key in step.gives})

    def give_back(self, allocation_id: str) -> None:
        """Release the elastic address that was just allocated if the cluster has no instance left.

        Ignores AwsErrors: an address that stays is found by the next `up`.
        """
        client = self.clients.ec2
        with suppress(AwsError):
            if not find_instances(client, self.plan.spec.name):
                # EC2 may not show it yet, so it is not searched for.
                [made] = [one for one in self.plan.steps if one.operation == "allocate_address"]
                group = made.arguments.get("NetworkBorderGroup", "")
                with translated():
                    client.release_address(**release_arguments(allocation_id, group))
                self.attempt.on_step(
                    f"ReleaseAddress: {allocation_id}, there is no node to have it"
                )

    def accept_fewer(self) -> None:
        """Reduce the cluster to the nodes that it got, in a message and in its tags.

        Without the tags a later command would take the lost nodes for missing ones.
        """
        plan, client = self.plan, self.clients.ec2
        wanted = [index for index in plan.wanted if index not in self.lost]
        self.attempt.on_step(
            f"{len(self.lost)} of {count(len(plan.missing), 'new node')} were not to be had, which "
            f"--min-nodes allows: the cluster has {count(len(wanted), 'node')}"
        )
        members = [found for found in find_instances(client, plan.spec.name) if not found.retired]
        ids = [found.node.instance_id for found in members]
        tag(client, ids, {tags.NODES: tags.indices_text(wanted)})


def carry_out(
    clients: Clients,
    plan: LaunchPlan,
    launch_record: Path,
    creations: Creations,
    capacity_timeout_s: float = 0.0,
    before_start: Callable[[], None] = lambda: None,
) -> tuple[Instance, ...]:
    """Execute the plan's steps and return the cluster's members.

    Waits until none of the launched instances is pending, for some minutes at most. `notify` of
    `creations` receives a line about each step, `before_start` is called before each request to
    start stopped nodes. While EC2 has no capacity, launches and starts are retried for
    `capacity_timeout_s`.

    Raises AwsError, ClusterctlError. A launch that failed has left nothing running; one of unknown
    outcome stays in `launch_record`.
    """
    client, timeouts, name = clients.ec2, creations.timeouts, plan.spec.name
    attempt = Attempt(
        *(client, without_retries(client), name, launch_record, creations.notify), timeouts=timeouts
    )
    work = _Execution(
        *(clients, plan, creations, attempt, PlanCheck(client, plan, timeouts)),
        *(CapacityTimeout(capacity_timeout_s, timeouts.clock), before_start, list(plan.steps)),
    )
    # Keep the launches that this plan sends again. All others are finished: `check_finished`
    # refuses a plan where they are not.
    write_launches(launch_record, _sent_again(plan, launch_record))
    try:
        work.run()
    except ClusterctlError:
        # An elastic address costs money even without nodes, so release it. Not if a launch may have
        # taken place: the next `up` then uses the address. After Ctrl-C, which is no
        # ClusterctlError, it stays too, and the command line names it.
        if "AllocationId" in work.results and not read_launches(launch_record):
            work.give_back(work.results["AllocationId"])
            creations.end("allocate_address")
        raise
    if work.lost:
        work.accept_fewer()
    write_launches(launch_record, ())
    # After a launch as the last step its snapshot is still valid, and saves a call.
    unchanged = work.last == "run_instances" and not work.lost
    older = [one.node.instance_id for one in plan.observed.members]
    found = attempt.observed if unchanged else ()
    if not {*work.launched, *older} <= {one.node.instance_id for one in found}:
        found = find_with(client, name, work.launched, older, timeouts)
    return _members(found, work.launched)


@contextmanager
def _recorded(operation: str, creations: Creations) -> Iterator[None]:
    """Record what an operation may make, unless EC2 refuses it."""
    if operation in CREATIONS:
        creations.begin(operation)
    try:
        yield
    except AwsError as error:
        if not outcome_unknown(error):
            creations.end(operation)
        raise
    if operation == "release_address":
        creations.end("allocate_address")


def _sent_again(plan: LaunchPlan, launch_record: Path) -> list[SentLaunch]:
    tokens = {step.arguments.get("ClientToken") for step in plan.steps}
    return [sent for sent in read_launches(launch_record) if sent.token in tokens]


def _known_of(made: tuple[Instance, ...]) -> Mapping[str, str]:
    head = next((found for found in made if found.node.index == 0), None)
    return {"HeadInterface": head.interface_id} if head else {}


def _members(found: Sequence[Instance], launched: list[str]) -> tuple[Instance, ...]:
    """Return the members among `found`, with those that were just launched in any state.

    So the wait that follows reports a new node that has died.
    """
    return members_of(
        [
            one
            for one in found
            if one.node.instance_id in launched or one.node.state.value in PRESENT
        ]
    )


def _repeated(client: EC2Client, step: Step, arguments: dict[str, Any], clock: Clock) -> Any:
    """Call EC2, again while it throttles or does not know yet what an earlier step created.

    Return its answer, or {} if the work was already done. Raises AwsError.
    """
    for wait_s in itertools.islice(backoff_delays(0.5, 2.0), ATTEMPTS):
        try:
            with translated():
                return getattr(client, step.operation)(**arguments)
        except AwsError as error:
            if error.code in step.done_if:
                return {}
            if error.code not in NOT_YET_KNOWN and not throttled(error):
                raise
            failure = error
            clock.sleep(wait_s)
    raise failure


def _no_room_to_start(failure: AwsError) -> AwsError:
    return AwsError(
        failure.code,
        f"{failure.message} A stopped node can be started in its own zone only",
        "wait with --capacity-timeout 2h, or terminate and launch elsewhere: clusterctl down",
    )


NOT_PERMITTED = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")


def dry_run_findings(client: EC2Client, plan: LaunchPlan) -> tuple[Finding, ...]:
    """Return whether EC2 would permit the plan's first launch; nothing for a plan without one.

    RunInstances with `DryRun` checks permissions and parameters, neither capacity nor quotas (EC2
    API reference). A refusal is an error, unless another try may succeed. No AwsError is raised.
    """
    requests = [one.arguments for one in plan.steps if one.operation == "run_instances"]
    if not requests or plan.refused:
        return ()
    try:
        with translated():
            client.run_instances(**dry_request(requests[0], plan))
    except AwsError as error:
        return _result_of(error, plan.observed.group is None)
    return ()


def dry_request(request: Mapping[str, Any], plan: LaunchPlan) -> dict[str, Any]:
    """Return a RunInstances request as a dry run, without what does not exist yet."""
    limits = {
        name: value
        for name, value in request.items()
        if name != "ClientToken"
        and not (name == "KeyName" and plan.observed.key_pair is None)
        and not (name == "Placement" and plan.observed.placement_group is None)
        and not (name == "IamInstanceProfile" and plan.observed.node_role and plan.grants)
    }
    interfaces = [
        {name: value for name, value in one.items() if not _is_awaited(value)}
        for one in request["NetworkInterfaces"]
    ]
    return {**limits, "NetworkInterfaces": interfaces, "DryRun": True}


def _is_awaited(value: Any) -> bool:
    """Return whether a value comes from an earlier step of the plan."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(part, ResultOf) for part in parts)


def _result_of(error: AwsError, is_new: bool) -> tuple[Finding, ...]:
    if error.code == "DryRunOperation":
        limits = "checked without key and groups, which do not exist yet; " if is_new else ""
        text = f"EC2 permits RunInstances; {limits}capacity and quotas were not checked"
        return (Finding.info("launch.permitted", text),)
    text, hint = f"RunInstances is refused: {error.message}", error.hint
    if error.code in NOT_PERMITTED:
        hint = hint or "see what it needs: clusterctl iam-policy operator"
    else:
        final = refusal_action(error.code) in (RefusalAction.ABORT, RefusalAction.FIX)
        again = outcome_unknown(error) or throttled(error) or not_yet_known(error)
        if not final or again or is_about_filling(error):
            return ()
        if is_new:
            # The launch itself names a key and a group, and may be taken.
            text = f"checked without key and groups, which do not exist yet: {text}"
            return (Finding.warning("launch.permitted", text, hint),)
    return (Finding.error("launch.permitted", text, hint),)
