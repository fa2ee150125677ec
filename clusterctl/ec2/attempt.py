"""One launch at one place: written down, sent, and either all there or all gone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.ranges import fold_hosts
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import outcome_unknown, throttled, translated
from clusterctl.ec2.instances import Instance, find_instances
from clusterctl.ec2.polling import gaps
from clusterctl.ec2.record import SentLaunch, read_launches, write_launches
from clusterctl.ec2.steps import Step
from clusterctl.ec2.teardown import terminate_these

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

ATTEMPTS = 5
VISIBLE_WITHIN_S = 120.0
# What is longer in coming is waited for node by node, with the rest of getting ready.
SETTLED_WITHIN_S = 300.0
ROLLED_BACK_WITHIN_S = 600.0
KNOWN_WITHIN_S = 60.0
ALIVE = (NodeState.PENDING, NodeState.RUNNING)


@dataclass(frozen=True)
class Attempt:
    """Launches of one cluster. `once` is the client that repeats nothing."""

    client: EC2Client
    once: EC2Client
    cluster: str
    launch_record: Path
    on_step: Callable[[str], None]

    def indices_of(self, step: Step) -> tuple[int, ...]:
        """The node indices that a step launches."""
        labels = tags.tag_dict(step.arguments["TagSpecifications"][0]["Tags"])
        first = int(labels[tags.FIRST_INDEX])
        return tuple(range(first, first + step.arguments["MaxCount"]))

    def launch(self, step: Step, results: dict[str, Any]) -> tuple[Instance, ...]:
        """The instances, none of them pending. Raises AwsError, with nothing left of the attempt.

        Where fewer than asked for will do, fewer may come; the tags then say so.
        """
        request = step.resolved(results)
        answer = self._send(request)
        ids = [made["InstanceId"] for made in answer["Instances"]]
        made = self._settled(ids)
        alive = tuple(found for found in made if found.node.state in ALIVE)
        if len(alive) < len(ids):
            self._check_dead(request, made, alive)
        indices = self.indices_of(step)
        if len(alive) < len(indices):
            self._accept_fewer(step, indices, alive)
        return alive

    def _send(self, request: dict[str, Any]) -> Any:
        """Raises AwsError; a request of unknown outcome stays written down."""
        token = request["ClientToken"]
        others = [sent for sent in read_launches(self.launch_record) if sent.token != token]
        write_launches(self.launch_record, [*others, SentLaunch(request, time.time())])
        known_by = time.monotonic() + KNOWN_WITHIN_S
        tries = gaps(0.5, 2.0, 8.0)
        unknown = 0
        for wait_s in tries:
            try:
                with translated():
                    return self.once.run_instances(**request)
            except AwsError as error:
                failure = error
                unknown += outcome_unknown(error) or throttled(error)
                again = unknown < ATTEMPTS if _repeatable(error) else time.monotonic() < known_by
                if not (_repeatable(error) or _not_yet_known(error)) or not again:
                    break
                time.sleep(wait_s * random.uniform(0.5, 1.0))
        if outcome_unknown(failure):
            raise AwsError(
                failure.code,
                f"whether EC2 launched the nodes is not known: {failure.message}",
                "run `up` again: it sends the same request, and nothing is launched twice",
            ) from failure
        write_launches(self.launch_record, others)
        raise failure

    def _settled(self, ids: Sequence[str]) -> tuple[Instance, ...]:
        """These instances once EC2 shows them all and none is pending, or time is up."""
        start = time.monotonic()
        for gap_s in gaps(0.1):
            found = tuple(
                one
                for one in find_instances(self.client, self.cluster, states=())
                if one.node.instance_id in ids
            )
            waited_s = time.monotonic() - start
            missing = set(ids) - {one.node.instance_id for one in found}
            pending = [one for one in found if one.node.state is NodeState.PENDING]
            dead = [one for one in found if one.node.state not in ALIVE]
            if not missing and (not pending or dead or waited_s > SETTLED_WITHIN_S):
                return found
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
        dead = [found for found in made if found.node.state not in ALIVE]
        names = fold_hosts([found.node.name for found in dead])
        reason = next((found.state_reason for found in dead if found.state_reason), "no reason")
        if len(alive) >= request["MinCount"] and _has_first(request, alive):
            self.on_step(f"{names} died while starting: {reason}")
            return
        self.on_step(f"{names} died while starting: {reason}; terminating the others")
        terminate_these(
            self.client,
            self.cluster,
            [found.node.instance_id for found in made],
            ROLLED_BACK_WITHIN_S,
        )
        token = request["ClientToken"]
        kept = [sent for sent in read_launches(self.launch_record) if sent.token != token]
        write_launches(self.launch_record, kept)
        raise AwsError(
            reason.partition(":")[0],
            f"{names} died while starting: {reason}",
            "nothing of that launch is left; run `up` again, or try another zone or type",
        )

    def _accept_fewer(self, step: Step, indices: Sequence[int], alive: Sequence[Instance]) -> None:
        there = {found.node.index for found in alive}
        labels = tags.tag_dict(step.arguments["TagSpecifications"][0]["Tags"])
        wanted = [
            index
            for index in tags.read_indices(labels[tags.NODES])
            if index in there or index not in indices
        ]
        self.on_step(
            f"only {len(there)} of {len(indices)} nodes were to be had, and --min-nodes takes "
            f"them: the cluster has {len(wanted)} nodes"
        )
        others = find_instances(self.client, self.cluster)
        with translated():
            self.client.create_tags(
                Resources=[found.node.instance_id for found in others],
                Tags=tags.tag_list({tags.NODES: tags.indices_text(wanted)}),  # type: ignore[arg-type]
            )


def _repeatable(error: AwsError) -> bool:
    return outcome_unknown(error) or throttled(error)


def _not_yet_known(error: AwsError) -> bool:
    """What was made just now may not be known to all of EC2 yet."""
    return (
        error.code
        in (
            "InvalidGroup.NotFound",
            "InvalidKeyPair.NotFound",
            "InvalidPlacementGroup.Unknown",
        )
        or "Invalid IAM Instance Profile name" in error.message
    )


def _has_first(request: dict[str, Any], alive: Sequence[Instance]) -> bool:
    labels = tags.tag_dict(request["TagSpecifications"][0]["Tags"])
    return any(str(found.node.index) == labels[tags.FIRST_INDEX] for found in alive)
