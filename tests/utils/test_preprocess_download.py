"""The download from a real server that breaks connections, ignores ranges or changes its file."""

from __future__ import annotations

import base64
import functools
import hashlib

import imagenet_download
import pytest
from imagenet_download import DownloadError, Login, Remote

from tests.node.relay.webserver import cut, serving, status, whole_file

from .conftest import SHARDS

CONTENT = bytes(range(256)) * 4000
BROKEN = [cut(1000), *[cut(0)] * imagenet_download.ATTEMPTS]


fetch = functools.partial(imagenet_download.fetch, pause_s=0.0)


@pytest.fixture
def server():
    with serving() as made:
        made.files["/x.tar"] = CONTENT
        yield made


def remote(server, content=CONTENT, **changes):
    digest = hashlib.md5(content).hexdigest()
    known = {"size": len(content), "md5": digest, **changes}
    return Remote(f"{server.url}/x.tar", "x.tar", **known)


def asked(server, header="range"):
    return [headers.get(header) for _, _, headers in server.requests]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_comes_whole_over_connections_that_break_off(server, tmp_path):
    server.misdeeds.extend(map(cut, [1, 100_000, 0, 300_000, 0]))
    path = fetch(remote(server), tmp_path)
    assert path.read_bytes() == CONTENT
    assert names(tmp_path) == ["x.tar"]
    begins = [1, 100_001, 100_001, 400_001, 400_001]
    assert asked(server) == [None, *(f"bytes={begin}-" for begin in begins)]


def test_a_later_run_goes_on_where_an_earlier_one_gave_up(server, tmp_path):
    server.misdeeds.extend(BROKEN)
    with pytest.raises(DownloadError, match="broke off; run it again to go on from here"):
        fetch(remote(server), tmp_path)
    assert "x.tar" not in names(tmp_path)
    server.misdeeds.clear()
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert asked(server)[-1] == "bytes=1000-"


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.misdeeds.extend([cut(500_000, whole_file), cut(700_000, whole_file), whole_file])
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT


def test_a_file_that_changed_meanwhile_is_not_joined_to_its_old_half(server, tmp_path):
    server.misdeeds.extend(BROKEN)
    with pytest.raises(DownloadError):
        fetch(remote(server), tmp_path)
    server.misdeeds.clear()
    server.files["/x.tar"], server.etags["/x.tar"] = CONTENT[::-1], '"two"'
    path = fetch(remote(server, CONTENT[::-1]), tmp_path)
    assert path.read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("rest", [CONTENT, CONTENT + b"too much"])
def test_what_is_whole_already_or_too_long_is_settled(server, tmp_path, rest):
    (tmp_path / ".x.tar.partial").write_bytes(rest)
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT


def test_errors_that_pass_are_waited_for(server, tmp_path):
    server.misdeeds.extend(map(status, [503, 429, 500, 408]))
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT


def test_without_lengths_the_size_and_md5_still_tell(server, tmp_path):
    def without(handler):
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(CONTENT[:5000])
        handler.end_now()

    server.misdeeds.append(without)
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
    ("code", "said"),
    [(404, "404 Not Found"), (401, "wants a login"), (403, "--imagenet_access_key")],
)
def test_a_refusal_is_not_tried_again(server, tmp_path, code, said):
    server.misdeeds.append(status(code))
    with pytest.raises(DownloadError, match=said):
        fetch(remote(server), tmp_path)
    assert len(server.requests) == 1


def test_a_server_that_is_not_there_is_given_up(server, tmp_path):
    lost = Remote("http://127.0.0.1:1/x.tar", "x.tar")
    with pytest.raises(DownloadError, match="refused.*run it again"):
        fetch(lost, tmp_path)


def test_the_login_goes_to_the_server_and_to_no_other(server, tmp_path):
    login = Login("mü", "s:ecret")
    assert fetch(remote(server), tmp_path, login).read_bytes() == CONTENT
    sent = "Basic " + base64.b64encode("mü:s:ecret".encode()).decode()
    assert set(asked(server, "authorization")) == {sent}
    assert "ecret" not in repr(login)
    elsewhere = server.url.replace("127.0.0.1", "localhost") + "/x.tar"
    server.misdeeds.append(status(302, Location=elsewhere))
    (tmp_path / "x.tar").unlink()
    assert fetch(remote(server), tmp_path, login).read_bytes() == CONTENT
    assert asked(server, "authorization")[-2:] == [sent, None]


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
    argv = [
        *("--local_scratch_dir", tmp_path / "scratch ü"),
        *("--imagenet_url", server.url),
        *("--labels_url", f"{server.url}/synset_labels.txt"),
        *SHARDS,
    ]
    key = ["--imagenet_username", "me", "--imagenet_access_key", "secret"]
    refused = tool("preprocess_imagenet.py", *argv, *key[:2], "--nocheck_download")
    assert refused.stderr == ("error: --imagenet_username and --imagenet_access_key go together\n")
    refused = tool("preprocess_imagenet.py", *argv, *key)
    assert "has" in refused.stderr  # another size than expected, or the disk is too small
    assert refused.returncode == 1
    for partial in tmp_path.rglob(".*.partial*"):
        partial.unlink()
    server.misdeeds.extend(map(cut, [1000, 20_000, 10]))
    done = tool("preprocess_imagenet.py", *argv, *key, "--nocheck_download", "--allow_corrupt", 1)
    assert done.returncode == 0, done.stderr
    for path in made[0].glob("*-of-*"):
        other = tmp_path / "scratch ü" / "tf-imagenet" / path.name
        assert other.read_bytes() == path.read_bytes()
