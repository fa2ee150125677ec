"""Telling CloudFormation what to do with a stack, and waiting for it to be done."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.units import format_duration
from clusterctl.ec2.network.plan import NetworkSettings, Stack, stack_name
from clusterctl.ec2.network.stack import (
    create_stack,
    delete_stack,
    find_stack,
    operation_events,
    update_stack,
)
from clusterctl.ec2.polling import gaps
from clusterctl.operations.launcher import StepProgress

if TYPE_CHECKING:
    from mypy_boto3_cloudformation import CloudFormationClient

# For so long DescribeStacks may show what was before the request.
STALE_FOR_S = 10.0
_TOLD = {
    "CREATE_COMPLETE": "created",
    "UPDATE_COMPLETE": "updated",
    "DELETE_COMPLETE": "deleted",
}


class StackFailed(ClusterctlError):
    """CloudFormation could not do it; `reasons` are the resources' own."""

    def __init__(self, message: str, reasons: tuple[str, ...], hint: str) -> None:
        listed = "".join(f"\n  {reason}" for reason in reasons)
        super().__init__(message + (f":{listed}" if listed else ""), hint)
        self.reasons = reasons


class StackWork:
    """One run's dealings with a stack. All of it may be cut off and done again."""

    def __init__(
        self, client: CloudFormationClient, progress: StepProgress, timeout_s: float
    ) -> None:
        self._client = client
        self._progress = progress
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._told: set[str] = set()

    def create(self, settings: NetworkSettings) -> Stack | None:
        """None if another run was quicker. Raises StackFailed, AwsError."""
        name = stack_name(settings.name)
        self._progress.step(f"creating stack {name}")
        try:
            stack_id = create_stack(self._client, settings, _token())
        except AwsError as error:
            if error.code == "AlreadyExistsException":
                return None
            raise
        stack = self._follow(Stack(stack_id, name, "CREATE_IN_PROGRESS"))
        return self._expect(stack, "CREATE_COMPLETE", "created")

    def update(self, stack: Stack, settings: NetworkSettings) -> Stack:
        """Raises StackFailed with what could not be changed, AwsError."""
        self._progress.step(f"updating stack {stack.name}")
        if not update_stack(self._client, stack, settings, _token()):
            return stack
        return self._expect(self._follow(stack, before=stack), "UPDATE_COMPLETE", "updated")

    def delete(self, stack: Stack) -> None:
        """Raises StackFailed with what could not be deleted, AwsError."""
        self._progress.step(f"deleting stack {stack.name}, which is {stack.status}")
        before = None
        if stack.status != "DELETE_IN_PROGRESS":
            delete_stack(self._client, stack, _token())
            before = stack
        self._expect(self._follow(stack, before), "DELETE_COMPLETE", "deleted")

    def wait(self, stack: Stack) -> Stack:
        """The stack when what is under way has ended, whichever way."""
        self._progress.step(f"stack {stack.name} is {stack.status}: waiting for it")
        return self._follow(stack)

    def _expect(self, stack: Stack, status: str, done: str) -> Stack:
        # What cleans up after an update does not change its outcome.
        if stack.status == status:
            return stack
        events = operation_events(self._client, stack.stack_id)
        reasons = tuple(event.describe() for event in events if event.failed and event.kind)
        hint = "when the reason is gone, run the command again: it clears up what failed"
        if status == "DELETE_COMPLETE":
            hint = "remove what holds it, and run the command again"
        raise StackFailed(
            f"stack {stack.name} could not be {done}, it is {stack.status}",
            reasons or tuple(filter(None, [stack.reason])),
            hint,
        )

    def _follow(self, stack: Stack, before: Stack | None = None) -> Stack:
        """The stack when nothing is under way any more; what happens to it is told.

        `before` is the stack as it was when the request was made, and may still be shown for a
        moment. Raises ClusterctlError at the deadline.
        """
        stale_until = time.monotonic() + STALE_FOR_S
        for gap_s in gaps(0.5, 1.3, 5.0):
            seen = find_stack(self._client, stack.stack_id)
            if seen is None:
                return replace(stack, status="DELETE_COMPLETE")
            stale = before is not None and (seen.status, seen.changed) == (
                before.status,
                before.changed,
            )
            if not stale or time.monotonic() > stale_until:
                self._tell(stack)
                if not seen.in_progress:
                    return seen
            if time.monotonic() + gap_s > self._deadline:
                raise ClusterctlError(
                    f"stack {stack.name} is still {seen.status} "
                    f"after {format_duration(self._timeout_s)}",
                    "AWS goes on by itself; run the command again to wait for it",
                )
            time.sleep(gap_s)
        raise AssertionError("unreachable")

    def _tell(self, stack: Stack) -> None:
        for event in operation_events(self._client, stack.stack_id):
            if event.event_id in self._told or not event.kind:
                continue
            self._told.add(event.event_id)
            if event.failed:
                self._progress.step(f"failed: {event.describe()}")
            elif event.status in _TOLD:
                self._progress.step(f"{event.resource}: {_TOLD[event.status]}")


def _token() -> str:
    # Repeated by the SDK with the request: a lost answer makes no second stack.
    return f"clusterctl-{uuid.uuid4().hex}"
