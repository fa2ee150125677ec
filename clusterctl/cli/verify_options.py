"""The options of `clusterctl data verify` and `copyclust verify`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from clusterctl.cli.params import Duration

_OPTIONS = (
    click.option("--content", is_flag=True, help="Read all files, and compare their SHA-256."),
    click.option("--crc", is_flag=True, help="Read all TFRecords, and check their data's CRCs."),
    click.option("--mtime", is_flag=True, help="Compare modification times too."),
    click.option("--timeout", "timeout_s", type=Duration(), help="Per host: 30s, 5m, 2h."),
    click.option("--json", "as_json", is_flag=True, help="Groups, findings, failures as JSON."),
)


def verify_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --content, --crc, --mtime, --timeout and --json."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
