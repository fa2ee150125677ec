"""The download against a real server: one that breaks off, forgets ranges, changes its file."""

from __future__ import annotations

import base64
import hashlib
import http.server
import threading
from dataclasses import dataclass, field

import imagenet_download
import pytest
from imagenet_download import DownloadError, Login, Remote, fetch

from .conftest import SHARDS

CONTENT = bytes(range(256)) * 4000


@dataclass
class Server:
    """What the server does, and the requests it got."""

    address: str = ""
    files: dict = field(default_factory=dict)  # path: content
    breaks: list = field(default_factory=list)  # bytes after which each next answer breaks off
    statuses: list = field(default_factory=list)  # of the next answers, instead of the file
    ranges: bool = True
    etag: str = '"one"'
    login: str = ""
    location: str = ""
    lengths: bool = True
    requests: list = field(default_factory=list)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(imagenet_download, "PAUSE_S", 0.0)
    state = Server(files={"/x.tar": CONTENT})

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self):
            state.requests.append(dict(self.headers))
            if state.statuses:
                return self.empty(state.statuses.pop(0))
            if state.location:
                return self.empty(302, Location=state.location)
            if state.login and self.headers.get("Authorization") != state.login:
                return self.empty(401, **{"WWW-Authenticate": "Basic"})
            content = state.files.get(self.path)
            if content is None:
                return self.empty(404)
            return self.send(content)

        def send(self, content):
            begin = 0
            wanted = self.headers.get("Range")
            same = self.headers.get("If-Range") in (None, state.etag)
            if wanted and state.ranges and same:
                begin = int(wanted.removeprefix("bytes=").rstrip("-"))
            if begin >= len(content):
                return self.empty(416, **{"Content-Range": f"bytes */{len(content)}"})
            self.send_response(206 if begin else 200)
            if begin:
                whole = len(content)
                self.send_header("Content-Range", f"bytes {begin}-{whole - 1}/{whole}")
            if state.lengths:
                self.send_header("Content-Length", str(len(content) - begin))
            if state.etag:
                self.send_header("ETag", state.etag)
            self.end_headers()
            limit = state.breaks.pop(0) if state.breaks else len(content)
            self.wfile.write(content[begin : begin + limit])
            return None

        def empty(self, status, **headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{served.server_port}/"
    thread = threading.Thread(target=served.serve_forever, args=(0.01,))
    thread.start()
    yield state
    served.shutdown()
    thread.join()
    served.server_close()


def remote(server, content=CONTENT, **changes):
    digest = hashlib.md5(content).hexdigest()
    known = {"size": len(content), "md5": digest, **changes}
    return Remote(server.address + "x.tar", "x.tar", **known)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_comes_whole_over_connections_that_break_off(server, tmp_path):
    server.breaks = [1, 100_000, 0, 300_000, 0]
    path = fetch(remote(server), tmp_path)
    assert path.read_bytes() == CONTENT
    assert names(tmp_path) == ["x.tar"]
    ranges = [headers.get("Range") for headers in server.requests]
    assert ranges == [
        None, "bytes=1-", "bytes=100001-", "bytes=100001-", "bytes=400001-", "bytes=400001-",
    ]  # fmt: skip


def test_a_later_run_goes_on_where_an_earlier_one_gave_up(server, tmp_path):
    server.breaks = [1000] + [0] * imagenet_download.ATTEMPTS
    with pytest.raises(DownloadError, match="broke off; run it again to go on from here"):
        fetch(remote(server), tmp_path)
    assert "x.tar" not in names(tmp_path)
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1]["Range"] == "bytes=1000-"


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.ranges = False
    server.breaks = [500_000, 700_000]
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT


def test_a_file_that_changed_meanwhile_is_not_joined_to_its_old_half(server, tmp_path):
    server.breaks = [1000] + [0] * imagenet_download.ATTEMPTS
    with pytest.raises(DownloadError):
        fetch(remote(server), tmp_path)
    server.files["/x.tar"], server.etag = CONTENT[::-1], '"two"'
    path = fetch(remote(server, CONTENT[::-1]), tmp_path)
    assert path.read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("rest", [CONTENT, CONTENT + b"too much"])
def test_what_is_whole_already_or_too_long_is_settled(server, tmp_path, rest):
    (tmp_path / ".x.tar.partial").write_bytes(rest)
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT


def test_errors_that_pass_are_waited_for(server, tmp_path):
    server.statuses = [503, 429, 500, 408]
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT


def test_without_lengths_the_size_and_md5_still_tell(server, tmp_path):
    server.lengths, server.etag, server.breaks = False, "", [5000]
    with pytest.raises(DownloadError, match=r"has 5,000 bytes, not 1,024,000"):
        fetch(remote(server), tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"md5": "0" * 32}, "came damaged .*remove .*partial and run it again"),
        ({"size": 17}, "has 1,024,000 bytes, not 17: the server has another file"),
    ],
)
def test_what_is_not_the_file_it_should_be_is_refused(server, tmp_path, changes, said):
    with pytest.raises(DownloadError, match=said):
        fetch(remote(server, **changes), tmp_path)
    assert "x.tar" not in names(tmp_path)


@pytest.mark.parametrize(
    ("status", "said"),
    [(404, "404 Not Found"), (401, "wants a login"), (403, "--imagenet_access_key")],
)
def test_a_refusal_is_not_tried_again(server, tmp_path, status, said):
    server.statuses = [status]
    with pytest.raises(DownloadError, match=said):
        fetch(remote(server), tmp_path)
    assert len(server.requests) == 1


def test_a_server_that_is_not_there_is_given_up(server, tmp_path):
    lost = Remote("http://127.0.0.1:1/x.tar", "x.tar")
    with pytest.raises(DownloadError, match="refused.*run it again"):
        fetch(lost, tmp_path)


def test_the_login_goes_to_the_server_and_to_no_other(server, tmp_path):
    login = Login("mü", "s:ecret")
    server.login = "Basic " + base64.b64encode("mü:s:ecret".encode()).decode()
    assert fetch(remote(server), tmp_path, login).read_bytes() == CONTENT
    assert "ecret" not in repr(login)
    server.location = server.address.replace("127.0.0.1", "localhost") + "x.tar"
    (tmp_path / "x.tar").unlink()
    with pytest.raises(DownloadError):  # the handler redirects for ever
        fetch(remote(server), tmp_path, login)
    first, *redirected = server.requests[1:]
    assert "Authorization" in first
    assert all("Authorization" not in headers for headers in redirected)


def test_a_login_is_not_sent_in_the_open(tmp_path):
    with pytest.raises(DownloadError, match="over https only"):
        fetch(Remote("http://image-net.org/x.tar", "x.tar"), tmp_path, Login("a", "b"))


def test_a_disk_that_is_too_small_is_told_before_the_first_byte(server, tmp_path):
    with pytest.raises(DownloadError, match=r"GB free, the download takes 1000000000 GB"):
        imagenet_download.fetch_all([remote(server, size=10**18)], tmp_path, None)
    assert server.requests == []


def test_what_is_there_in_any_form_is_not_fetched(tmp_path):
    files = imagenet_download.imagenet_files("https://image-net.org/x", "https://l/abels")
    assert [file.url for file in files[:2]] == [
        "https://image-net.org/x/ILSVRC2012_img_train.tar",
        "https://image-net.org/x/ILSVRC2012_img_val.tar",
    ]
    assert [file.size for file in files] == [147_897_477_120, 6_744_924_160, None]
    assert imagenet_download.lacking(files, tmp_path) == files
    (tmp_path / "train").mkdir()
    (tmp_path / "imagenet_2012_validation_synset_labels.txt").write_text("")
    assert imagenet_download.lacking(files, tmp_path) == [files[1]]


@pytest.mark.train
def test_the_whole_way_from_the_server_to_records(server, tool, tars, made, tmp_path):
    server.files = {f"/{path.name}": path.read_bytes() for path in tars.iterdir()}
    server.breaks = [1000, 20_000, 10]
    server.login = "Basic " + base64.b64encode(b"me:secret").decode()
    argv = [
        *("--local_scratch_dir", tmp_path / "scratch ü"),
        *("--imagenet_url", server.address),
        *("--labels_url", server.address + "synset_labels.txt"),
        *SHARDS,
    ]
    key = ["--imagenet_username", "me", "--imagenet_access_key", "secret"]
    refused = tool("preprocess_imagenet.py", *argv, *key[:2], "--nocheck_download")
    assert refused.stderr == ("error: --imagenet_username and --imagenet_access_key go together\n")
    refused = tool("preprocess_imagenet.py", *argv, *key)
    assert "has" in refused.stderr  # the real size is expected, or no disk is large enough for it
    assert refused.returncode == 1
    for partial in tmp_path.rglob(".*.partial*"):
        partial.unlink()
    server.login = ""  # the labels come from another place, which gets no login
    done = tool("preprocess_imagenet.py", *argv, *key, "--nocheck_download", "--allow_corrupt", 1)
    assert done.returncode == 0, done.stderr
    for path in made[0].glob("*-of-*"):
        other = tmp_path / "scratch ü" / "tf-imagenet" / path.name
        assert other.read_bytes() == path.read_bytes()
