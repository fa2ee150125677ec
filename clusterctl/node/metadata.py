"""What a node reads about itself from the instance metadata service (IMDSv2):
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request

ADDRESS, TIMEOUT_S = "http://169.254.169.254", 5.0
ROLES = "meta-data/iam/security-credentials/"


def metadata(path: str) -> str:
    """Return the text at `path`. Raises OSError; HTTPError with code 404 if nothing is there."""
    base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ADDRESS
    # No proxy, whatever http_proxy is set to: the address is local to the instance.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(path: str, method: str, name: str, value: str) -> str:
        request = urllib.request.Request(  # noqa: S310
            f"{base.rstrip('/')}/latest/{path}", method=method, headers={name: value}
        )
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode())

    token = ask("api/token", "PUT", "X-aws-ec2-metadata-token-ttl-seconds", "300")
    return ask(path, "GET", "X-aws-ec2-metadata-token", token)


def has_role() -> bool:
    """Return whether the node has an instance profile. True also if the service does not answer."""
    try:
        return bool(metadata(ROLES).strip())
    except urllib.error.HTTPError as error:
        # 404: there is no profile; 403: the service is turned off. Other errors may be temporary.
        return error.code not in (403, 404)
    except OSError:
        return True
