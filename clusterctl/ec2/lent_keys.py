"""This machine's keys, to be lent to nodes: for some hours, where AWS gives such."""

from __future__ import annotations

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.errors import translated
from clusterctl.ec2.session import Clients

LENT_S = 12 * 3600


def lend_keys(clients: Clients) -> tuple[str, str, str]:
    """Access key, secret and token. Raises AwsError without credentials.

    Long-lived keys are exchanged for a session's; a session's own, and a root user's, go as they
    are, since AWS gives no shorter ones for those.
    """
    keys = clients.frozen_keys()
    if keys[2]:
        return keys
    try:
        with translated():
            given = clients.sts.get_session_token(DurationSeconds=LENT_S)["Credentials"]
    except AwsError:
        return keys
    return given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"]
