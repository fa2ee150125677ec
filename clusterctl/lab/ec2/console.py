"""GetConsoleOutput answers with what the host itself printed, a while after it did."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.responses import EC2Response

from clusterctl.lab.ec2.completion import override
from clusterctl.lab.faults.store import FAULTS


def install(read_console: Callable[[str], str]) -> None:
    """`read_console` gives the text of an instance id; empty where there is none yet."""

    def get_console_output(response: Any) -> ActionResult:
        instance = response.ec2_backend.get_instance(response._get_param("InstanceId"))
        late = time.monotonic() < instance.booted_at + FAULTS.console_delay_s
        text = "" if late else read_console(instance.id)
        shown = {"Output": base64.b64encode(text.encode()).decode()} if text else {}
        return ActionResult({"InstanceId": instance.id, "Timestamp": utcnow(), **shown})

    override(EC2Response, get_console_output)
