"""Runs on a node as a job: serves a SavedModel over HTTP like TensorFlow Serving's REST API.

    python serve.py --model NAME --folder DIR --libraries DIR --port N [--public]

--folder has versions (`1`, `2`, ...) or is a SavedModel itself, which is then version 1. The
highest version is served, and replaced when a higher one appears. --libraries has uvicorn and
starlette. When the model answers, this prints a line: `ready: {"server", "version"}`. If no model
loads, the program ends with status 78; its last line is `error: ...`.

The contract: https://www.tensorflow.org/tfx/serving/api_rest. Not supported: classify and regress,
which are for tf.Example, and labels.
"""

from __future__ import annotations

import argparse
import base64
import gc
import gzip
import io
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zlib
from pathlib import Path

BODY_BYTES = 256 << 20  # the largest request
MOST_REQUESTS = 256  # predictions at once
# The most memory that Python takes for a request, in bytes: for each byte of its body (the body,
# its text and the strings in it, of up to 4 bytes a character), and for each value and object in it
# and in the answer.
OF_A_BYTE, OF_A_VALUE, OF_AN_OBJECT = 10, 128, 400
PIECE_BYTES = 1 << 20  # what is decompressed at once
QUOTED_BYTES = 256  # the most that an error quotes
POLL_S = 1.0  # how often new versions are searched for
LOAD_WITHIN_S = 600.0
GRACE_S = 5  # for requests in progress when the server stops
DEFAULT = "serving_default"
NEVER_SERVED = 78  # EX_CONFIG of sysexits.h: no status of a server that has run
TENSORFLOW_SERVING = "tensorflow_model_server"


class HttpError(Exception):
    """An HTTP error: the status, and the message for the client."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


# ---- memory: requests are refused before the kernel has to kill the server


class Memory:
    """The memory for requests in progress, in bytes. Thread-safe.

    `budget` is what all of them may take together. `available` returns what the machine has.
    """

    def __init__(self, budget, available=None):
        self.budget, self._available = budget, available or available_bytes
        self._lock = threading.Lock()
        self.used = self.requests = 0

    def begin(self):
        """Return the Share of a new request. Raises HttpError if there are too many."""
        with self._lock:
            if self.requests >= MOST_REQUESTS:
                raise HttpError(429, f"{MOST_REQUESTS} requests are in progress: try again later")
            self.requests += 1
        return Share(self)

    def take(self, size, had):
        """Take memory for a request that has `had` bytes already. Raises HttpError."""
        with self._lock:
            if had + size > self.budget:
                text = f"the request needs about {(had + size) >> 20} MiB of memory"
                raise HttpError(413, f"{text}, and {self.budget >> 20} MiB are for requests")
            if self.used + size > self.budget or size > self._available():
                raise HttpError(429, "no memory is left for this request: try again later")
            self.used += size

    def end(self, size):
        """Give back the memory of a request that has ended."""
        with self._lock:
            self.used -= size
            self.requests -= 1


class Share:
    """What one request has taken of the memory. `end` has to be called."""

    def __init__(self, memory):
        self._memory, self.size = memory, 0

    def take(self, size):
        """Take more memory. Raises HttpError."""
        if size:
            self._memory.take(size, self.size)
            self.size += size

    def reach(self, size):
        """Take as much that it is `size` together. Raises HttpError."""
        self.take(max(0, size - self.size))

    def end(self):
        self._memory.end(self.size)


def available_bytes():
    """Return the memory that programs can still get on this machine, in bytes."""
    table = Path("/proc/meminfo").read_text()
    rows = dict(line.split(":") for line in table.splitlines())
    return int(rows["MemAvailable"].split()[0]) << 10


def memory_of(body):
    """Return the most memory that a request's body needs to become arrays, in bytes."""
    values = body.count(b",") + body.count(b"[")
    return len(body) * OF_A_BYTE + values * OF_A_VALUE + body.count(b"{") * OF_AN_OBJECT


def unpacked(body, share):
    """Return the content of a gzip body. Raises HttpError."""
    pieces, size = [], 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as packed:
            while piece := packed.read(PIECE_BYTES):
                size += len(piece)
                if size > BODY_BYTES:
                    raise too_large()
                share.take(2 * len(piece))
                pieces.append(piece)
    except (OSError, EOFError, zlib.error) as wrong:
        raise HttpError(400, f"the body is no gzip: {wrong}") from None
    return b"".join(pieces)


def too_large():
    return HttpError(413, f"the request is larger than {BODY_BYTES >> 20} MiB")


# ---- requests: JSON to arrays, and back


def parse_body(body):
    """Parse the JSON object of a request. Raises HttpError with the offset of an error in bytes."""
    try:
        text = body.decode()
        # A function that is called for each number takes time: only where one may be too large.
        # That has an exponent of three digits, or so many digits that these fill a piece of 100.
        may_be_huge = re.search(r"[eE]\+?\d{3}", text) or any(
            text[at : at + 100].isdigit() for at in range(0, len(text), 100)
        )
        payload = json.loads(text, parse_float=finite_number if may_be_huge else None)
    except UnicodeDecodeError as wrong:
        raise HttpError(400, f"JSON Parse error: not UTF-8 at offset: {wrong.start}") from None
    except json.JSONDecodeError as wrong:
        offset = len(text[: wrong.pos].encode())
        raise HttpError(400, f"JSON Parse error: {wrong.msg}. at offset: {offset}") from None
    except ValueError as wrong:  # an integer with too many digits for Python
        raise HttpError(400, f"JSON Parse error: {wrong} at offset: 0") from None
    if not isinstance(payload, dict):
        raise HttpError(400, f"JSON Value: {quoted(payload)} Is not object")
    return payload


def finite_number(text):
    """Return a number of JSON. Raises HttpError if it is too large, as TensorFlow Serving does."""
    value = float(text)
    if value in (float("inf"), float("-inf")):
        problem = f"Number too big to be stored in double: {text[:40]}"
        raise HttpError(400, f"JSON Parse error: {problem}")
    return value


def quoted(value):
    """Return a value as JSON, cut off if it is long."""
    text = json.dumps(value)
    return text if len(text) <= QUOTED_BYTES else text[:QUOTED_BYTES] + "..."


def inputs_of(payload, wanted):
    """Return the arrays by input name, and the number of instances (None: column format).

    `wanted` has a TensorSpec for each input name. Raises HttpError.
    """
    if "instances" in payload and "inputs" in payload:
        raise HttpError(400, "Both 'instances' and 'inputs' are given: one of them is to be")
    if "inputs" in payload:
        given = payload["inputs"]
        if not isinstance(given, dict) or is_b64(given):
            given = {only(wanted): given}
        check_names(given, wanted, "inputs")
        return {name: to_array(name, given[name], spec) for name, spec in wanted.items()}, None
    if "instances" not in payload:
        raise HttpError(400, "Missing 'inputs' or 'instances' key")
    rows = payload["instances"]
    if not isinstance(rows, list):
        raise HttpError(400, f"'instances' is to be a list: {quoted(rows)}")
    if not rows:
        raise HttpError(400, "'instances' is empty")
    if isinstance(rows[0], dict) and not is_b64(rows[0]):
        for number, row in enumerate(rows):
            if not isinstance(row, dict):
                raise HttpError(400, f"instance {number} is no object, and the first is one")
            check_names(row, wanted, f"instance {number}")
        columns = {name: [row[name] for row in rows] for name in wanted}
    else:
        columns = {only(wanted): rows}
    arrays = {name: to_array(name, columns[name], spec) for name, spec in wanted.items()}
    return arrays, len(rows)


def is_b64(value):
    return isinstance(value, dict) and set(value) == {"b64"}


def only(wanted):
    """Return the name of the only input. Raises HttpError if there are several."""
    if len(wanted) != 1:
        raise HttpError(400, f"the inputs have to be named, there are {', '.join(sorted(wanted))}")
    return next(iter(wanted))


def check_names(given, wanted, where):
    """Raise HttpError unless the names are exactly those of the signature."""
    if set(given) != set(wanted):
        have, want = ", ".join(sorted(given)), ", ".join(sorted(wanted))
        raise HttpError(400, f"{where}: has {quoted(have)}, and the signature {want}")


def to_array(name, value, spec):
    """Return the value of an input as an array. Raises HttpError if type or shape do not fit."""
    import numpy as np

    dtype = spec.dtype
    if dtype.name == "string":
        array = np.array(decoded(name, value), dtype=object)
    else:
        try:
            array = np.array(value)
        except (ValueError, OverflowError):
            raise HttpError(400, f"input {name}: its lists are not all of one length") from None
        # An integer is valid for a float input; 1.0 and true are not valid for an integer input.
        kinds = "iuf" if dtype.is_floating else "b" if dtype.is_bool else "iu"
        if array.size and array.dtype.kind not in kinds:
            raise HttpError(400, f"input {name}: {quoted(value)} is not of type {dtype.name}")
        in_range = not (dtype.is_integer and array.size) or (
            dtype.min <= array.min() <= array.max() <= dtype.max
        )
        if not in_range:
            raise HttpError(400, f"input {name}: a number is out of the range of {dtype.name}")
        given, array = array, array.astype(dtype.as_numpy_dtype)
        if dtype.is_floating and (np.isinf(array) & np.isfinite(given)).any():
            raise HttpError(400, f"input {name}: a number is out of the range of {dtype.name}")
    if not spec.shape.is_compatible_with(array.shape):
        want = [-1 if size is None else size for size in spec.shape.as_list()]
        raise HttpError(400, f"input {name}: its shape is {list(array.shape)}, expected {want}")
    return array


def decoded(name, value):
    """Return strings as bytes, in the same lists. {"b64": TEXT} is decoded. Raises HttpError."""
    if isinstance(value, list):
        return [decoded(name, one) for one in value]
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise HttpError(400, f"input {name}: {quoted(value)} is no Unicode text") from None
    if is_b64(value):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (ValueError, TypeError):
            raise HttpError(400, f"input {name}: {quoted(value)} is no base64") from None
    raise HttpError(400, f"input {name}: {quoted(value)} is not of type string")


def answer_of(outputs, instances, share):
    """Return the answer: rows if the request had rows, else columns. Raises HttpError."""
    listed = {}
    for name, tensor in outputs.items():
        array = as_array(tensor)
        rows = instances or 0
        texts = sum(map(len, array.flat)) if array.dtype.kind == "O" else 0
        share.take(array.size * OF_A_VALUE + rows * OF_AN_OBJECT + texts * OF_A_BYTE)
        if instances is not None and (not array.ndim or array.shape[0] != instances):
            raise HttpError(400, f"output {name} has no row for each instance: ask with 'inputs'")
        values = array.tolist()
        listed[name] = encoded(values, name) if array.dtype.kind == "O" else values
    if instances is None:
        return {"outputs": listed if len(listed) > 1 else next(iter(listed.values()))}
    if len(listed) == 1:
        return {"predictions": next(iter(listed.values()))}
    return {"predictions": [dict(zip(listed, row)) for row in zip(*listed.values())]}


def as_array(tensor):
    """Return a tensor as a numpy array."""
    import numpy as np

    array = np.asarray(tensor.numpy(), dtype=object if tensor.dtype.name == "string" else None)
    # bfloat16 has kind V in numpy, and Python has no such number.
    return array.astype("float32") if array.dtype.kind == "V" else array


def encoded(value, name):
    """Return bytes as JSON text, in base64 if the output's name ends with _bytes (the contract)."""
    if isinstance(value, list):
        return [encoded(one, name) for one in value]
    if name.endswith("_bytes"):
        return {"b64": base64.b64encode(value).decode()}
    return value.decode(errors="replace")


# ---- the model and its versions


class LoadedModel:
    """One loaded version. Its constructor raises what TensorFlow raises."""

    def __init__(self, path, version):
        import tensorflow as tf
        from google.protobuf.json_format import MessageToDict
        from tensorflow.python.saved_model.loader_impl import parse_saved_model

        self._tf, self.version = tf, version
        self._loaded = tf.saved_model.load(str(path), tags=["serve"])
        self._signatures = dict(self._loaded.signatures)
        graph = parse_saved_model(str(path)).meta_graphs[0]
        self.signatures = {
            name: MessageToDict(found, preserving_proto_field_name=True)
            for name, found in graph.signature_def.items()
        }

    def predict(self, payload, share):
        """Return the answer to a request, which has this Share of the memory. Raises HttpError."""
        name = payload.get("signature_name", "") or DEFAULT
        signature = self._signatures.get(name) if isinstance(name, str) else None
        if signature is None:
            raise HttpError(
                400, f"Serving signature name: {quoted(name)} not found in signature def"
            )
        wanted = signature.structured_input_signature[1]
        arrays, instances = inputs_of(payload, wanted)
        constant = self._tf.constant
        try:
            tensors = {key: constant(array, wanted[key].dtype) for key, array in arrays.items()}
        except (TypeError, ValueError) as wrong:
            raise HttpError(400, str(wrong)) from None
        try:
            return answer_of(signature(**tensors), instances, share)
        except self._tf.errors.InvalidArgumentError as wrong:
            raise HttpError(400, wrong.message) from None
        except self._tf.errors.ResourceExhaustedError as full:
            raise HttpError(429, full.message) from None
        except self._tf.errors.OpError as failed:
            raise HttpError(500, failed.message) from None


class Versions:
    """Versions of a model in a folder; one is served. `states` has the state and error of each."""

    def __init__(self, folder):
        self._folder = folder
        self._stamps, self._failed = {}, {}
        self.states = {}
        self.current = None

    def poll(self):
        """Load the highest version unless it is the one that is served.

        As in TensorFlow Serving, removing the served version is the way back to the one before it.
        """
        found = self._found()
        for version in sorted(found, reverse=True):
            if self.current and self.current.version == version:
                break
            path = found[version]
            # A version that is still being copied changes between two polls; if loaded early, it
            # could have half of a vocabulary. A version that failed to load is tried again when its
            # files have changed. At the start nothing is served, so there is no wait.
            stamp, before = stamp_of(path), self._stamps.get(version)
            self._stamps[version] = stamp
            if (self.current and stamp != before) or self._failed.get(version) == stamp:
                continue
            self.states[version] = ("LOADING", "")
            try:
                loaded = LoadedModel(path, version)
            except Exception as error:  # TensorFlow raises errors of many types
                self._failed[version] = stamp
                self.states[version] = ("END", f"{type(error).__name__}: {error}".strip()[:2000])
                print(f"version {version} did not load: {self.states[version][1]}", flush=True)
                continue
            if self.current:
                self.states[self.current.version] = ("END", "")
            self.current = loaded
            # TensorFlow and a model are a million Python objects. The lists of a few requests make
            # Python search all of these for cycles, and no request is answered for 150 ms. freeze()
            # excludes them. A replaced model is full of cycles, so they are collected before.
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self.states[version] = ("AVAILABLE", "")
            print(f"version {version} is served", flush=True)
            break

    def _found(self):
        if has_model(self._folder):
            return {1: self._folder}
        try:
            names = [path.name for path in self._folder.iterdir()]
        except OSError:
            names = []
        numbers = [name for name in names if name.isascii() and name.isdigit()]
        paths = {int(name): self._folder / name for name in numbers}
        return {n: path for n, path in paths.items() if has_model(path)}

    def no_model(self):
        """Return why no model is served, for the log's last line."""
        failed = [f"version {version}: {why}" for version, (_, why) in self.states.items() if why]
        if failed:
            return "the model does not load: " + failed[0].partition("\n")[0]
        try:
            next(self._folder.iterdir(), None)
        except (FileNotFoundError, NotADirectoryError):
            return (
                f"there is no folder {self._folder} on this node; a folder of your own machine is "
                f"a relative path, or file://{self._folder}"
            )
        except OSError as error:
            return f"{self._folder} cannot be read: {error.strerror}"
        return (
            f"there is no SavedModel in {self._folder}: no saved_model.pb, and none in a folder "
            "1, 2, ...; model.save(FOLDER, save_format='tf') writes one"
        )

    def of(self, version):
        """Return the model of a version; None: the one that is served. Raises HttpError."""
        if self.current is None or version not in (None, self.current.version):
            raise HttpError(404, "")
        return self.current


def has_model(folder):
    try:
        return (folder / "saved_model.pb").exists()
    except OSError:  # the folder is not readable
        return False


def stamp_of(path):
    """Return the paths, sizes and times of all files below a folder."""
    stamps = []
    try:
        for one in path.rglob("*"):
            status = one.lstat()
            stamps.append((str(one), status.st_size, status.st_mtime_ns))
    except OSError:  # files are removed meanwhile
        pass
    return sorted(stamps)


# ---- HTTP


def application(name, versions, memory):
    """Return the ASGI application. `memory` is a Memory."""
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response

    def as_json(content, status=200):
        return Response(json.dumps(content), status, media_type="application/json")

    async def read(request, share):
        announced = request.headers.get("content-length", "0")
        chunks, size = [], 0
        if announced.isdigit():
            if int(announced) > BODY_BYTES:
                raise too_large()
            share.take(2 * int(announced))  # the chunks, and the body
        async for chunk in request.stream():
            size += len(chunk)
            if size > BODY_BYTES:
                raise too_large()
            share.reach(2 * size)
            chunks.append(chunk)
        return b"".join(chunks)

    async def serve(request, shares):
        try:
            return await answer(request, shares)
        except HttpError as refused:
            return as_json({"error": str(refused)}, refused.status)
        except ClientDisconnect:
            return Response(status_code=400)
        except MemoryError:
            return as_json({"error": "no memory is left for this request: try again later"}, 429)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return as_json({"error": f"{type(error).__name__}: {error}"}, 500)

    async def answer(request, shares):
        model, version, verb = parse_path(request.method, request.url.path)
        kind = "Latest" if version is None else "Specific"
        spec = f"{kind}({model})" if version is None else f"{kind}({model}, {version})"
        if model != name:
            if verb == "status":
                raise HttpError(404, f"Could not find any versions of model {model}")
            raise HttpError(404, f"Servable not found for request: {spec}")
        if verb == "status":
            return as_json(status_of(versions, version, model))
        try:
            found = versions.of(version)
        except HttpError:
            raise HttpError(404, f"Servable not found for request: {spec}") from None
        if verb == "metadata":
            spec = {"name": name, "signature_name": "", "version": str(found.version)}
            signatures = {"signature_def": {"signature_def": found.signatures}}
            return as_json({"model_spec": spec, "metadata": signatures})
        share = memory.begin()
        shares.append(share)
        body = await read(request, share)

        def work():
            packed = request.headers.get("content-encoding", "").lower() == "gzip"
            content = unpacked(body, share) if packed else body
            share.reach(share.size * packed + memory_of(content))
            try:
                return json.dumps(found.predict(parse_body(content), share)).encode()
            except RecursionError:
                raise HttpError(400, "JSON Parse error: nested too deeply at offset: 0") from None

        return Response(await run_in_threadpool(work), media_type="application/json")

    # No router: parse_path reports all errors in a path, in TensorFlow Serving's words.
    async def call(scope, receive, send):
        if scope["type"] == "http":
            shares = []
            try:
                response = await serve(Request(scope, receive), shares)
                await response(scope, receive, send)
            finally:
                for share in shares:
                    share.end()

    return call


def parse_path(method, path):
    """Return model, version (None: the one that is served), and predict, status or metadata."""
    malformed = HttpError(400, f"Malformed request: {method} {path}")
    parts = path.split("/")
    if parts[:3] != ["", "v1", "models"] or len(parts) < 4:
        raise malformed
    parts, verb = parts[3:], "status"
    if parts[-1] == "metadata" and len(parts) in (2, 4):
        verb = parts.pop()
    elif ":" in parts[-1]:
        parts[-1], _, verb = parts[-1].rpartition(":")
        if verb in ("classify", "regress"):
            raise HttpError(400, f"{verb} is not served here: ask with predict")
        if verb != "predict":
            raise malformed
    if method != ("POST" if verb == "predict" else "GET"):
        raise malformed
    if len(parts) == 1:
        return parts[0], None, verb
    if len(parts) != 3 or parts[1] != "versions" or not re.fullmatch("[0-9]{1,19}", parts[2]):
        raise malformed
    return parts[0], int(parts[2]), verb


def status_of(versions, version, model):
    """Return the answer about a model's status: of one version, or of all if it is None."""
    states = dict(versions.states)
    if version is not None:
        if version not in states:
            raise HttpError(404, f"Could not find version {version} of model {model}")
        states = {version: states[version]}
    return {
        "model_version_status": [
            {
                "version": str(number),
                "state": state,
                "status": {"error_code": "UNKNOWN" if why else "OK", "error_message": why},
            }
            for number, (state, why) in sorted(states.items(), reverse=True)
        ]
    }


# ---- the program


def refuse(message):
    """Print why no model is served, and exit with the status for this."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(NEVER_SERVED)


def print_ready(server, version):
    """Print which server answers, and with which version of the model."""
    print("ready: " + json.dumps({"server": server, "version": version}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--libraries", required=True)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--public", action="store_true")
    args = parser.parse_args()
    # TensorFlow Serving cannot listen on the loopback address only.
    if args.public and shutil.which(TENSORFLOW_SERVING):
        with tempfile.TemporaryDirectory() as links:
            sys.exit(serve_with_the_real_one(args, Path(links)))
    serve_here(args)


def serve_here(args):
    """Serve the model in this process until it is stopped. Exits if no model loads."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Otherwise TensorFlow takes all of a GPU's memory.
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    sys.path.insert(0, args.libraries)
    listener = listen("" if args.public else "127.0.0.1", args.port)
    try:
        import tensorflow  # noqa: F401
        import uvicorn
    except ImportError as error:
        refuse(f"{error} in {sys.executable}: clusterctl env install NAME")
    versions = Versions(args.folder)
    versions.poll()
    if versions.current is None:
        refuse(versions.no_model())

    def watch():
        while True:
            time.sleep(POLL_S)
            versions.poll()

    threading.Thread(target=watch, daemon=True).start()
    config = uvicorn.Config(
        application(args.model, versions, Memory(available_bytes() // 2)),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=GRACE_S,
    )
    listener.listen(1024)
    print_ready("clusterctl", versions.current.version)
    uvicorn.Server(config).run(sockets=[listener])


def listen(address, port):
    """Return a socket bound to the port. Exits if the port is taken."""
    # asyncio turns Nagle's algorithm off only for sockets that name their protocol. With it, the
    # body of an answer waits for the delayed ACK of its head: 40 ms per request.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except OSError as error:
        refuse(f"port {port} of this node cannot be had ({error.strerror}): --port")
    return listener


def serve_with_the_real_one(args, links):
    """Run TensorFlow Serving until it ends or this program is stopped. Return its exit status.
    `links` is an empty folder, for one that it can read as a folder of versions."""
    listen("", args.port).close()
    folder = args.folder
    if (folder / "saved_model.pb").exists():
        folder = links
        (folder / "1").symlink_to(args.folder.resolve())
    elif Versions(folder)._found() == {}:
        refuse(Versions(folder).no_model())
    words = [
        TENSORFLOW_SERVING,
        "--port=0",
        f"--rest_api_port={args.port}",
        f"--model_name={args.model}",
    ]
    server = subprocess.Popen([*words, f"--model_base_path={folder.resolve()}"])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: server.terminate())
    url = f"http://127.0.0.1:{args.port}/v1/models/{args.model}"
    deadline = time.monotonic() + LOAD_WITHIN_S
    # The server is on this machine: ignore the proxies that the environment may name.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while server.poll() is None:
        try:
            with opener.open(url, timeout=5) as answer:
                [newest, *_] = json.load(answer)["model_version_status"]
        except (OSError, ValueError):
            newest = {"state": "START"}
        if newest["state"] == "AVAILABLE":
            print_ready(TENSORFLOW_SERVING, int(newest["version"]))
            # With a timeout Python polls. An endless wait would handle a signal that comes just
            # before it only when it is over.
            return server.wait(timeout=math.inf)
        why = newest.get("status", {}).get("error_message", "")
        if newest["state"] == "END" or time.monotonic() > deadline:
            server.terminate()
            server.wait()
            refuse(f"the model does not load: {why or 'it takes too long'}")
        time.sleep(0.2)
    return refuse(f"{TENSORFLOW_SERVING} ended with {server.returncode}")


if __name__ == "__main__":
    main()
