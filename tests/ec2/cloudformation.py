"""A CloudFormation whose operations take time, fail and are rolled back, unlike moto's.

Each DescribeStacks advances it by a step. The resources of a network are made in moto's EC2.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError

REASON = "Resource handler returned message: The maximum number of VPCs has been reached."
GONE = "Resource creation cancelled"
STACK = "AWS::CloudFormation::Stack"


def refused(code: str, message: str, operation: str = "DescribeStacks") -> ClientError:
    response = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": 400},
    }
    return ClientError(response, operation)


class CloudFormation:
    """The stacks of one region. `fails`: the error of the next operation."""

    def __init__(self, ec2: Any) -> None:
        self.ec2 = ec2
        self.stacks: dict[str, dict[str, Any]] = {}
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.requests: list[str] = []
        self.fails = ""
        self._ahead: dict[str, Iterator[str]] = {}
        self._numbers = itertools.count()

    # The API

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        stack = self.stacks.get(StackName) or self._named(StackName)
        if stack is None:
            raise refused("ValidationError", f"Stack with id {StackName} does not exist")
        answer = dict(stack)
        status = next(self._ahead.get(stack["StackId"], iter(())), None)
        if status:
            self._set(stack, status)
        return {"Stacks": [answer]}

    def create_stack(self, **request: Any) -> dict[str, str]:
        self.requests.append("create")
        name = request["StackName"]
        if self._named(name):
            raise refused("AlreadyExistsException", f"Stack [{name}] already exists", "CreateStack")
        stack_id = f"arn:aws:cloudformation:us-east-1:1:stack/{name}/{uuid.uuid4()}"
        stack = self.stacks[stack_id] = {
            "StackId": stack_id,
            "StackName": name,
            "Parameters": request["Parameters"],
            "Tags": request["Tags"],
        }
        self._begin(stack, "CREATE", self._fill, ["ROLLBACK_IN_PROGRESS", "ROLLBACK_COMPLETE"])
        return {"StackId": stack_id}

    def update_stack(self, **request: Any) -> dict[str, str]:
        self.requests.append("update")
        stack = self.stacks[request["StackName"]]
        now = (request["Parameters"], request["Tags"])
        before = (stack["Parameters"], stack["Tags"])
        if now == before:
            raise refused("ValidationError", "No updates are to be performed.", "UpdateStack")

        def change(stack: dict[str, Any]) -> None:
            stack["Parameters"], stack["Tags"] = now

        stack["LastUpdatedTime"] = next(self._numbers)
        back = ["UPDATE_ROLLBACK_IN_PROGRESS", "UPDATE_ROLLBACK_COMPLETE"]
        self._begin(stack, "UPDATE", change, back)
        return {"StackId": stack["StackId"]}

    def delete_stack(self, StackName: str, ClientRequestToken: str) -> None:
        self.requests.append("delete")
        stack = self.stacks[StackName]
        stack["DeletionTime"] = next(self._numbers)
        self._begin(stack, "DELETE", self._empty, ["DELETE_FAILED"])

    def get_paginator(self, operation: str) -> CloudFormation:
        assert operation == "describe_stack_events"
        return self

    def paginate(self, StackName: str) -> Iterator[dict[str, Any]]:
        for event in reversed(self.events[StackName]):
            yield {"StackEvents": [event]}

    # Progress

    def put(self, name: str, status: str, parameters: dict[str, str], *ahead: str) -> str:
        """Add an existing stack. It later has the statuses `ahead`, in order."""
        self.create_stack(
            StackName=name,
            Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()],
            Tags=[],
        )
        stack = self._named(name)
        assert stack
        self.requests.clear()
        self._ahead[stack["StackId"]] = iter(ahead)
        stack["StackStatus"] = status
        return str(stack["StackId"])

    def _named(self, name: str) -> dict[str, Any] | None:
        alive = (s for s in self.stacks.values() if s["StackStatus"] != "DELETE_COMPLETE")
        return next((stack for stack in alive if stack["StackName"] == name), None)

    def _begin(self, stack: dict[str, Any], verb: str, effect: Any, failing: list[str]) -> None:
        self._set(stack, f"{verb}_IN_PROGRESS", "User Initiated")
        self._ahead[stack["StackId"]] = self._course(stack, verb, effect, failing, self.fails)
        self.fails = ""

    def _course(
        self, stack: dict[str, Any], verb: str, effect: Any, failing: list[str], reason: str
    ) -> Iterator[str]:
        self._event(stack, "Vpc", "AWS::EC2::VPC", f"{verb}_IN_PROGRESS")
        yield f"{verb}_IN_PROGRESS"
        if reason:
            self._event(stack, "Vpc", "AWS::EC2::VPC", f"{verb}_FAILED", reason)
            self._event(
                stack, "InternetGateway", "AWS::EC2::InternetGateway", f"{verb}_FAILED", GONE
            )
            yield from failing
            return
        effect(stack)
        self._event(stack, "Vpc", "AWS::EC2::VPC", f"{verb}_COMPLETE")
        yield f"{verb}_COMPLETE"

    def _set(self, stack: dict[str, Any], status: str, reason: str = "") -> None:
        if stack.get("StackStatus") != status:
            stack["StackStatus"] = status
            self._event(stack, stack["StackName"], STACK, status, reason)

    def _event(
        self, stack: dict[str, Any], resource: str, kind: str, status: str, reason: str = ""
    ) -> None:
        event = {
            "EventId": str(next(self._numbers)),
            "LogicalResourceId": resource,
            "ResourceType": kind,
            "ResourceStatus": status,
            "ResourceStatusReason": reason,
        }
        self.events.setdefault(stack["StackId"], []).append(event)

    # Resources

    def _fill(self, stack: dict[str, Any]) -> None:
        given = {each["ParameterKey"]: each["ParameterValue"] for each in stack["Parameters"]}
        vpc_id = self.ec2.create_vpc(CidrBlock=given["Cidr"])["Vpc"]["VpcId"]
        outputs = {"VpcId": vpc_id}
        for which in ("First", "Second"):
            made = self.ec2.create_subnet(
                VpcId=vpc_id,
                CidrBlock=given[f"{which}Cidr"],
                AvailabilityZone=given[f"{which}Zone"],
            )
            outputs[f"{which}SubnetId"] = made["Subnet"]["SubnetId"]
        group = self.ec2.create_security_group(GroupName="g", Description="g", VpcId=vpc_id)
        outputs["SecurityGroupId"] = group["GroupId"]
        stack["Outputs"] = [{"OutputKey": k, "OutputValue": v} for k, v in outputs.items()]

    def _empty(self, stack: dict[str, Any]) -> None:
        outputs = {each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", ())}
        for key in ("FirstSubnetId", "SecondSubnetId"):
            if key in outputs:
                self.ec2.delete_subnet(SubnetId=outputs[key])
        if outputs:
            self.ec2.delete_security_group(GroupId=outputs["SecurityGroupId"])
            self.ec2.delete_vpc(VpcId=outputs["VpcId"])
        stack["Outputs"] = []
