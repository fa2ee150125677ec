"""Files of a web server that misbehaves: whole and right at the end, or named as bad."""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import subprocess

import pytest

from clusterctl.node.relay import httpget
from clusterctl.node.relay.httpget import SourceError
from clusterctl.node.relay.layout import Layout
from clusterctl.node.relay.urls import UrlOrigin, is_single, list_source
from tests.node.relay.webserver import (
    SLOW_DOWN,
    another_part,
    half,
    half_then_reset,
    hang_up,
    junk,
    reset,
    serving,
    status,
    whole_file,
)

BODY = bytes(range(256)) * 1000


@pytest.fixture
def web(monkeypatch):
    monkeypatch.setattr(httpget, "pause_s", lambda attempt: 0.0)
    monkeypatch.setattr("clusterctl.node.relay.urls.pause_s", lambda attempt: 0.0)
    # Were a proxy asked, nothing would come.
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving() as server:
        server.files["/file"] = BODY
        yield server


def config(*urls, **more):
    sources = [{"kind": "http", "url": url} for url in urls]
    return {"sources": sources, "timeout_s": 5, "connections": 4, **more}


def opened(web, block_bytes=100_000, paths=("/file",)):
    settings = config(*(web.url + path for path in paths))
    entries, warnings = list_source(settings)
    assert warnings == []
    layout = Layout(entries, block_bytes)
    web.requests.clear()
    return UrlOrigin(settings, entries, layout), layout


def everything(origin, layout):
    parts = [origin.read(block) for block in range(layout.blocks)]
    return b"".join(content for content, _ in parts), sorted({n for _, bad in parts for n in bad})


def test_a_file_by_its_blocks_over_one_connection(web):
    origin, layout = opened(web)
    before = web.connections
    assert everything(origin, layout) == (BODY, [])
    assert [headers["range"] for _, _, headers in web.requests] == [
        "bytes=0-99999",
        "bytes=100000-199999",
        "bytes=200000-255999",
    ]
    assert web.connections == before + 1


@pytest.mark.parametrize(
    "misdeed",
    [
        status(503),
        status(503, SLOW_DOWN),
        status(500),
        status(429),
        hang_up,
        reset,
        half,
        half_then_reset,
        junk,
        another_part,
    ],
)
@pytest.mark.parametrize("times", [1, 3])
def test_passing_trouble_is_outlasted(web, misdeed, times):
    origin, layout = opened(web)
    web.misdeeds.extend([misdeed] * times)
    assert everything(origin, layout) == (BODY, [])


def test_what_has_come_is_not_asked_for_again(web):
    origin, layout = opened(web, block_bytes=len(BODY))
    web.misdeeds.extend([half] * 5)
    assert everything(origin, layout) == (BODY, [])
    begins = [int(headers["range"][6:].split("-")[0]) for _, _, headers in web.requests]
    assert begins == sorted(set(begins))


def test_trouble_that_does_not_pass_is_an_error(web):
    origin, _ = opened(web)
    web.misdeeds.extend([status(503)] * 100)
    with pytest.raises(SourceError, match="gave up after 8 attempts: the server says 503") as told:
        origin.read(0)
    assert told.value.kind == "network"


def test_silence_is_given_up_sooner(web):
    wire = httpget.Wire(connect_timeout_s=0.1)
    with contextlib.ExitStack() as open_:
        full = open_.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        place = httpget.Place("http", *full.getsockname())
        # The queue takes a few; whoever comes later hears nothing, as where no route leads.
        for _ in range(4):
            one = open_.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        why = "gave up after 3 attempts: no connection to 127.0.0.1:.*: timed out"
        with pytest.raises(SourceError, match=why) as told:
            httpget.persist(lambda: wire.ask(place, "GET", "/", {}))
    assert "clusterctl network s3" in told.value.hint


def test_a_server_that_is_gone_is_an_error(web):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(SourceError, match="no connection to 127.0.0.1"):
        list_source(config(f"http://127.0.0.1:{port}/file"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda web: web.files.pop("/file"), "gone"),
        (lambda web: web.etags.update({"/file": '"2"'}), "changed"),
        (lambda web: web.files.update({"/file": BODY[:10]}), "changed"),
        (lambda web: web.files.update({"/file": BODY + b"more"}), "changed"),
        (lambda web: web.misdeeds.append(status(403)), "denied"),
    ],
)
def test_a_file_that_is_not_the_listed_one_is_bad_and_the_others_are_right(web, change, why):
    web.files["/other"] = b"other"
    origin, layout = opened(web, block_bytes=len(BODY) + 5, paths=("/file", "/other"))
    change(web)
    content, bad = origin.read(0)
    assert bad == [0]
    assert content == bytes(len(BODY)) + b"other"
    assert origin.why[0].kind == why


def test_it_is_noticed_where_the_server_knows_no_if_match(web):
    origin, _ = opened(web)
    changed = {"ETag": '"2"', "Content-Range": f"bytes 0-99999/{len(BODY)}"}
    web.misdeeds.append(lambda handler: handler.say(206, bytes(100_000), changed))
    assert origin.read(0)[1] == [0]
    assert origin.why[0].kind == "changed"


def test_it_is_noticed_by_its_time_where_there_is_no_version(web):
    web.etags["/file"] = 'W/"1"'
    origin, _ = opened(web)
    later = {"Last-Modified": "Sat, 21 Nov 2026 19:34:26 GMT"}
    later["Content-Range"] = f"bytes 0-99999/{len(BODY)}"
    web.misdeeds.append(lambda handler: handler.say(206, bytes(100_000), later))
    assert origin.read(0)[1] == [0]
    assert origin.why[0].kind == "changed"


def test_redirects_are_followed_for_each_part(web):
    web.files["/moved/here"] = BODY
    origin, layout = opened(web)
    elsewhere = status(302, Location="/moved/here")
    web.misdeeds.extend([elsewhere])
    content, bad = origin.read(1)
    assert (bytes(content), bad) == (BODY[100_000:200_000], [])
    web.misdeeds.extend([elsewhere] * 7)
    with pytest.raises(SourceError, match="again and again"):
        origin.read(0)


def test_redirects_lead_to_no_other_kind_of_place(web):
    web.misdeeds.append(status(302, Location="file:///etc/passwd"))
    with pytest.raises(SourceError, match="not a URL"):
        list_source(config(web.url + "/file"))


@pytest.mark.parametrize(
    ("path", "misdeeds", "message"),
    [
        ("/file", [whole_file, whole_file], "does not send parts of"),
        ("/none", [], "is not there"),
        ("/", [], "--files-from|is a folder"),
        ("/file", [status(403)], "refuses"),
        ("/file", [status(418)], "answers 418"),
        ("/file", [status(206, b"x", Content_Range="bytes 0-0/*")], "how large"),
        ("/file", [status(206, b"x", Content_Range="bytes 0-0/-7")], "how large"),
    ],
)
def test_what_cannot_be_copied_is_refused(web, path, misdeeds, message):
    web.misdeeds.extend(misdeeds)
    with pytest.raises(SourceError, match=message):
        list_source(config(web.url + path))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/file", "not a URL"),
        ("http:///file", "not a URL"),
        ("http://host:port/file", "not a URL"),
        ("http://me:secret@127.0.0.1/file", "a password in the URL of 127.0.0.1$"),
    ],
)
def test_what_is_no_url_is_refused_and_no_password_is_shown(url, message):
    with pytest.raises(SourceError, match=message):
        list_source(config(url))


def test_the_file_is_called_as_in_the_url_and_is_as_old_as_on_the_server(web):
    web.files["/a%20b%2Fc/d%C3%BC?v=1"] = b"x"
    settings = config(web.url + "/a%20b%2Fc/d%C3%BC?v=1")
    [entry], _ = list_source(settings)
    assert entry.path == "dü".encode()
    assert entry.mtime_ns == 1795289665 * 10**9
    assert is_single(settings, [entry])


def test_an_empty_file(web):
    web.files["/empty"] = b""
    [entry], _ = list_source(config(web.url + "/empty"))
    assert entry.size == 0


def test_files_by_name_below_a_url(web):
    wanted = [b"a b", "ü/x".encode(), b"100%"]
    web.files.update({"/set/a%20b": b"1", "/set/%C3%BC/x": b"22", "/set/100%25": b"333"})
    names = [base64.b64encode(name).decode() for name in wanted]
    settings = config(web.url + "/set", names_b64=names)
    entries, warnings = list_source(settings)
    assert warnings == []
    assert {entry.path: entry.size for entry in entries if entry.kind == "f"} == {
        b"a b": 1,
        "ü/x".encode(): 2,
        b"100%": 3,
    }
    layout = Layout(entries, 100)
    assert everything(UrlOrigin(settings, entries, layout), layout) == (b"333" + b"1" + b"22", [])
    assert not is_single(settings, entries)


def test_many_small_files_in_one_block(web):
    paths = [f"/f{n:03}" for n in range(200)]
    web.files.update({path: path.encode() for path in paths})
    origin, layout = opened(web, block_bytes=1 << 20, paths=paths)
    web.misdeeds.extend([reset, status(503), half, hang_up] * 3)
    assert everything(origin, layout) == ("".join(paths).encode(), [])


def test_only_a_certificate_that_is_trusted_will_do(web, tmp_path, monkeypatch):
    pem = tmp_path / "server.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(tmp_path / "key"), "-out", str(pem)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, tmp_path / "key")
    with serving(context) as server:
        server.files["/file"] = BODY
        url = server.url.replace("127.0.0.1", "localhost")
        with pytest.raises(SourceError, match="the certificate of localhost is not trusted"):
            list_source(config(f"{url}/file"))
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        settings = config(f"{url}/file")
        entries, _ = list_source(settings)
        layout = Layout(entries, 100_000)
        assert everything(UrlOrigin(settings, entries, layout), layout) == (BODY, [])
