"""CIFAR-10's archive, its download, and its TFRecords: valid, broken and malicious."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from pathlib import Path

import pytest

from .conftest import EXAMPLES

pytestmark = pytest.mark.train

CIFAR10 = EXAMPLES / "cifar10"
GENERATE = CIFAR10 / "generate_cifar10_tfrecords.py"
EACH = [0, 9, 4]
READ = str({"train": 4 * EACH, "validation": EACH, "eval": EACH})
IN_ARCHIVE = "DIR/cifar.tar.gz: test_batch"
ARCHIVES = {
    "whole": READ,
    "unpacked": READ,
    "tar without gz": READ,
    "another folder": READ,
    "by Python 3": READ,
    "cut": "DIR/cifar.tar.gz cannot be read: ",
    "empty": "DIR/cifar.tar.gz cannot be read: ",
    "a page": "DIR/cifar.tar.gz cannot be read: ",
    "an order": f"{IN_ARCHIVE} is no batch of CIFAR-10: UnpicklingError('it asks for posix.mkdir')",
    "no pickle": f"{IN_ARCHIVE} is no batch of CIFAR-10: ",
    "cut pickle": f"{IN_ARCHIVE} is no batch of CIFAR-10: ",
    "a list": f"{IN_ARCHIVE} is no batch of CIFAR-10: ",
    "text as keys": f"{IN_ARCHIVE} is no batch of CIFAR-10: KeyError(b'data')",
    "floats": f"{IN_ARCHIVE}: its images are not bytes (n, 3072)",
    "other sizes": f"{IN_ARCHIVE}: its images are not bytes (n, 3072)",
    "one label": f"{IN_ARCHIVE}: 3 images, and labels int64 (1,)",
    "uneven labels": f"{IN_ARCHIVE} is no batch of CIFAR-10: ValueError(",
    "label 10": f"{IN_ARCHIVE}: labels from 1 to 10, not 0 to 9",
    "no images": f"{IN_ARCHIVE}: 0 images, and labels float64 (0,)",
    "five missing": "DIR has no data_batch_2, data_batch_3, data_batch_4, data_batch_5, test_batch",
}
RECORDS = {
    "whole": "uint8 (3, 32, 32, 3) [0, 9, 4]",
    "empty": "DIR/eval.tfrecords is empty",
    "cut": "DIR/eval.tfrecords is cut short",
    "cut header": "DIR/eval.tfrecords is cut short",
    "a flipped bit": "DIR/eval.tfrecords: corrupted record at ",
    "a short image": "DIR/eval.tfrecords: Input to reshape is a tensor with 5 values, but ",
    "no example": "DIR/eval.tfrecords: Could not parse example input, value: 'no example'",
    "text": "DIR/eval.tfrecords is cut short",
}


def test_files_are_read_or_named_with_what_is_wrong(run_ranks):
    result = run_ranks(1, Path(__file__).parent / "cifar10_cases.py", CIFAR10)
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout.partition("FACTS ")[2])
    for kind, outcomes in (("archives", ARCHIVES), ("records", RECORDS)):
        assert facts[kind].keys() == outcomes.keys()
        for case, expected in outcomes.items():
            assert facts[kind][case].startswith(expected), (case, facts[kind][case])
            assert "\n" not in facts[kind][case], case
    matrix, text = facts["confusion"]
    assert matrix == [[2, 1, 0], [0, 0, 0], [1, 0, 2]]
    assert text == [
        "     images  right  a  bb  cat",
        "  a       3  66.7%  2   1    0",
        " bb       0   0.0%  0   0    0",
        "cat       3  66.7%  1   0    2",
    ]


@pytest.fixture
def server(tmp_path):
    """Run a web server for the folder `web`. Yield its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path / "web"))

        def do_GET(self):
            if self.path == "/cut":
                self.send_response(200)
                self.send_header("Content-Length", "1000000")
                self.end_headers()
                self.wfile.write(b"x" * 1000)
                return
            super().do_GET()

        def log_message(self, *args):
            pass

    (tmp_path / "web").mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/nothing", "(HTTP Error 404: File not found): put cifar-10-python.tar.gz into data"),
        ("/cut", "/cut: 1000 bytes"),
        ("/other", "/other: 5 bytes with MD5 5d41402abc4b2a76b9719d911017c592, not c58f3010"),
    ],
)
def test_a_failed_download_leaves_nothing(run_ranks, server, tmp_path, path, error):
    (tmp_path / "web" / "other").write_bytes(b"hello")
    result = run_ranks(1, GENERATE, "--data-dir", "data", "--url", server + path)
    assert result.returncode == 1
    assert error in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert list((tmp_path / "data").iterdir()) == []


def test_a_download_is_kept_and_taken_the_next_time(run_ranks, server, tmp_path):
    """The archive's error is found after the download, which is not repeated."""
    (tmp_path / "web" / "file").write_bytes(b"no archive")
    md5 = hashlib.md5(b"no archive").hexdigest()
    argv = [GENERATE, "--data-dir", "da ta", "--url", f"{server}/file", "--md5", md5]
    first, second = run_ranks(1, *argv), run_ranks(1, *argv)
    assert first.stdout == f"Downloading {server}/file\n"
    assert second.stdout == ""
    for result in (first, second):
        assert result.returncode == 1
        assert "da ta/cifar-10-python.tar.gz cannot be read: " in result.stderr
        assert "Traceback" not in result.stderr
    assert [path.name for path in (tmp_path / "da ta").iterdir()] == ["cifar-10-python.tar.gz"]
