"""The options of `copyclust` and `clusterctl copy`, and the request made from them."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from clusterctl.cli import output
from clusterctl.cli.params import (
    Duration,
    Rate,
    Size,
    credentials_option,
    dry_run_option,
    json_option,
    together,
)
from clusterctl.cli.run_on import MOST_AT_ONCE
from clusterctl.domain.errors import UsageError

if TYPE_CHECKING:
    from clusterctl.copy.fetch import UrlAccess
    from clusterctl.copy.request import CopyRequest
    from clusterctl.copy.s3 import Credentials
    from clusterctl.ec2.session import Clients

# Bytes read of a --files-from list at most: 10 million names of 200 bytes.
LONGEST_LIST = 2 << 30


class CopyWords(click.Command):
    """A command with SRC... and DST. The error without one of them shows the whole line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from clusterctl.cli.program_arguments import split

        try:
            return super().parse_args(ctx, [*args])
        except click.MissingParameter as missing:
            if missing.param is None or missing.param.name not in ("src", "dst"):
                raise
            typed = split(self, args)
            has_hosts = any(one.startswith("-w") for one in typed.options)
            lead = [] if has_hosts else typed.words[:1] or ["NAME"]
            sources = typed.words if has_hosts else typed.words[1:]
            what = "SRC or DST is missing"
            if sources:
                what = f"DST is missing, where {sources[0]} goes"
            typed.words = [*lead, *(sources or ["SRC"]), "~/"]
            raise UsageError(
                what, f"on the nodes, in quotes: {typed.line(ctx.command_path)}"
            ) from None


s3_options = together(
    credentials_option(
        "For S3: the nodes' instance profile's; mine: this machine's; none: a public bucket."
    ),
    click.option(
        "--tool",
        type=click.Choice(["auto", "s5cmd", "aws"]),
        default="auto",
        show_default=True,
        help="For S3: s5cmd where a node has it, else aws; else s5cmd is sent.",
    ),
    click.option("--s3-endpoint", metavar="URL", help="Another S3 than AWS's."),
    click.option("--s3-region", metavar="REGION", help="The bucket's, if it is not found out."),
)
_WHAT = (
    click.option(
        "--files-from",
        metavar="FILE",
        help="Only what FILE names, one path below SRC a line; - is the standard input.",
    ),
    click.option("-0", "--from0", is_flag=True, help="The names in FILE end with a zero byte."),
    click.option("--delete", is_flag=True, help="Delete on the nodes what SRC does not have."),
    click.option("-c", "--checksum", is_flag=True, help="Compare contents, not size and time."),
    dry_run_option,
    click.option("--verify", is_flag=True, help="Compare all files with SRC's at the end."),
    click.option("--encrypt", is_flag=True, help="TLS between the nodes; costs twice the CPU."),
)
_HOW = (
    s3_options,
    click.option("--streams", type=int, metavar="N", help="TCP connections per hop, 1 to 64."),
    click.option("--block-size", "block_bytes", type=Size(), metavar="SIZE", help="E.g. 8MiB."),
    click.option("--port", type=int, default=0, help="TCP port on the nodes; default: any free."),
    click.option(
        "--link-rate", type=Rate(), metavar="RATE", help="Of the slowest link: 25gbit, 160mbit."
    ),
)
_SHOWN = (
    click.option(
        "--plan", "show_plan", is_flag=True, help="Show the plan too, predicted and measured."
    ),
    click.option("--timeout", "timeout_s", type=Duration(), help="Give up after: 30s, 5m, 2h."),
    click.option(
        "--fanout",
        type=click.IntRange(1, MOST_AT_ONCE),
        default=64,
        show_default=True,
        help="How many hosts to log in to at once.",
    ),
    json_option("CopyEvent", "Events, one JSON object a line."),
    click.option("-q", "--quiet", is_flag=True, help="Say only what went wrong."),
)


@dataclass(frozen=True)
class CopyOptions:
    """The values of the options that `copy_options` adds."""

    files_from: str | None = None
    from0: bool = False
    delete: bool = False
    checksum: bool = False
    dry_run: bool = False
    verify: bool = False
    encrypt: bool = False
    credentials: str = "profile"
    tool: str = "auto"
    s3_endpoint: str | None = None
    s3_region: str | None = None
    streams: int | None = None
    block_bytes: int | None = None
    port: int = 0
    link_rate: float | None = None
    show_plan: bool = False
    timeout_s: float | None = None
    fanout: int = 64
    as_json: bool = False
    quiet: bool = False


def copy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of a copy; pass `options`, a CopyOptions, to the command."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = {field.name: kwargs.pop(field.name) for field in fields(CopyOptions)}
        return command(*args, options=CopyOptions(**given), **kwargs)

    return cast("Callable[..., Any]", together(*_WHAT, *_HOW, *_SHOWN)(wrapped))


def request_of(
    options: CopyOptions, sources: tuple[str, ...], destination: str, from_node: int | None
) -> CopyRequest:
    """Return the request of a copy. Raises UsageError for one that makes no sense."""
    from clusterctl.copy.request import CopyRequest, check_sources_here

    alike = {one.name for one in fields(CopyRequest)} & {one.name for one in fields(options)}
    request = CopyRequest(
        sources,
        destination,
        from_node,
        names=_names(options),
        **{name: getattr(options, name) for name in alike},
    )
    check_sources_here(request)
    return request


def url_access(
    options: CopyOptions, sources: Sequence[str], clients: Callable[[], Clients], home: Path
) -> UrlAccess:
    """Return how nodes read `sources` that are URLs.

    `clients` is called only if the nodes get this machine's credentials. Raises UsageError,
    AwsError.
    """
    from clusterctl.copy.fetch import UrlAccess
    from clusterctl.copy.request import check_endpoint

    return UrlAccess(
        home / "cache",
        credentials_of(options.credentials, sources, clients),
        options.tool,
        check_endpoint(options.s3_endpoint),
        options.s3_region,
    )


def credentials_of(
    choice: str, sources: Sequence[str], clients: Callable[[], Clients]
) -> Credentials:
    """Return the credentials with which nodes read S3: None means their instance profile.

    A finding is printed if the credentials sent to them allow more than reading. In a job, keys are
    those that were sent to the job. Raises AwsError.
    """
    from clusterctl.copy.request import is_s3
    from clusterctl.copy.s3 import KEYS_VARIABLE, AccessKeys, parse_source
    from clusterctl.node.record import from_json

    if choice != "mine":
        return None if choice == "profile" else "none"
    buckets = [parse_source(source).bucket for source in sources if is_s3(source)]
    if not buckets:
        return None
    if KEYS_VARIABLE in os.environ:
        return from_json(AccessKeys, os.environ.pop(KEYS_VARIABLE))
    # Before the import below: on a head node, which has no boto3, this raises a clear MissingTool.
    account = clients()
    from clusterctl.ec2.policy import temporary_keys

    temporary = temporary_keys(account, buckets)
    if temporary.finding:
        output.findings([temporary.finding])
    return AccessKeys(*temporary.keys)


def _names(options: CopyOptions) -> tuple[bytes, ...] | None:
    if options.files_from is None:
        if options.from0:
            raise UsageError("-0 is about the file of --files-from", "give --files-from too")
        return None
    return names_in(_read(options.files_from), b"\0" if options.from0 else b"\n")


def names_in(text: bytes, end: bytes) -> tuple[bytes, ...]:
    """Return the names that `end` separates, without empty ones.

    Lines may end with CR LF, as on Windows.
    """
    names = text.split(end)
    if end == b"\n":
        names = [name[:-1] if name.endswith(b"\r") else name for name in names]
    return tuple(name for name in names if name)


def _read(path: str) -> bytes:
    try:
        if path == "-":
            return sys.stdin.buffer.read(LONGEST_LIST)
        with Path(path).open("rb") as file:
            return file.read(LONGEST_LIST)
    except OSError as error:
        raise UsageError(f"cannot read the list of names {path}: {error.strerror}") from None
