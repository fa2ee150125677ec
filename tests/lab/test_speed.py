"""What the lab does faster than moto has the same result."""

from __future__ import annotations

import pytest
import xmltodict

from clusterctl.lab.ec2.speed import xml_of
from tests.moto_ec2 import client, moto_client, moto_url

__all__ = ["client", "moto_client", "moto_url"]


@pytest.mark.parametrize(
    "body",
    [
        {"@xmlns": "http://ec2.amazonaws.com/doc/", "requestId": "x", "set": {"item": ["a", "b"]}},
        {"set": {"item": [{"id": 1, "state": {"name": "on"}}, {"id": 2, "tags": ""}]}},
        {"text": '<a> & "b" \u00e9\n', "none": None, "no": False, "yes": True, "half": 0.5},
        {"empty": {}, "set": {"item": []}, "@a": '1 < "2"', "@b": "it's"},
        {},
    ],
)
def test_a_response_is_the_xml_that_motos_library_writes(body):
    root = {"Response": body}
    expected = xmltodict.unparse(root, full_document=False, short_empty_elements=True)
    assert xml_of("Response", body) == expected


def test_what_a_request_adds_to_a_response_is_only_in_its_own(client):
    client.create_key_pair(KeyName="a", KeyType="ed25519")

    def shows_key(**asked):
        return "PublicKey" in client.describe_key_pairs(**asked)["KeyPairs"][0]

    wanted = [False, True, False, True]
    assert [shows_key(IncludePublicKey=one) for one in wanted] == wanted
    assert not shows_key()
