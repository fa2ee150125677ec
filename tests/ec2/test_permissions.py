"""docs/aws.md names the very actions that are called."""

from __future__ import annotations

import re
from pathlib import Path

from clusterctl.ec2.steps import operation_name

ROOT = Path(__file__).parents[2]


def test_every_action_is_in_the_docs_and_no_other():
    source = "".join(path.read_text() for path in (ROOT / "clusterctl" / "ec2").glob("*.py"))
    methods = set(re.findall(r"\b(?:client|once)\.([a-z]+_[a-z_]+)\(", source))
    methods |= set(re.findall(r'"((?:import|create|delete|describe|run)_[a-z_]+)"', source))
    methods |= {f"authorize_security_group_{way}" for way in ("ingress", "egress")}
    called = {operation_name(method) for method in methods} - {"GetPaginator"}
    named = set(re.findall(r"`ec2:(\w+)`", (ROOT / "docs" / "aws.md").read_text()))
    assert called == named
