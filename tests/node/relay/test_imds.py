"""The instance profile's keys, from a metadata service that is as slow and odd as EC2's can be."""

from __future__ import annotations

import json
import socket

import pytest

from clusterctl.node.relay import imds
from clusterctl.node.relay.imds import REFRESH_BEFORE_S, Metadata, NoCredentials
from clusterctl.node.relay.sigv4 import Keys
from tests.node.relay.webserver import hang_up, serving, status

TOKEN = "/latest/api/token"
ROLES = "/latest/meta-data/iam/security-credentials/"
FIRST = {
    "AccessKeyId": "ASIA1",
    "SecretAccessKey": "s1",
    "Token": "t1",
    "Expiration": "2026-11-21T20:00:00Z",
}
SECOND = {**FIRST, "AccessKeyId": "ASIA2", "Expiration": "2026-11-22T02:00:00Z"}
ENDS = 1795291200.0


@pytest.fixture
def service():
    with serving() as server:
        server.files[TOKEN] = b"a token"
        server.files[ROLES] = b"nodes"
        server.files[ROLES + "nodes"] = json.dumps(FIRST).encode()
        yield server


def metadata(service, now=ENDS - 6 * 3600):
    times = [now]
    return Metadata(service.url, clock=lambda: times[0]), times


def test_keys_come_with_a_token_of_version_2(service):
    keys = metadata(service)[0].keys()
    assert keys == Keys("ASIA1", "s1", "t1")
    method, path, headers = service.requests[0]
    assert (method, path) == ("PUT", TOKEN)
    assert headers["x-aws-ec2-metadata-token-ttl-seconds"] == "21600"
    for method, _, headers in service.requests[1:]:
        assert (method, headers["x-aws-ec2-metadata-token"]) == ("GET", "a token")


def test_keys_are_kept_until_shortly_before_they_end(service):
    machine, times = metadata(service)
    machine.keys()
    asked = len(service.requests)
    service.files[ROLES + "nodes"] = json.dumps(SECOND).encode()
    times[0] = ENDS - REFRESH_BEFORE_S - 1
    assert machine.keys().access == "ASIA1"
    assert len(service.requests) == asked
    times[0] = ENDS - REFRESH_BEFORE_S
    assert machine.keys().access == "ASIA2"


def test_keys_that_s3_refuses_are_renewed_at_once(service):
    machine, _ = metadata(service)
    machine.keys()
    service.files[ROLES + "nodes"] = json.dumps(SECOND).encode()
    assert machine.keys(renew=True).access == "ASIA2"


def test_a_token_that_is_over_is_renewed(service):
    machine, _ = metadata(service)
    machine.keys()
    service.misdeeds.append(status(401))
    assert machine.keys(renew=True).access == "ASIA1"
    assert [method for method, _, _ in service.requests].count("PUT") == 2


@pytest.mark.parametrize("misdeed", [hang_up, status(500), status(503)])
def test_a_hiccup_is_outlasted(service, misdeed):
    machine, _ = metadata(service)
    machine.region()
    service.misdeeds.append(misdeed)
    assert machine.keys().access == "ASIA1"


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (lambda s: s.files.pop(ROLES), "no instance profile"),
        (lambda s: s.files.update({ROLES: b""}), "no instance profile"),
        (lambda s: s.files.update({ROLES + "nodes": b"<html>"}), "nodes gives no keys"),
        (lambda s: s.files.update({ROLES + "nodes": b"[]"}), "nodes gives no keys"),
        (lambda s: s.files.update({ROLES + "nodes": b'{"Code": "Failed"}'}), "gives no keys"),
        (lambda s: s.misdeeds.append(status(403)), "refuses .403."),
        (lambda s: s.misdeeds.extend([status(503)] * 9), "credentials for S3"),
    ],
)
def test_without_keys_it_says_what_to_do(service, break_it, why):
    break_it(service)
    with pytest.raises(NoCredentials, match=why) as told:
        metadata(service)[0].keys()
    assert "--credentials mine" in told.value.hint


def test_a_machine_that_is_not_ec2s(monkeypatch):
    monkeypatch.setattr(imds, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    machine = Metadata(f"http://127.0.0.1:{port}")
    assert machine.region() == ""
    with pytest.raises(NoCredentials, match="no metadata service"):
        machine.keys()


def test_the_region(service):
    service.files["/latest/meta-data/placement/region"] = b"eu-west-1\n"
    assert metadata(service)[0].region() == "eu-west-1"
