"""Host keys from the console: what a new instance says about itself before anybody logs in."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from typing import TYPE_CHECKING

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.errors import throttled, translated

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

_BLOCK = re.compile(
    r"-----BEGIN SSH HOST KEY KEYS-----(?P<keys>.*?)-----END SSH HOST KEY KEYS-----", re.DOTALL
)
_KEY = re.compile(r"\b(ssh-ed25519|ecdsa-sha2-nistp(?:256|384|521)|ssh-rsa) ([A-Za-z0-9+/]+=*)")


def console_text(client: EC2Client, instance_id: str) -> str:
    """The console so far; empty while there is none. Raises AwsError."""
    # Latest asks the hypervisor and is for Nitro only; else EC2's own, older copy has to do.
    for latest in ({"Latest": True}, {}):
        try:
            with translated():
                answer = client.get_console_output(InstanceId=instance_id, **latest)
        except AwsError as error:
            if throttled(error) or error.code.startswith("InvalidInstanceID"):
                return ""
            if latest and error.code in ("UnsupportedOperation", "Unsupported"):
                continue
            raise
        text = answer.get("Output", "")
        if text:
            return text
    return ""


def parse_host_keys(console: str) -> tuple[str, ...]:
    """The host keys cloud-init printed, as `TYPE BASE64`; none before the block is complete.

    Each line may carry a logger's prefix. A key broken up by another message is left out.
    """
    blocks = [match["keys"] for match in _BLOCK.finditer(console)]
    if not blocks:
        return ()
    found = (match.groups() for match in _KEY.finditer(blocks[-1]))
    return tuple(dict.fromkeys(f"{kind} {body}" for kind, body in found if _whole(kind, body)))


def _whole(kind: str, body: str) -> bool:
    """Whether the base64 is a complete key of this type: a row of length-prefixed fields."""
    try:
        blob = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return False
    fields = []
    while len(blob) >= 4:
        (size,) = struct.unpack(">I", blob[:4])
        if size > len(blob) - 4:
            return False
        fields.append(blob[4 : 4 + size])
        blob = blob[4 + size :]
    wanted = 2 if kind == "ssh-ed25519" else 3
    return not blob and len(fields) == wanted and fields[0] == kind.encode()
