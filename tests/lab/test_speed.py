"""What the lab does faster than moto has the same result."""

from __future__ import annotations

import pytest
import xmltodict

from clusterctl.lab.ec2.speed import xml_of


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
