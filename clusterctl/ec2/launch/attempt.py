"""One launch at one place: written down before it is sent, and either all there or all gone."""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import AWAKE, NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.ranges import fold_hosts
from clusterctl.ec2 import tags
from clusterctl.ec2.cluster_resources import terminate_these
from clusterctl.ec2.errors import gaps, outcome_unknown, throttled, translated
from clusterctl.ec2.instances import PRESENT, Instance, find_instances, find_states
from clusterctl.ec2.launch.request import Step

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


# EC2 shows a new instance to DescribeInstances within seconds. One that is not there after this
# long was never launched.
SETTLED_AFTER_S = 600.0


@dataclass(frozen=True)
class SentLaunch:
    """A RunInstances request as it was sent, its ClientToken in it, and when (Unix time)."""

    request: Mapping[str, Any]
    sent_at: float

    @property
    def token(self) -> str:
        return str(self.request["ClientToken"])

    def asks_for(self, request: Mapping[str, Any]) -> bool:
        """Whether `request` differs in nothing but its token."""
        return _without_token(self.request) == _without_token(request)


def _without_token(request: Mapping[str, Any]) -> str:
    # The token is also in the instances' tags.
    token = str(request["ClientToken"])
    # A request that is only planned may hold references to results: never equal to a sent one.
    return json.dumps(_plain(request), sort_keys=True, default=repr).replace(
        json.dumps(token), '""'
    )


def read_launches(path: Path) -> tuple[SentLaunch, ...]:
    """The launches that are not settled. Raises ClusterctlError for a file nobody can read."""
    try:
        content = json.loads(path.read_text())
        return tuple(
            SentLaunch(_binary(entry["request"]), float(entry["sent_at"]))
            for entry in content["launches"]
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterctlError(
            f"cannot read {path}: {error}",
            "it says which launch was under way; look at `clusterctl status`, then delete it",
        ) from None


def write_launches(path: Path, launches: Sequence[SentLaunch]) -> None:
    """Keep these, and only these. Once a launch was sent the file stays, perhaps with none."""
    if not launches and not path.exists():
        return
    entries = [{"request": _plain(sent.request), "sent_at": sent.sent_at} for sent in launches]
    text = json.dumps({"launches": entries}, indent=2)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    draft.touch(0o600)
    draft.write_text(text + "\n")
    draft.replace(path)


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


ATTEMPTS = 5
VISIBLE_WITHIN_S = 120.0
# What is longer in coming is waited for node by node, with the rest of getting ready.
SETTLED_WITHIN_S = 300.0
ROLLED_BACK_WITHIN_S = 600.0
KNOWN_WITHIN_S = 60.0
# What a launch may name before all of EC2 knows of it.
MADE_JUST_NOW = (
    "InvalidGroup.NotFound",
    "InvalidKeyPair.NotFound",
    "InvalidPlacementGroup.Unknown",
)
# Why EC2 ends an instance that starts, where more is to be said of it than to try again.
DEATHS = {
    "Client.VolumeLimitExceeded": "ask for more EBS storage under Service Quotas, or give a "
    "smaller --disk-gib",
    "Client.InternalError": "most often the KMS key that the volumes are encrypted with is not "
    "there, or you may not use it: check --kms-key, or, where there is none, the account's key for "
    "EBS, and what `clusterctl iam-policy operator` says of kms",
    "Client.InvalidKMSKey.InvalidState": "the KMS key that the volumes are encrypted with is "
    "disabled or about to be deleted: enable it, or choose another --kms-key",
    "Client.InvalidSnapshot.NotFound": "the image's snapshot is gone: choose another --image",
}


@dataclass
class Attempt:
    """Launches of one cluster. `once` is the client that repeats nothing.

    `seen` is the whole cluster, in whatever state, as the last launch left it.
    """

    client: EC2Client
    once: EC2Client
    cluster: str
    launch_record: Path
    on_step: Callable[[str], None]
    seen: tuple[Instance, ...] = ()

    def indices_of(self, step: Step) -> tuple[int, ...]:
        """The node indices that a step launches."""
        labels = tags.tag_dict(step.arguments["TagSpecifications"][0]["Tags"])
        first = int(labels[tags.FIRST_INDEX])
        return tuple(range(first, first + step.arguments["MaxCount"]))

    def launch(self, step: Step, results: dict[str, Any]) -> tuple[Instance, ...]:
        """The instances, none of them pending; where fewer will do, perhaps fewer than asked for.

        Raises AwsError, with nothing left of the attempt.
        """
        request = step.resolved(results)
        answer = self._send(request)
        ids = [made["InstanceId"] for made in answer["Instances"]]
        made = self._settled(ids, request["MinCount"])
        alive = tuple(found for found in made if found.node.state in AWAKE)
        if len(alive) < len(ids):
            self._check_dead(request, made, alive)
        return alive

    def _send(self, request: dict[str, Any]) -> Any:
        """Raises AwsError; a request of unknown outcome stays written down."""
        token = request["ClientToken"]
        others = [sent for sent in read_launches(self.launch_record) if sent.token != token]
        write_launches(self.launch_record, [*others, SentLaunch(request, time.time())])
        known_by = time.monotonic() + KNOWN_WITHIN_S
        tries = gaps(0.5, 2.0, 8.0)
        vain, doubtful = 0, False
        for wait_s in tries:
            try:
                with translated():
                    return self.once.run_instances(**request)
            except AwsError as error:
                failure = error
                patient = outcome_unknown(error) or throttled(error)
                vain += patient
                # Only a refusal of the request itself says that it was never carried out.
                doubtful = outcome_unknown(error) or (doubtful and throttled(error))
                again = vain < ATTEMPTS if patient else time.monotonic() < known_by
                if not (patient or _not_yet_known(error)) or not again:
                    break
                time.sleep(wait_s * random.uniform(0.5, 1.0))
        if doubtful:
            raise AwsError(
                failure.code,
                f"whether EC2 launched the nodes is not known: {failure.message}",
                "run `up` again: it sends the same request, and nothing is launched twice",
            ) from failure
        write_launches(self.launch_record, others)
        raise failure

    def _settled(self, ids: Sequence[str], least: int) -> tuple[Instance, ...]:
        """These instances once EC2 has shown them all and none is pending, or time is up.

        Those that die are not waited for with the others where too few would be left.
        """
        start = time.monotonic()
        states: dict[str, NodeState] = {}
        known: dict[str, Instance] = {}

        def ended(seen: Iterable[NodeState]) -> bool:
            seen = tuple(seen)
            return NodeState.PENDING not in seen or sum(one in AWAKE for one in seen) < least

        for gap_s in gaps(0.2, 1.15):
            # One that EC2 does not show for a moment is still what it was.
            states |= find_states(self.client, ids)
            waited_s = time.monotonic() - start
            hidden = len(states) < len(ids)
            late = waited_s > (VISIBLE_WITHIN_S if hidden else SETTLED_WITHIN_S)
            if late or (not hidden and ended(states.values())):
                # Only of the dead ones more is to be said: EC2 shows those of an hour.
                dead = any(one not in AWAKE for one in states.values())
                self.seen = find_instances(self.client, self.cluster, () if dead else PRESENT)
                shown = {one.node.instance_id: one for one in self.seen}
                known |= {id: shown[id] for id in ids if id in shown}
                missing = set(ids) - set(known)
                if not missing and (late or ended(one.node.state for one in known.values())):
                    return tuple(known[id] for id in ids)
                if missing and waited_s > VISIBLE_WITHIN_S:
                    raise ClusterctlError(
                        f"EC2 launched {', '.join(sorted(missing))} and does not show them",
                        f"look again with `clusterctl status {self.cluster}`, then run `up` again",
                    )
            time.sleep(gap_s)
        raise AssertionError("unreachable")

    def _check_dead(
        self, request: dict[str, Any], made: Sequence[Instance], alive: Sequence[Instance]
    ) -> None:
        """Some died while they started. Raises AwsError, unless enough are left."""
        dead = [found for found in made if found.node.state not in AWAKE]
        names = fold_hosts([found.node.name for found in dead])
        reason = next((found.state_reason for found in dead if found.state_reason), "no reason")
        # Without its head node a cluster is none.
        if len(alive) >= request["MinCount"] and not any(found.node.index == 0 for found in dead):
            self.on_step(f"{names} died while starting: {reason}")
            return
        others = "; terminating the others" if alive else ""
        self.on_step(f"{names} died while starting: {reason}{others}")
        terminate_these(
            self.client,
            self.cluster,
            [found.node.instance_id for found in made],
            ROLLED_BACK_WITHIN_S,
        )
        token = request["ClientToken"]
        kept = [sent for sent in read_launches(self.launch_record) if sent.token != token]
        write_launches(self.launch_record, kept)
        code = reason.partition(":")[0]
        hint = DEATHS.get(code, "run `up` again, or try another zone or type")
        raise AwsError(
            code,
            f"{names} died while starting: {reason}",
            f"nothing of that launch is left; {hint}",
        )


def _not_yet_known(error: AwsError) -> bool:
    """What was made just now may not be known to all of EC2 yet."""
    return error.code in MADE_JUST_NOW or "Invalid IAM Instance Profile name" in error.message
