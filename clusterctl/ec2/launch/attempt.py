"""One launch at one place: recorded before it is sent, then complete or rolled back."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import AWAKE, NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.files import check_known, read_file, write_file
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.timeouts import Polling, Timeouts, backoff_delays
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import codes, outcome_unknown, throttled, translated
from clusterctl.ec2.instances import PRESENT, Instance, find_instances, find_states, name_each, tag
from clusterctl.ec2.launch.request import Step
from clusterctl.ec2.resources import StillShuttingDown, terminate
from clusterctl.node.record import from_data, from_json, to_data, to_json

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


# How long the outcome of a launch that has shown no instance counts as unknown. DescribeInstances
# shows a new instance within seconds: after this long, the launch was never carried out.
UNKNOWN_FOR_S = 600.0


@dataclass(frozen=True)
class SentLaunch:
    """A RunInstances request as it was sent, with its ClientToken, and when (Unix time)."""

    request: Mapping[str, Any]
    sent_at: float

    def __post_init__(self) -> None:
        """Raises ValueError for a request without a token: it could not be sent again."""
        if not isinstance(self.request.get("ClientToken"), str):
            raise ValueError("the request has no ClientToken")

    @property
    def token(self) -> str:
        return str(self.request["ClientToken"])

    def requests(self, request: Mapping[str, Any]) -> bool:
        """Return whether `request` is the same except for its token."""
        return _without_token(self.request) == _without_token(request)


@dataclass(frozen=True)
class _Launches:
    """The content of the file. JSON has no bytes: they are {"base64": TEXT} there."""

    launches: tuple[SentLaunch, ...]


def _without_token(request: Mapping[str, Any]) -> str:
    # The token is also in the instances' tags.
    token = str(request["ClientToken"])
    # `default=repr`: a planned request may hold a ResultOf, which JSON cannot express. Such a
    # request never equals one that was sent.
    return json.dumps(_plain(request), sort_keys=True, default=repr).replace(
        json.dumps(token), '""'
    )


def read_launches(path: Path) -> tuple[SentLaunch, ...]:
    """Return the recorded launches, whose outcome is not known yet; empty without the file.

    Raises ClusterctlError for a file that cannot be read.
    """
    kept = read_file(
        path,
        _parse,
        "it names the launch that was under way: check `clusterctl status`, then delete it",
    )
    return kept.launches if kept else ()


def _parse(text: bytes) -> _Launches:
    data = from_json(Any, text)
    found = from_data(_Launches, _binary(data))
    check_known(data, _plain(to_data(found)))
    return found


def write_launches(path: Path, launches: Sequence[SentLaunch]) -> None:
    """Replace the recorded launches by these.

    An empty list creates no file, but an existing file stays: by it `down` knows that a launch was
    sent from this folder.
    """
    if not launches and not path.exists():
        return
    write_file(path, to_json(_plain(to_data(_Launches(tuple(launches))))) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value


def _binary(value: Any) -> Any:
    if isinstance(value, dict):
        if list(value) == ["base64"]:
            return base64.b64decode(value["base64"])
        return {key: _binary(part) for key, part in value.items()}
    return [_binary(part) for part in value] if isinstance(value, list) else value


# Tries of a request that EC2 throttles or whose outcome is not known.
ATTEMPTS = 5
# EC2 is eventually consistent: RunInstances may refuse a resource that was created just before
# with one of these codes.
MADE_JUST_NOW = (
    "InvalidGroup.NotFound",
    "InvalidSecurityGroupID.NotFound",
    "InvalidKeyPair.NotFound",
    "InvalidPlacementGroup.Unknown",
)


class OutcomeUnknown(AwsError):
    """EC2 may have launched the nodes. Only the same request, with its token, may be sent again."""


@dataclass
class Attempt:
    """Launches of one cluster. `once` is a client without retries.

    `observed` has all of the cluster's instances after the last launch; terminated ones only if one
    of the launch died.
    """

    client: EC2Client
    once: EC2Client
    cluster: str
    launch_record: Path
    on_step: Callable[[str], None]
    observed: tuple[Instance, ...] = ()
    timeouts: Timeouts = field(default_factory=Timeouts)

    def launch(self, step: Step, results: dict[str, Any]) -> tuple[Instance, ...]:
        """Launch the step's nodes, wait until they are not pending, and return their instances.

        `results` fill in the arguments that come from earlier steps. Returns fewer instances than
        requested where the request's MinCount allows it. Raises AwsError, with nothing left of
        the attempt but instances that shut down, OutcomeUnknown, and ClusterctlError where EC2 does
        not show what it launched; then the launch stays recorded.
        """
        request = step.resolved(results)
        answer = self._send(request)
        ids = [made["InstanceId"] for made in answer["Instances"]]
        made = self._numbered(self._finished(ids, request["MinCount"]))
        alive = tuple(found for found in made if found.node.state in AWAKE)
        if len(alive) < len(ids):
            self._handle_deaths(request, made, alive)
        try:
            name_each(self.client, alive)
        except AwsError as refused:
            # Nothing depends on these names.
            self.on_step(f"the nodes have one name in EC2's console: {refused.message}")
        return alive

    def _numbered(self, made: tuple[Instance, ...]) -> tuple[Instance, ...]:
        """Give the instances of a launch different indices, by tags, if EC2 has not.

        AWS documents AmiLaunchIndex for RunInstances, but not for spot requests. Raises
        AwsError.
        """
        if len({one.node.index for one in made}) == len(made):
            return made
        first = min(one.node.index for one in made)
        numbered = {}
        for index, one in enumerate(sorted(made, key=lambda one: one.node.instance_id), first):
            tag(self.client, [one.node.instance_id], {tags.INDEX: str(index)})
            node = replace(one.node, index=index, name=f"{one.cluster}-{index}")
            numbered[node.instance_id] = replace(one, node=node)
        self.observed = tuple(numbered.get(one.node.instance_id, one) for one in self.observed)
        return tuple(sorted(numbered.values(), key=lambda one: one.node.index))

    def _send(self, request: dict[str, Any]) -> Any:
        """Record the request, send it and return EC2's answer.

        Raises AwsError. A request of unknown outcome stays recorded.
        """
        clock, token = self.timeouts.clock, request["ClientToken"]
        others = [sent for sent in read_launches(self.launch_record) if sent.token != token]
        write_launches(self.launch_record, [*others, SentLaunch(request, clock.time())])
        known_by = clock.monotonic() + self.timeouts.known_s
        tries = backoff_delays(0.5, 2.0, 8.0)
        failed_tries, doubtful, waits = 0, False, False
        for wait_s in tries:
            try:
                with translated():
                    return self.once.run_instances(**request)
            except AwsError as error:
                failure = error
                may_repeat = outcome_unknown(error) or throttled(error)
                failed_tries += may_repeat
                # Throttling does not show the outcome of an earlier try of the same request that
                # may have been carried out. Only a refusal of the request itself clears the doubt.
                doubtful = outcome_unknown(error) or (doubtful and throttled(error))
                again = failed_tries < ATTEMPTS if may_repeat else clock.monotonic() < known_by
                if not (may_repeat or not_yet_known(error)) or not again:
                    break
                if is_about_profile(error) and not waits:
                    waits = True
                    self.on_step("waiting until EC2 knows the instance profile")
                # Jitter keeps commands that were throttled together from retrying together.
                clock.sleep(wait_s * random.uniform(0.5, 1.0))
        if doubtful:
            raise OutcomeUnknown(
                failure.code,
                f"whether EC2 launched the nodes is not known: {failure.message}",
                "run `up` again: it sends the same request, and nothing is launched twice",
            ) from failure
        write_launches(self.launch_record, others)
        raise unknown_profile(failure) from failure.__cause__

    def _finished(self, ids: Sequence[str], least: int) -> tuple[Instance, ...]:
        """Wait until EC2 shows all these instances and none is pending, and return them.

        Returns early when so many have died that fewer than `least` can be left, and after
        `started_s` with some still pending. Raises AwsError, and ClusterctlError where EC2 does not
        show all of them within `visible_s`.
        """
        limits, clock = self.timeouts, self.timeouts.clock
        start = clock.monotonic()
        states: dict[str, NodeState] = {}
        known: dict[str, Instance] = {}

        def ended(observed: Iterable[NodeState]) -> bool:
            observed = tuple(observed)
            return (
                NodeState.PENDING not in observed or sum(one in AWAKE for one in observed) < least
            )

        for gap_s in backoff_delays(0.2, 1.15):
            # Merge: an instance that EC2 does not show for a moment keeps its last state.
            states |= find_states(self.client, ids)
            waited_s = clock.monotonic() - start
            hidden = len(states) < len(ids)
            late = waited_s > (limits.visible_s if hidden else limits.started_s)
            if late or (not hidden and ended(states.values())):
                # EC2 shows terminated instances for about an hour. Ask for them only if one of
                # this launch died, to read the reason.
                dead = any(one not in AWAKE for one in states.values())
                self.observed = find_instances(self.client, self.cluster, () if dead else PRESENT)
                shown = {one.node.instance_id: one for one in self.observed}
                known |= {id: shown[id] for id in ids if id in shown}
                missing = set(ids) - set(known)
                if not missing and (late or ended(one.node.state for one in known.values())):
                    return tuple(known[id] for id in ids)
                if missing and waited_s > limits.visible_s:
                    raise ClusterctlError(
                        f"EC2 launched {', '.join(sorted(missing))} and does not show them",
                        f"check `clusterctl status {self.cluster}`, then run `up` again",
                    )
            clock.sleep(gap_s)
        raise AssertionError("unreachable")

    def _handle_deaths(
        self, request: dict[str, Any], made: Sequence[Instance], alive: Sequence[Instance]
    ) -> None:
        """Handle instances that died while they started.

        Reports it where enough nodes are left. Else terminates the others and raises AwsError with
        EC2's reason as its code.
        """
        dead = [found for found in made if found.node.state not in AWAKE]
        names = fold_hosts([found.node.name for found in dead])
        reason = next((found.state_reason for found in dead if found.state_reason), "no reason")
        # The head node (index 0) is not optional.
        if len(alive) >= request["MinCount"] and not any(found.node.index == 0 for found in dead):
            self.on_step(f"{names} died while starting: {reason}")
            return
        others = "; terminating the others" if alive else ""
        self.on_step(f"{names} died while starting: {reason}{others}")
        ids = [found.node.instance_id for found in made]
        limits = self.timeouts
        # The next launch needs their places, where these are reserved or in a placement group.
        in_the_way = {"Placement", "CapacityReservationSpecification"} & request.keys()
        try:
            terminate(
                *(self.client, self.cluster, ids, Polling(limits.clock, limits.rolled_back_s)),
                until_gone=bool(in_the_way),
            )
        except StillShuttingDown as late:
            # Another place may be free all the same.
            self.on_step(late.message)
        token = request["ClientToken"]
        kept = [sent for sent in read_launches(self.launch_record) if sent.token != token]
        write_launches(self.launch_record, kept)
        code = reason.partition(":")[0]
        hint = codes()["deaths"].get(code, "run `up` again, or try another zone or type")
        raise AwsError(
            code, f"{names} died while starting: {reason}", f"that launch was taken back; {hint}"
        )


def indices_of(step: Step) -> tuple[int, ...]:
    """Return the node indices that a step launches."""
    labels = tags.tag_dict(step.arguments["TagSpecifications"][0]["Tags"])
    first = int(labels[tags.FIRST_INDEX])
    return tuple(range(first, first + step.arguments["MaxCount"]))


# EC2's error for an instance profile that IAM has just made, or just given its role: pull request
# 2037 and issue 2660 of hashicorp/terraform. It knows the profile some seconds later.
PROFILE_UNKNOWN = ("Invalid IAM Instance Profile name", "has no associated IAM Roles")


def not_yet_known(error: AwsError) -> bool:
    """Return whether EC2 refused because it does not know a resource yet that was just created."""
    return error.code in MADE_JUST_NOW or is_about_profile(error)


def is_about_profile(error: AwsError) -> bool:
    """Return whether EC2 does not know the instance profile or its role."""
    return any(text in error.message for text in PROFILE_UNKNOWN)


def unknown_profile(error: AwsError) -> AwsError:
    """Return the error, with a hint if EC2 does not know the instance profile."""
    if not is_about_profile(error):
        return error
    return AwsError(
        error.code,
        error.message,
        "`aws iam list-instance-profiles` shows the names; one that was made just now: run `up` "
        "again; to have one made: --instance-profile new",
    )
