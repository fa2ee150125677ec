"""The model server refuses a request before its memory can bring the kernel to kill the server."""

from __future__ import annotations

import gzip
import json
import random
import runpy
import tracemalloc

import pytest

from clusterctl.bootstrap.training import SHELL

MIB = 1 << 20
PROGRAM = runpy.run_path(str(SHELL / "serve.py"))
Memory, HttpError = PROGRAM["Memory"], PROGRAM["HttpError"]
SIZE, INF = 300_000, float("inf")
PIECES = {
    "numbers": b"0.5,",
    "long numbers": b"0.123456789012,",
    "large integers": b"99999999999999999999,",
    "empty lists": b"[],",
    "lists": b"[1,[2]],",
    "objects": b'{"":0},',
    "bytes": b'{"b64":"YQ=="},',
    "nested": b"[" * 90 + b"]" * 90 + b",",
    "nested objects": b'{"":' * 90 + b"0" + b"}" * 90 + b",",
    "short texts": b'"ab",',
    "texts with wide letters": b'"' + b"a" * 99 + "\U0001f600".encode() + b'",',
    "escapes": b'"\\ud83d\\ude00\\u0101",',
}


@pytest.mark.parametrize("what", PIECES)
def test_no_body_takes_more_memory_than_is_counted(what):
    piece = PIECES[what]
    body = b'{"instances":[' + piece * (SIZE // len(piece)) + b"0]}"
    tracemalloc.start()
    try:
        asked = PROGRAM["parse_body"](body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert asked["instances"]
    assert peak + len(body) <= PROGRAM["memory_of"](body)


@pytest.mark.parametrize("number", ["1e400", "-1.5E+309", "1e0000000000999", "9" * 400 + ".5"])
def test_a_number_that_no_float_holds_is_refused_and_does_not_become_infinity(number):
    with pytest.raises(HttpError, match=f"Number too big to be stored in double: {number[:4]}"):
        PROGRAM["parse_body"](f'{{"instances": [[{number}]]}}'.encode())
    assert PROGRAM["parse_body"](b'{"a": [1e308, 1e-400, -Infinity]}') == {"a": [1e308, 0, -INF]}


def test_requests_together_stay_within_the_memory():
    """A random history of requests, with what is taken and given back, against a plain sum."""
    draw = random.Random(1)
    memory, shares = Memory(100 * MIB, lambda: 60 * MIB), []
    seen = set()
    for _ in range(5000):
        if shares and draw.random() < 0.4:
            shares.pop(draw.randrange(len(shares))).end()
        else:
            try:
                shares.append(memory.begin())
                shares[-1].take(draw.randrange(110 * MIB) if draw.random() < 0.5 else 10)
            except HttpError as refused:
                seen.add(refused.status)
        assert memory.used == sum(share.size for share in shares) <= 100 * MIB
        assert memory.requests == len(shares)
    assert seen == {413, 429}
    for share in shares:
        share.end()
    assert (memory.used, memory.requests) == (0, 0)


def test_only_so_many_requests_are_in_progress():
    memory = Memory(MIB, lambda: MIB)
    shares = [memory.begin() for _ in range(PROGRAM["MOST_REQUESTS"])]
    with pytest.raises(HttpError) as refused:
        memory.begin()
    assert refused.value.status == 429
    shares[0].end()
    memory.begin()


def test_a_machine_without_memory_refuses_what_would_fit_otherwise():
    share = Memory(MIB, lambda: 1000).begin()
    share.take(1000)
    with pytest.raises(HttpError) as refused:
        share.take(1001)
    assert refused.value.status == 429


def test_a_small_body_that_unpacks_to_a_large_one_is_not_unpacked():
    share = Memory(10 * MIB, lambda: 1 << 40).begin()
    packed = gzip.compress(bytes(200 * MIB), 1)
    tracemalloc.start()
    try:
        with pytest.raises(HttpError) as refused:
            PROGRAM["unpacked"](packed, share)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413
    assert peak < 20 * MIB
    share.end()
    body = json.dumps({"instances": [[1, 2]]}).encode()
    assert PROGRAM["unpacked"](gzip.compress(body), Memory(MIB).begin()) == body
