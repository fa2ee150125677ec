"""Ask EC2 whether it would permit a launch, before anything is made for it.

RunInstances with `DryRun` checks the caller's permissions and the parameters, and launches nothing
(EC2 API reference, RunInstances). It checks neither capacity nor quotas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError
from clusterctl.domain.findings import Finding
from clusterctl.ec2.errors import outcome_unknown, throttled, translated
from clusterctl.ec2.launch.attempt import not_yet_known
from clusterctl.ec2.launch.capacity import RefusalAction, refusal_action
from clusterctl.ec2.launch.execution import is_about_filling
from clusterctl.ec2.launch.plan import LaunchPlan
from clusterctl.ec2.launch.request import ResultOf

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

NOT_PERMITTED = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")


def dry_run_findings(client: EC2Client, plan: LaunchPlan) -> tuple[Finding, ...]:
    """Return EC2's response to the plan's first launch; nothing for a plan without one.

    A refusal is an error, unless another try may succeed. No AwsError is raised.
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
        text = f"EC2 permits RunInstances; {limits}capacity and quotas are not part of the question"
        return (Finding.info("launch.permitted", text),)
    if error.code in NOT_PERMITTED:
        return (
            Finding.error(
                "launch.permitted",
                f"RunInstances is refused: {error.message}",
                error.hint or "see what it needs: clusterctl iam-policy operator",
            ),
        )
    final = refusal_action(error.code) in (RefusalAction.ABORT, RefusalAction.FIX)
    again = outcome_unknown(error) or throttled(error) or not_yet_known(error)
    if not final or again or is_about_filling(error):
        return ()
    text = f"RunInstances is refused: {error.message}"
    if is_new:
        # The launch itself names a key and a group, and may be taken.
        text = f"checked without key and groups, which do not exist yet: {text}"
        return (Finding.warning("launch.permitted", text, error.hint),)
    return (Finding.error("launch.permitted", text, error.hint),)
