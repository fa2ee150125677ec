"""A security group that an instance uses cannot be deleted."""

from __future__ import annotations

from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend

from clusterctl.lab.ec2.completion import override


def install() -> None:
    delete = EC2Backend.delete_security_group

    def delete_security_group(
        backend: Any, name: str | None = None, group_id: str | None = None
    ) -> None:
        if any(_uses(one, name, group_id) for one in backend.all_instances()):
            raise EC2ClientError(
                "DependencyViolation", f"resource {group_id or name} has a dependent object"
            )
        delete(backend, name, group_id)

    override(EC2Backend, delete_security_group)


def _uses(instance: Any, name: str | None, group_id: str | None) -> bool:
    if instance.state == "terminated":
        return False
    groups = [group for nic in instance.nics.values() for group in nic.group_set]
    return any(group.id == group_id if group_id else group.name == name for group in groups)
