"""What a node reads of itself from the instance metadata service, IMDSv2:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request

ADDRESS, TIMEOUT_S = "http://169.254.169.254", 5.0
ROLES = "meta-data/iam/security-credentials/"


def metadata(path: str) -> str:
    """The text at `path`. Raises OSError: HTTPError with 404 where there is none."""
    base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ADDRESS
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(path: str, method: str, name: str, value: str) -> str:
        asked = urllib.request.Request(  # noqa: S310
            f"{base.rstrip('/')}/latest/{path}", method=method, headers={name: value}
        )
        with opener.open(asked, timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode())

    token = ask("api/token", "PUT", "X-aws-ec2-metadata-token-ttl-seconds", "300")
    return ask(path, "GET", "X-aws-ec2-metadata-token", token)


def has_role() -> bool:
    """Whether the node has an instance profile, or may have one: no answer."""
    try:
        return bool(metadata(ROLES).strip())
    except urllib.error.HTTPError as error:
        # Nothing is there, or the service is turned off. Other errors pass.
        return error.code not in (403, 404)
    except OSError:
        return True
