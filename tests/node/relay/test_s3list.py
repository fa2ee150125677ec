"""What a bucket has: against a real S3 (moto), and answers that are cut or make no sense."""

from __future__ import annotations

import base64

import pytest

from clusterctl.node.relay import s3list
from clusterctl.node.relay.httpget import Answer, Broken, SourceError, Wire
from clusterctl.node.relay.layout import Layout
from clusterctl.node.relay.s3bucket import Bucket
from clusterctl.node.relay.s3list import find_objects, list_objects, parse_page, parse_time_ns
from clusterctl.node.relay.sigv4 import Keys
from clusterctl.node.relay.urls import UrlOrigin, is_single, list_source

OBJECTS = {
    "set/a": b"a",
    "set/b/c": b"bc",
    "set/b/d": b"bd",
    "settings": b"other",
    "set": b"one object",
    "top": b"t",
}
STRANGE = [
    "blank and + % ? # & = ' \" ; $",
    "ü/日本語",
    "control\x01\x1f",
    "<xml>&amp;</xml>",
    "~",
    "-rf",
    "a" * 255,
]


@pytest.fixture(scope="module")
def name(s3):
    return s3.bucket(OBJECTS)


@pytest.fixture
def bucket(s3, name):
    return Bucket(Wire(10), name, lambda renew: Keys("a", "b"), s3.endpoint)


def keys(listed):
    return [one.key.decode() for one in listed]


@pytest.mark.parametrize("page_size", [1, 2, 3, 1000])
def test_all_pages(bucket, page_size):
    assert keys(list_objects(bucket, b"", page_size)) == sorted(OBJECTS)
    assert keys(list_objects(bucket, b"set/", page_size)) == ["set/a", "set/b/c", "set/b/d"]


@pytest.mark.parametrize(
    ("key", "found", "warned"),
    [
        (b"", sorted(OBJECTS), False),
        (b"set/", ["set/a", "set/b/c", "set/b/d"], False),
        (b"set", ["set"], True),
        (b"set/b", ["set/b/c", "set/b/d"], False),
        (b"set/b/c", ["set/b/c"], False),
        (b"top", ["top"], False),
    ],
)
def test_what_a_place_means(bucket, key, found, warned):
    listed, warnings = find_objects(bucket, key)
    assert keys(listed) == found
    assert bool(warnings) == warned


@pytest.mark.parametrize("key", [b"se", b"set/b/c/", b"nothing", b"\xff"])
def test_what_is_not_there(bucket, key):
    with pytest.raises(SourceError, match="there is nothing at s3://"):
        find_objects(bucket, key)


def test_strange_keys_arrive_as_they_are(s3):
    place = s3.bucket({f"p/{key}": key.encode() for key in STRANGE})
    config = s3.config(f"{place}/p")
    entries, warnings = list_source(config)
    assert warnings == []
    layout = Layout(entries, 64)
    origin = UrlOrigin(config, entries, layout)
    blocks = [origin.read(block) for block in range(layout.blocks)]
    assert not any(bad for _, bad in blocks)
    files = [entry for entry in entries if entry.kind == "f"]
    assert {entry.path.decode() for entry in files} == set(STRANGE)
    content = b"".join(bytes(content) for content, _ in blocks)
    assert content == b"".join(entry.path for entry in files)


def test_keys_that_lead_out_are_left_out(s3):
    evil = ["p/../../etc/passwd", "p//etc/shadow", "p/./x", "p/a/../b", "p/..", "p/a//b"]
    config = s3.config(s3.bucket(dict.fromkeys([*evil, "p/good"], b"x")) + "/p/")
    entries, warnings = list_source(config)
    assert [entry.path for entry in entries] == [b"good"]
    assert len(warnings) == len(evil)


def test_the_asked_folders_own_marker_is_nothing_of_it(s3):
    config = s3.config(s3.bucket({"p/": b"", "p/a": b"x"}) + "/p/")
    entries, warnings = list_source(config)
    assert ([entry.path for entry in entries], warnings) == ([b"a"], [])


def test_two_buckets_into_one_folder(s3):
    first, second = s3.bucket({"train/t": b"t", "both": b"1"}), s3.bucket({"v": b"v", "both": b"2"})
    config = s3.config(f"{first}/", second)
    entries, [warning] = list_source(config)
    assert [e.path for e in entries] == [b"both", b"train", b"train/t", b"v"]
    assert "both" in warning
    layout = Layout(entries, 100)
    assert UrlOrigin(config, entries, layout).read(0) == (b"2tv", [])


@pytest.mark.parametrize(
    ("key", "single"), [("x", True), ("", False), ("folder", False), ("folder/", False)]
)
def test_one_object_is_single_and_a_folder_with_one_is_not(s3, key, single):
    config = s3.config(s3.bucket({"x": b"x", "folder/only": b"y"}) + f"/{key}")
    assert is_single(config, list_source(config)[0]) == single


@pytest.mark.parametrize(
    ("keys", "top"),
    [([""], True), (["p"], True), (["p/"], True), (["x"], False), (["x", "p"], True)],
)
def test_a_mirror_has_the_top_of_what_is_below_a_prefix(s3, keys, top):
    place = s3.bucket({"x": b"x", "p/a": b"1", "p/!": b"2"})
    config = s3.config(*[f"{place}/{key}" for key in keys], mirror=True)
    entries, _ = list_source(config)
    assert [entry.path for entry in entries].count(b".") == top
    assert (entries[0].path == b".") == top
    if top:
        assert entries[0].mtime_ns == max(entry.mtime_ns for entry in entries[1:])
    assert is_single(config, entries) != top


def test_a_mirror_of_names_has_no_top(s3):
    place = s3.bucket({"p/a": b"1"}) + "/p"
    names = [base64.b64encode(b"a").decode()]
    entries, _ = list_source(s3.config(place, names_b64=names, mirror=True))
    assert [entry.path for entry in entries] == [b"a"]


def test_names_below_a_prefix(s3):
    place = s3.bucket({"p/a": b"1", "p/b/c": b"2", "p/d": b"3"}) + "/p"
    names = [base64.b64encode(name).decode() for name in (b"b/c", b"a")]
    entries, _ = list_source(s3.config(place, names_b64=names))
    assert [entry.path for entry in entries] == [b"a", b"b", b"b/c"]


@pytest.mark.parametrize("key", ["", "/ok", "/ok/secret"])
def test_nobody_reads_what_only_may_be_listed(s3, key):
    place = s3.bucket({"ok/secret": b"x"})
    # moto refuses unsigned requests for objects, and lists for anybody.
    with pytest.raises(SourceError, match="S3 refuses s3://.*/ok/secret to") as told:
        list_source(s3.config(place + key, credentials="none"))
    assert told.value.kind == "denied"
    assert "--credentials mine" in told.value.hint


PAGE = b"""<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
<IsTruncated>%s</IsTruncated><NextContinuationToken>more</NextContinuationToken>
<EncodingType>url</EncodingType>
<Contents><Key>p/a+b%%2B</Key><LastModified>2026-11-21T19:34:25.250Z</LastModified>
<ETag>&quot;e&quot;</ETag><Size>5</Size><StorageClass>%s</StorageClass></Contents>
</ListBucketResult>"""


def test_a_page_as_aws_sends_it():
    [one], more = parse_page(PAGE % (b"false", b"STANDARD"), b"p/")
    assert (one.name, one.key, one.size, one.version) == (b"a b+", b"p/a b+", 5, '"e"')
    assert one.mtime_ns == 1795289665_250_000_000
    assert (one.archived, more) == (False, "")
    assert parse_page(PAGE % (b"true", b"GLACIER"), b"")[1] == "more"
    assert parse_page(PAGE % (b"true", b"GLACIER"), b"")[0][0].archived


@pytest.mark.parametrize(
    "body",
    [
        b"",
        PAGE[:300],
        (PAGE % (b"false", b"")).replace(b"<Size>5", b"<Size>five"),
        (PAGE % (b"false", b"")).replace(b"2026-11-21T", b"yesterday"),
        (PAGE % (b"true", b"")).replace(b"more", b""),
        (PAGE % (b"false", b"")).replace(b"p/a", b"elsewhere"),
    ],
)
def test_a_page_that_is_cut_or_makes_no_sense_is_asked_for_again(body):
    with pytest.raises(Broken):
        parse_page(body, b"p/")


def test_something_else_than_s3_is_no_s3():
    with pytest.raises(SourceError, match="not S3's"):
        parse_page(b"<html><body>Welcome</body></html>", b"")


@pytest.mark.parametrize("text", ["", "x", "2026-11-21", "2026-11-21T19:34:25.xZ"])
def test_what_is_no_time(text):
    with pytest.raises(ValueError):
        parse_time_ns(text)


def test_a_listing_without_end_ends():
    class Endless:
        name = "endless"

        def ask(self, *_):
            return Answer(200, {}, PAGE % (b"true", b"STANDARD"))

    with pytest.raises(SourceError, match="more than"):
        list(s3list.list_objects(Endless(), b"p/"))
