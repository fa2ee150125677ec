"""Instance profiles: one that is not there refuses the launch, and every instance gets it.

moto answers with IAM's error, and gives the profile to the first instance only.
"""

from __future__ import annotations

from typing import Any

from moto.core.exceptions import ServiceException
from moto.ec2.utils import filter_iam_instance_profiles
from werkzeug.exceptions import HTTPException

from clusterctl.lab.ec2.launch import LabLaunch, Request, Rule, refuse


class ProfileRule(Rule):
    def check_request(self, request: Request) -> None:
        for kind in ("name", "arn"):
            wanted = request.get(f"IamInstanceProfile.{kind.capitalize()}")
            if wanted and not _exists(request, kind, wanted):
                said = "ARN" if kind == "arn" else "name"
                raise refuse(
                    "InvalidParameterValue",
                    f"Value ({wanted}) for parameter iamInstanceProfile.{kind} is invalid. "
                    f"Invalid IAM Instance Profile {said}",
                )

    def mark(self, launch: LabLaunch, instance: Any) -> None:
        name, arn = (launch.request.get(f"IamInstanceProfile.{key}") for key in ("Name", "Arn"))
        # moto associates the first one itself.
        if (name or arn) and instance.ami_launch_index:
            launch.backend.associate_iam_instance_profile(
                instance_id=instance.id,
                iam_instance_profile_name=name,
                iam_instance_profile_arn=arn,
            )


def _exists(request: Request, kind: str, wanted: str) -> bool:
    response = request.response
    try:
        filter_iam_instance_profiles(
            response.current_account,
            partition=response.partition,
            iam_instance_profile_arn=wanted if kind == "arn" else None,
            iam_instance_profile_name=wanted if kind == "name" else None,
        )
    except (ServiceException, HTTPException):
        return False
    return True
