from __future__ import annotations

import base64
import gzip

import pytest

from clusterctl.lab.userdata import UserData, decode

SCRIPT = b"#!/bin/sh\necho hello\n"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", UserData()),
        (b"  \n", UserData()),
        (SCRIPT, UserData(script=SCRIPT)),
        (gzip.compress(SCRIPT), UserData(script=SCRIPT)),
        (base64.b64encode(SCRIPT), UserData(script=SCRIPT)),
        (base64.b64encode(gzip.compress(SCRIPT)) + b"\n", UserData(script=SCRIPT)),
        (b"#!/bin/sh\n\xff\xfe", UserData(script=b"#!/bin/sh\n\xff\xfe")),
    ],
)
def test_what_it_is(raw, expected):
    assert decode(raw) == expected


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"#cloud-config\npackages: []\n", "'#cloud-config'"),
        (b"Content-Type: multipart/mixed", "'Content-Type: multipart/mixed'"),
        (b"hello", "'hello'"),
        (b"\x1f\x8b\x08\x00broken", "not valid gzip"),
        (gzip.compress(SCRIPT)[:-9], "not valid gzip"),
    ],
)
def test_what_the_lab_cannot_run_is_said(raw, said):
    decoded = decode(raw)
    assert decoded.script == b""
    assert said in decoded.problem
