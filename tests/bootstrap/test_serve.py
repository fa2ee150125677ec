"""Our model server keeps TensorFlow Serving's REST contract: a real model, requested over HTTP."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import math
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.bootstrap.training import SHELL
from clusterctl.operations.serving import NEVER_SERVED, libraries_here
from tests.ports import free_port
from tests.serving import make_model, training_python

pytestmark = pytest.mark.train


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    return libraries_here(tmp_path_factory.mktemp("cache"))


READY = re.compile("^ready: (.*)\n", re.MULTILINE)


class Server:
    """serve.py as a job runs it, in its own folder."""

    def __init__(self, folder, libraries, model_dir, path="", edit=("", "")):
        folder.mkdir()
        (folder / "serve.py").write_text((SHELL / "serve.py").read_text().replace(*edit))
        self.port = free_port()
        self.log = folder / "log"
        words = ["--model", "tiny", "--folder", str(model_dir), "--port", str(self.port)]
        words += ["--libraries", str(libraries), *(["--public"] if path else [])]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [training_python(), "-u", str(folder / "serve.py"), *words],
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"},
            )
        while not (found := READY.search(self.log.read_text())) and self.process.poll() is None:
            time.sleep(0.05)
        self.ready = json.loads(found[1]) if found else None

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def predict(self, body, verb=":predict", **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", f"/v1/models/tiny{verb}", body, headers)

    def stop(self):
        self.process.terminate()
        return self.process.wait(30)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("tiny"), 1, 2)


@pytest.fixture(scope="module")
def server(tmp_path_factory, libraries, tiny):
    found = Server(tmp_path_factory.mktemp("server") / "job", libraries, tiny)
    assert found.ready == {"server": "clusterctl", "version": 2}, found.log.read_text()
    yield found
    found.stop()


B64 = {"b64": base64.b64encode(b"\xff\0").decode()}
NAN, INF = math.nan, math.inf
ANSWERS = [
    ({"instances": [[1, 2.5]]}, {"predictions": [[2.0, 5.0]]}),
    ({"instances": [[1, 2], [3, 4]]}, {"predictions": [[2.0, 4.0], [6.0, 8.0]]}),
    ({"instances": [{"x": [1, 2]}]}, {"predictions": [[2.0, 4.0]]}),
    ({"inputs": [[1, 2]]}, {"outputs": [[2.0, 4.0]]}),
    ({"inputs": {"x": [[1, 2]]}}, {"outputs": [[2.0, 4.0]]}),
    ({"instances": [[NAN, -INF]]}, {"predictions": [[NAN, -INF]]}),
    ({"signature_name": "several", "instances": [{"x": [1, 2], "k": 7}, {"x": [0, 0], "k": 8}]},
     {"predictions": [{"sum": 3.0, "same": 7}, {"sum": 0.0, "same": 8}]}),
    ({"signature_name": "several", "inputs": {"x": [[1, 2]], "k": [7]}},
     {"outputs": {"sum": [3.0], "same": [7]}}),
    (
        {"signature_name": "text", "instances": ["é", {"b64": "YQ=="}]},
        {
            "predictions": [
                {"same": "é", "same_bytes": {"b64": "w6k="}},
                {"same": "a", "same_bytes": {"b64": "YQ=="}},
            ]
        },
    ),
    ({"signature_name": "text", "inputs": [B64]},
     {"outputs": {"same": ["�\0"], "same_bytes": [B64]}}),
    ({"signature_name": "total", "inputs": [[1, 2], [3, 4]]}, {"outputs": 10.0}),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "answer"), ANSWERS)
@pytest.mark.all
def test_predictions_are_tensorflow_servings(server, asked, answer):
    status, said = server.predict(asked)
    assert (status, repr(sorted_outputs(said))) == (200, repr(sorted_outputs(answer)))


def sorted_outputs(value):
    if isinstance(value, dict):
        return {name: sorted_outputs(value[name]) for name in sorted(value)}
    return [sorted_outputs(one) for one in value] if isinstance(value, list) else value


SEVERAL = {"signature_name": "several"}
REFUSED = [
    (b'{"instances": [1, }', "JSON Parse error: Expecting value. at offset: 18"),
    ('{"é": 1} x'.encode(), "JSON Parse error: Extra data. at offset: 10"),
    (b"", "JSON Parse error: Expecting value. at offset: 0"),
    (b'{"a": "\xff"}', "JSON Parse error: not UTF-8 at offset: 7"),
    (b"[" * 100_000, "JSON Parse error: nested too deeply at offset: 0"),
    (
        b'{"signature_name": "text", "inputs": ' + b"[" * 900 + b"]" * 900 + b"}",
        "JSON Parse error: nested too deeply at offset: 0",
    ),
    ([1], "JSON Value: [1] Is not object"),
    ({}, "Missing 'inputs' or 'instances' key"),
    ({"instances": [], "inputs": []}, "Both"),
    ({"instances": []}, "'instances' is empty"),
    ({"instances": {"x": 1}}, "'instances' is to be a list"),
    ({"instances": [[1, 2, 3]]}, "input x: its shape is [1, 3], expected [-1, 2]"),
    ({"instances": [[1, 2], [3]]}, "input x: its lists are not all of one length"),
    ({"instances": [["a", "b"]]}, 'input x: [["a", "b"]] is not of type float32'),
    ({"instances": [[None, 1]]}, "input x: [[null, 1]] is not of type float32"),
    ({"instances": [["a" * 1000] * 2]}, "a" * 100 + "..."),
    ({"instances": [{"y": [1, 2]}]}, 'instance 0: has "y", and the signature x'),
    ({"instances": [{"x": [1, 2]}, [1, 2]]}, "instance 1 is no object"),
    ({"inputs": {"z": 1}}, 'inputs: has "z", and the signature x'),
    ({"signature_name": "none", "instances": [[1, 2]]}, 'name: "none" not found'),
    ({"signature_name": ["text"], "instances": [[1, 2]]}, 'name: ["text"] not found'),
    ({**SEVERAL, "instances": [[1, 2]]}, "the inputs have to be named, there are k, x"),
    ({**SEVERAL, "instances": [{"x": [1, 2], "k": 1.0}]}, "input k: [1.0] is not of type int32"),
    ({**SEVERAL, "instances": [{"x": [1, 2], "k": True}]}, "input k: [true] is not of type int32"),
    ({**SEVERAL, "instances": [{"x": [1, 2], "k": 2**31}]}, "out of the range of int32"),
    ({"instances": [[1e39, 1]]}, "input x: a number is out of the range of float32"),
    ({"signature_name": "text", "instances": [1]}, "input t: 1 is not of type string"),
    ({"signature_name": "text", "instances": [{"b64": "?"}]}, "is no base64"),
    ({"signature_name": "text", "instances": ["\ud800"]}, 'input t: "\\ud800" is no Unicode text'),
    ({"signature_name": "total", "instances": [[1, 2]]}, "output total has no row for each"),
]


@pytest.mark.parametrize(("asked", "message"), REFUSED)
@pytest.mark.all
def test_refuses(server, asked, message):
    status, said = server.predict(asked)
    assert (status, list(said)) == (400, ["error"])
    assert message in said["error"]
    # Like TensorFlow Serving's, the message quotes only the beginning of a long value.
    assert len(said["error"]) < 600


M = "/v1/models"
AVAILABLE = {
    "version": "2",
    "state": "AVAILABLE",
    "status": {"error_code": "OK", "error_message": ""},
}
PATHS = [
    ("GET", f"{M}/tiny", 200, {"model_version_status": [AVAILABLE]}),
    ("GET", f"{M}/tiny/versions/2", 200, {"model_version_status": [AVAILABLE]}),
    ("GET", f"{M}/tiny/versions/1", 404, "Could not find version 1 of model tiny"),
    ("GET", f"{M}/other", 404, "Could not find any versions of model other"),
    ("GET", f"{M}/other/metadata", 404, "Servable not found for request: Latest(other)"),
    ("POST", f"{M}/other:predict", 404, "Servable not found for request: Latest(other)"),
    ("POST", f"{M}/tiny/versions/9:predict", 404, "for request: Specific(tiny, 9)"),
    ("POST", f"{M}/tiny:classify", 400, "ask with predict"),
    ("POST", f"{M}/tiny:nonsense", 400, "Malformed request: POST /v1/models/tiny:nonsense"),
    ("GET", f"{M}/tiny:predict", 400, "Malformed request: GET /v1/models/tiny:predict"),
    ("GET", f"{M}/tiny/versions/{'9' * 5000}", 400, "Malformed request: GET"),
    ("GET", "/", 400, "Malformed request: GET /"),
]


@pytest.mark.parametrize(("method", "path", "status", "answer"), PATHS)
@pytest.mark.all
def test_paths(server, method, path, status, answer):
    found, said = server.ask(method, path, b"{}" if method == "POST" else None)
    assert found == status
    assert said == answer if status == 200 else answer in said["error"]


@pytest.mark.all
def test_metadata(server):
    status, said = server.ask("GET", "/v1/models/tiny/versions/2/metadata")
    assert status == 200
    assert said["model_spec"] == {"name": "tiny", "signature_name": "", "version": "2"}
    x = said["metadata"]["signature_def"]["signature_def"]["several"]["inputs"]["x"]
    assert x["dtype"] == "DT_FLOAT"
    assert [one["size"] for one in x["tensor_shape"]["dim"]] == ["-1", "2"]


@pytest.mark.all
def test_large_requests_and_many_at_once(server):
    """Small requests do not wait for one of 100 MB."""
    rows = 100_000_000 // len("[0.123456789, 0.123456789], ")
    large = b'{"instances": [' + b"[0.123456789, 0.123456789], " * rows + b"[1, 2]]}"
    with ThreadPoolExecutor(20) as pool:
        waiting = pool.submit(server.predict, large)
        small = list(pool.map(lambda n: server.predict({"instances": [[n, n]]}), range(200)))
        assert small == [(200, {"predictions": [[2.0 * n, 2.0 * n]]}) for n in range(200)]
        status, said = waiting.result()
    assert (status, len(said["predictions"]), said["predictions"][-1]) == (
        200,
        rows + 1,
        [2.0, 4.0],
    )
    packed = gzip.compress(json.dumps({"instances": [[1, 2]]}).encode())
    zipped = {"Content-Encoding": "gzip"}
    assert server.predict(packed, **zipped) == (200, {"predictions": [[2.0, 4.0]]})
    for wrong in (b"no gzip", packed[:10] + b"\xff" + packed[11:]):
        assert server.predict(wrong, **zipped)[0] == 400
    too_large = {"Content-Length": str(1 << 40)}
    status, said = server.predict(b"{}", **too_large)
    assert (status, "larger than" in said["error"]) == (413, True)
    assert server.predict(gzip.compress(bytes(300 << 20), 1), **zipped)[0] == 413


@pytest.mark.all
def test_requests_are_refused_before_memory_runs_out(tmp_path, libraries, tiny):
    little = ("Memory(available_bytes() // 2)", "Memory(64 << 20)")
    server = Server(tmp_path / "job", libraries, tiny, edit=little)
    try:
        for body in (b"[]," * (1 << 20), b'{"":0},' * (1 << 19), b"1," * (1 << 20)):
            whole = b'{"instances": [' + body + b"1]}"
            for sent, headers in (
                (whole, {}),
                (gzip.compress(whole, 1), {"Content-Encoding": "gzip"}),
            ):
                status, said = server.predict(sent, **headers)
                assert status == 413
                assert "MiB of memory, and 64 MiB are for requests" in said["error"]
        small = {"instances": [[1, 2]]}
        assert server.predict(small) == (200, {"predictions": [[2.0, 4.0]]})
        # As many unfinished requests as the server takes at once, and then their memory.
        for size, most in ((10, 256), (16 << 20, 2)):
            held = [unfinished(server.port, size) for _ in range(most)]
            status, said = answer_when_busy(server, small)
            assert (status, "try again later" in said["error"]) == (429, True)
            for one in held:
                one.close()
            assert answer_when_idle(server, small) == (200, {"predictions": [[2.0, 4.0]]})
    finally:
        server.stop()


def unfinished(port, size):
    """Begin a prediction whose body never comes."""
    connection = socket.create_connection(("127.0.0.1", port))
    head = f"POST /v1/models/tiny:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
    connection.sendall(head.encode() + b"{")
    return connection


def answer_when_busy(server, body):
    """Ask until the server has noticed the unfinished requests."""
    while (answer := server.predict(body))[0] == 200:
        pass
    return answer


def answer_when_idle(server, body):
    """Ask until the server has noticed that the unfinished requests have ended."""
    while (answer := server.predict(body))[0] == 429:
        pass
    return answer


@pytest.mark.all
def test_a_version_that_comes_and_one_that_does_not_load(tmp_path, libraries, tiny):
    shutil.copytree(tiny / "1", tmp_path / "tiny" / "1")
    server = Server(tmp_path / "job", libraries, tmp_path / "tiny")
    try:
        assert server.ready == {"server": "clusterctl", "version": 1}
        (tmp_path / "tiny" / "3").mkdir()
        (tmp_path / "tiny" / "3" / "saved_model.pb").write_bytes(b"not a model")
        states = wait_for(server, "3", "END")
        assert (states["1"]["state"], states["3"]["status"]["error_code"]) == (
            "AVAILABLE",
            "UNKNOWN",
        )
        assert server.predict({"instances": [[1, 2]]}) == (200, {"predictions": [[1.0, 2.0]]})
        shutil.copytree(tiny / "2", tmp_path / "tiny" / "4")
        assert wait_for(server, "4", "AVAILABLE")["1"]["state"] == "END"
        assert server.predict({"instances": [[1, 2]]}) == (200, {"predictions": [[2.0, 4.0]]})
        assert server.predict({"instances": [[1, 2]]}, "/versions/1:predict")[0] == 404
        # A file that grows changes neither its folder's time nor another file's.
        shutil.copytree(tiny / "2", tmp_path / "tiny" / "5")
        data = tmp_path / "tiny/5/variables/variables.data-00000-of-00001"
        content = data.read_bytes()
        data.write_bytes(content[:10])
        wait_for(server, "5", "END")
        with data.open("ab") as rest:
            rest.write(content[10:])
        assert wait_for(server, "5", "AVAILABLE")["4"]["state"] == "END"
    finally:
        server.stop()


def test_a_version_that_is_being_copied_waits_and_one_that_is_removed_is_not_served(tmp_path):
    """The part that has been copied so far would load."""
    program = runpy.run_path(str(SHELL / "serve.py"))
    poll = program["Versions"].poll
    poll.__globals__["LoadedModel"] = lambda path, version: SimpleNamespace(version=version)

    def has(version, words):
        (tmp_path / version).mkdir(exist_ok=True)
        (tmp_path / version / "saved_model.pb").touch()
        (tmp_path / version / "words").write_text(words)

    has("1", "all")
    versions = program["Versions"](tmp_path)
    versions.poll()
    looks = []
    for words in ("half", "half, and more", "all of it", None):
        if words:
            has("2", words)
        versions.poll()
        looks.append(versions.current.version)
    assert looks == [1, 1, 1, 2]
    shutil.rmtree(tmp_path / "2")
    versions.poll()
    assert versions.current.version == 1
    assert versions.states == {1: ("AVAILABLE", ""), 2: ("END", "")}
    shutil.rmtree(tmp_path / "1")
    versions.poll()
    assert versions.current.version == 1, "nothing is there to take its place"


def wait_for(server, version, state):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        said = server.ask("GET", "/v1/models/tiny")[1]["model_version_status"]
        states = {one["version"]: one for one in said}
        if states.get(version, {}).get("state") == state:
            return states
        time.sleep(0.1)
    raise AssertionError(said)


@pytest.mark.all
def test_what_cannot_be_served_ends_with_the_reason(tmp_path, libraries, server):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "saved_model.pb").write_bytes(b"not a model")
    for number, (folder, said) in enumerate(
        {
            "none": "there is no folder",
            "empty": "there is no SavedModel in",
            "broken": "the model does not load: version 1: ",
        }.items()
    ):
        refused = Server(tmp_path / str(number), libraries, tmp_path / folder)
        last = refused.log.read_text().splitlines()[-1]
        assert (refused.process.wait(), refused.ready) == (NEVER_SERVED, None)
        assert last.startswith(f"error: {said}"), last


# Stands in for the real server: it listens on its port and answers as while loading, then as ready.
REAL = """\
#!{python}
import http.server, json, sys
given = dict(word[2:].split("=") for word in sys.argv[1:])
states = iter(["START", "{state}"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        assert self.path == "/v1/models/" + given["model_name"]
        status = {{"error_code": "OK", "error_message": "no ops"}}
        told = {{"version": "2", "state": next(states, "{state}"), "status": status}}
        body = json.dumps({{"model_version_status": [told]}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("", int(given["rest_api_port"])), Handler).serve_forever()
"""


@pytest.mark.parametrize("state", ["AVAILABLE", "END"])
@pytest.mark.all
def test_the_real_server_where_there_is_one(tmp_path, libraries, tiny, state):
    real = tmp_path / "bin" / "tensorflow_model_server"
    real.parent.mkdir()
    real.write_text(REAL.format(python=sys.executable, state=state))
    real.chmod(0o755)
    server = Server(tmp_path / "job", libraries, tiny, path=str(real.parent))
    if state == "END":
        assert server.process.wait(30) == NEVER_SERVED
        assert "error: the model does not load: no ops" in server.log.read_text()
        return
    assert server.ready == {"server": "tensorflow_model_server", "version": 2}
    [child] = (
        Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    )
    server.stop()
    assert not Path(f"/proc/{child}").exists()


def test_answers_do_not_wait_for_an_ack():
    """Nagle's algorithm is off for connections that asyncio accepts from the server's socket."""
    program = f"""
import asyncio, runpy, socket
listen = runpy.run_path({str(SHELL / "serve.py")!r})["listen"]
async def main():
    off = asyncio.get_running_loop().create_future()
    def taken(_, writer):
        there = writer.get_extra_info("socket")
        off.set_result(there.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    listener = listen("127.0.0.1", 0)
    async with await asyncio.start_server(taken, sock=listener):
        await asyncio.open_connection(*listener.getsockname())
        print(await off)
asyncio.run(main())
"""
    argv = [training_python(), "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, int(done.stdout) > 0) == (0, True), done.stderr
