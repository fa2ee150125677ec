"""How a data set at URLs gets to the nodes: the decision as a table, and what nodes answer."""

from __future__ import annotations

import json

import pytest

from clusterctl.copy.request import CopyRequest, Way
from clusterctl.copy.s3 import (
    LentKeys,
    aws_line,
    parse_source,
    s5cmd_line,
    urls_config,
    without_keys,
)
from clusterctl.copy.s3copy import tool_script, wish_of
from clusterctl.copy.s3plan import UrlFacts, UrlWish, parse_probe, plan_urls, tool_of
from clusterctl.copy.s3sync import tool_commands
from clusterctl.domain.errors import ClusterctlError, CommandFailed, UsageError
from clusterctl.domain.results import CommandResult

S3 = (parse_source("s3://bucket/prefix/"),)
WEB = (parse_source("https://mirror/file"),)
KEYS = LentKeys("AKIA", "hush", "hush hush")


def nodes(count=4, **more):
    return [UrlFacts(f"demo-{n}", **{"reachable": True, **more}) for n in range(count)]


def unable(host, why="no connection to s3"):
    return UrlFacts(host, False, why, "a hint")


FAST = {"s5cmd": "v2.3.0"}
V1, V2 = {"aws": "aws-cli/1.45.11 Python/3.11.7"}, {"aws": "aws-cli/2.17.9 Python/3.11.9"}


@pytest.mark.parametrize(
    ("wish", "facts", "way", "tool", "source", "why"),
    [
        (UrlWish(S3), nodes(), Way.DIRECT, "", "demo-0", "from the source itself"),
        (UrlWish(S3, plain=True), nodes(), Way.DIRECT, "", "demo-0", "itself:"),
        (UrlWish(S3, plain=True), nodes(**FAST), Way.TOOL, "s5cmd", "demo-0", "has s5cmd"),
        (UrlWish(S3, plain=True), nodes(**V2), Way.TOOL, "aws", "demo-0", "has aws"),
        (UrlWish(S3, plain=True), nodes(**V2, **FAST), Way.TOOL, "s5cmd", "demo-0", "s5cmd"),
        (UrlWish(S3, plain=True), nodes(**V1), Way.DIRECT, "", "demo-0", "itself:"),
        (UrlWish(S3), nodes(**FAST), Way.DIRECT, "", "demo-0", "itself:"),
        (UrlWish(S3, Way.DIRECT, plain=True), nodes(**FAST), Way.DIRECT, "", "demo-0", "as asked."),
        (UrlWish(S3, Way.TOOL, plain=True), nodes(**V2), Way.TOOL, "aws", "demo-0", "as asked"),
        (UrlWish(S3, Way.EXCHANGE), nodes(), Way.EXCHANGE, "", "demo-0", "as asked."),
        (UrlWish(S3, Way.CHAIN), nodes(), Way.CHAIN, "", "demo-0", "as asked."),
        (UrlWish(S3), nodes(64), Way.EXCHANGE, "", "demo-0", "S3 takes 5500"),
        (UrlWish(WEB), nodes(64), Way.DIRECT, "", "demo-0", "itself:"),
        (UrlWish(S3, link_rate=20e6), nodes(64), Way.DIRECT, "", "demo-0", "itself:"),
        (UrlWish(S3, link_rate=3.1e9), nodes(16), Way.EXCHANGE, "", "demo-0", "5500"),
        (UrlWish(S3, s3_rate=1e8, link_rate=1e9), nodes(), Way.EXCHANGE, "", "demo-0", "1/4"),
        (UrlWish(S3, s3_rate=1e8, link_rate=1e9), nodes(1), Way.DIRECT, "", "demo-0", "itself:"),
        (UrlWish(S3, s3_rate=1e9, link_rate=1e9), nodes(), Way.DIRECT, "", "demo-0", "itself:"),
        (
            UrlWish(S3),
            [unable("demo-0"), *nodes(3)[1:]],
            Way.CHAIN,
            "",
            "demo-1",
            "demo-0 cannot read the source (no connection to s3): demo-1 reads it for all.",
        ),
        (
            UrlWish(S3, Way.CHAIN),
            [unable("demo-0"), *nodes(2)[1:]],
            Way.CHAIN,
            "",
            "demo-1",
            "as asked.",
        ),
        (UrlWish(S3), [unable("demo-0")], Way.CHAIN, "", None, "this machine reads it."),
    ],
)
def test_the_way(wish, facts, way, tool, source, why):
    plan = plan_urls(wish, facts)
    assert (plan.way, plan.tool, plan.source) == (way, tool, source)
    assert why in "; ".join(plan.why)


@pytest.mark.parametrize(
    ("wish", "facts", "message"),
    [
        (UrlWish(S3), [unable("demo-0", "S3 refuses s3://bucket")] * 2, "no node can read"),
        (UrlWish(S3, Way.DIRECT), [unable("demo-0")], "no node can read the source"),
        (UrlWish(S3, Way.DIRECT), [unable("demo-0"), *nodes(2)[1:]], "demo-0 cannot read"),
        (UrlWish(S3, Way.EXCHANGE), [unable("demo-0"), *nodes(2)[1:]], "demo-0 cannot read"),
        (UrlWish(S3, Way.TOOL, plain=True), nodes(), "not every node has s5cmd"),
        (
            UrlWish(S3, Way.TOOL, plain=True),
            [*nodes(1, **FAST), *nodes(2)[1:]],
            "not every node has s5cmd",
        ),
        (UrlWish(S3, Way.TOOL), nodes(**FAST), "a tool cannot do all"),
        (UrlWish(S3), [], "there are no nodes"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(wish, facts, message):
    if not facts:
        assert plan_urls(wish, facts).source is None
        return
    with pytest.raises(ClusterctlError, match=message) as told:
        plan_urls(wish, facts)
    assert told.value.hint
    # What nobody can read is no mistake in the command.
    assert isinstance(told.value, UsageError) == ("no node" not in message)


def test_a_tool_is_one_that_all_have():
    assert tool_of([]) == ""
    assert tool_of([*nodes(1, **FAST), *nodes(1, **V2)]) == ""
    assert tool_of([*nodes(1, **FAST, **V2), *nodes(1, **V2)]) == "aws"


@pytest.mark.parametrize(
    ("request_", "credentials", "plain"),
    [
        (CopyRequest(("s3://b-b/x",), "~"), None, True),
        (CopyRequest(("s3://b-b/x",), "~"), "none", True),
        (CopyRequest(("s3://b-b/x",), "~"), KEYS, False),
        (CopyRequest(("https://host/x",), "~"), None, False),
        (CopyRequest(("s3://b-b/x",), "~", delete=True), None, False),
        (CopyRequest(("s3://b-b/x",), "~", checksum=True), None, False),
        (CopyRequest(("s3://b-b/x",), "~", verify=True), None, False),
        (CopyRequest(("s3://b-b/x",), "~", dry_run=True), None, False),
        (CopyRequest(("s3://b-b/x",), "~", names=(b"x",)), None, False),
    ],
)
def test_what_a_tool_can_do(request_, credentials, plain):
    sources = tuple(map(parse_source, request_.sources))
    assert wish_of(request_, sources, credentials).plain is plain


@pytest.mark.parametrize(
    ("text", "bucket", "key", "folder"),
    [
        ("s3://bucket", "bucket", b"", True),
        ("s3://bucket/", "bucket", b"", True),
        ("s3://my.bucket-1/a b/ü", "my.bucket-1", "a b/ü".encode(), False),
        ("s3://bucket/a/", "bucket", b"a/", True),
        ("s3://bucket//a", "bucket", b"/a", False),
        ("http://host:8080/a?b=c", "", b"", False),
    ],
)
def test_sources(text, bucket, key, folder):
    source = parse_source(text)
    assert (source.bucket, source.key, source.is_folder) == (bucket, key, folder)


@pytest.mark.parametrize(
    "text",
    [
        "s3://",
        "s3:///key",
        "s3://UPPER/x",
        "s3://a/x",
        "s3://-bad/x",
        "s3://$(reboot)/x",
        "http://",
        "http:///x",
        "http://h:99999/x",
        "http://me:secret@host/x",
        "ftp://host/x",
        "/a/path",
        "",
    ],
)
def test_what_is_no_source(text):
    with pytest.raises(UsageError) as told:
        parse_source(text)
    assert "secret" not in told.value.message


@pytest.mark.parametrize(
    "endpoint", ["host", "http://", "http://me:pw@host", "http://h/path/x", ""]
)
def test_what_is_no_endpoint(endpoint):
    with pytest.raises(UsageError):
        urls_config(S3, endpoint=endpoint)


def test_what_nodes_are_told():
    config = urls_config(
        (*S3, *WEB), names=[b"a\xff"], credentials=KEYS, endpoint="http://10.0.0.1:9000"
    )
    assert json.loads(json.dumps(config)) == {
        "sources": [
            {"kind": "s3", "bucket": "bucket", "key_b64": "cHJlZml4Lw=="},
            {"kind": "http", "url": "https://mirror/file"},
        ],
        "names_b64": ["Yf8="],
        "credentials": {"access": "AKIA", "secret": "hush", "token": "hush hush"},
        "endpoint": "http://10.0.0.1:9000",
        "region": None,
        "connections": 32,
        "mirror": False,
    }
    assert "hush" not in str(without_keys(config))
    assert without_keys(urls_config(S3))["credentials"] is None


ODD = parse_source("s3://bucket/it's $(me)")


def test_command_lines_of_tools():
    assert s5cmd_line(S3[0], "~/data", one=False) == [
        *("s5cmd", "--log", "error", "--numworkers", "64"),
        *("sync", "s3://bucket/prefix/*", "~/data/"),
    ]
    assert s5cmd_line(ODD, "/d", True, "http://e:1", public=True) == [
        *("s5cmd", "--log", "error", "--numworkers", "64", "--endpoint-url", "http://e:1"),
        *("--no-sign-request", "cp", "--concurrency", "8", "s3://bucket/it's $(me)", "/d"),
    ]
    assert aws_line(S3[0], "~/data", one=False) == [
        *("aws", "s3", "sync", "--only-show-errors", "s3://bucket/prefix/", "~/data"),
    ]


def test_a_script_quotes_once_and_leaves_the_home_folder_to_the_node():
    commands = [aws_line(ODD, "~/it's here", one=True), aws_line(S3[0], "~", one=False)]
    assert tool_script(commands) == (
        """aws s3 cp --only-show-errors 's3://bucket/it'"'"'s $(me)' "$HOME"/'it'"'"'s here'"""
        ' && aws s3 sync --only-show-errors s3://bucket/prefix/ "$HOME"'
    )


def test_an_object_is_copied_and_a_prefix_synced():
    sources = (parse_source("s3://bucket/key"), parse_source("s3://bucket/prefix"), *S3)
    facts = [UrlFacts("demo-0", True, objects=(True, False, False))]
    verbs = [line[2] for line in tool_commands("aws", sources, "/d", facts)]
    assert verbs == ["cp", "sync", "sync"]


def answer(stdout: str, status: int = 0, stderr: str = "") -> CommandResult:
    return CommandResult("demo-0", "python3", status, stdout, stderr, 0.1)


def test_a_probe_is_read():
    told = {"reachable": True, "objects": [True, False], "s5cmd": "v2.3.0", "aws": ""}
    facts = parse_probe(answer(f"Welcome!\n{json.dumps(told)}\n"))
    assert facts == UrlFacts("demo-0", True, s5cmd="v2.3.0", objects=(True, False))
    told = {"reachable": False, "why": "S3 refuses", "hint": "do this", "kind": "denied"}
    assert parse_probe(answer(json.dumps(told))).why == "S3 refuses"


@pytest.mark.parametrize(
    "result",
    [
        answer("", 127, "sh: python3: not found"),
        answer("", 1, "python3 is 3.6.9, 3.8 is needed"),
        answer(""),
        answer("{}\n{}\n"),
    ],
)
def test_a_probe_without_an_answer_is_that_nodes_failure(result):
    with pytest.raises(CommandFailed):
        parse_probe(result)
