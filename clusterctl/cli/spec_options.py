"""The options of a launch, made from the table of settings (configuration/options.py)."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext
from clusterctl.cli.params import completions, together
from clusterctl.configuration.options import (
    LAUNCH,
    OPTIONS,
    TAG,
    Option,
    SpecDraft,
    ValueKind,
    Values,
    environment_values,
    misspelt,
    parse_tag,
    parse_value,
)
from clusterctl.domain.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Setting(click.ParamType):
    """The value of a setting, checked as in clusterctl.yaml."""

    def __init__(self, option: Option) -> None:
        self.option = option
        self.name = option.kind.name.lower()

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            if self.option.kind is ValueKind.TAGS:
                return parse_tag(value)
            return parse_value(self.option, value)
        except UsageError as error:
            self.fail(error.message, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        if self.option.metavar == "TYPE":
            return completions(ctx, _types, incomplete)
        return super().shell_complete(ctx, param, incomplete)


def _types() -> list[str]:
    from clusterctl.ec2.money.prices import listed_types

    return listed_types()


class WaitingOptions(NamedTuple):
    """How long a launch waits, and whether it trusts host keys that only the nodes show."""

    timeout_s: float | None = None
    capacity_timeout_s: float = 0.0
    accept_new_host_keys: bool = False


# The settings of a launch that hold for every command that launches or starts nodes.
WAITING = (OPTIONS["timeout"], OPTIONS["capacity-timeout"])
_trust_option = click.option(
    "--accept-new-host-keys",
    is_flag=True,
    help="Trust the host key that a node shows where neither console nor Systems Manager has "
    "it. An attacker between you and the node could then impersonate it.",
)


def waiting_of(draft: SpecDraft, accept_new_host_keys: bool = False) -> WaitingOptions:
    """Return how long the launch of this draft waits."""
    timeout_s, capacity_s = (draft.values.get(option.key) for option in WAITING)
    return WaitingOptions(timeout_s, capacity_s or 0.0, accept_new_host_keys)


def spec_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a launch; pass `draft` and `waiting`.

    The decorator stands below `account_options`, because it needs `app`. The command has to have an
    argument `name`.
    """
    return _with_settings(LAUNCH, command, lambda draft: {"draft": draft})


def waiting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of WAITING, and pass `waiting`: as spec_options, for what is no launch."""
    return _with_settings(WAITING, command, lambda draft: {})


def _with_settings(
    settings: Sequence[Option],
    command: Callable[..., Any],
    passed: Callable[[SpecDraft], dict[str, Any]],
) -> Callable[..., Any]:
    """Add options whose defaults the file and the environment give."""

    @functools.wraps(command)
    def drafted(
        *args: Any, app: AppContext, name: str, accept_new_host_keys: bool, **kwargs: Any
    ) -> Any:
        for text in misspelt(os.environ):
            output.note(f"warning: {text}")
        flags = flags_of({option: kwargs.pop(option.parameter) for option in settings})
        draft = SpecDraft.of(name, *layers(app, name), flags)
        waiting = waiting_of(draft, accept_new_host_keys)
        return command(*args, app=app, name=name, waiting=waiting, **passed(draft), **kwargs)

    return together(*map(click_option, settings), _trust_option)(drafted)


def layers(app: AppContext, name: str) -> Sequence[Values]:
    """Return the file's values for this cluster, and the environment's, which override them."""
    file = app.settings.file
    return (file.values(name) if file else {}, environment_values(os.environ))


def flags_of(given: dict[Option, Any]) -> Values:
    """Return the settings that options of the command line give."""
    found: dict[str, Any] = {}
    for option, value in given.items():
        if option.kind is ValueKind.TAGS:
            found.update({TAG + key: text for key, text in value})
        elif value not in (None, ()):
            found[option.key] = value
    return found


def click_option(option: Option) -> Callable[..., Any]:
    """Return the decorator that adds a setting's option."""
    text = option.help
    if option.builtin not in ("", "false"):
        text = f"{text.rstrip('.')}. Default: {option.builtin}."
    if option.kind is ValueKind.FLAG:
        names = f"{option.flag}/--no-{option.key}"
        return click.option(names, option.parameter, default=None, help=text)
    return click.option(
        option.flag,
        option.parameter,
        type=Setting(option),
        metavar=option.metavar,
        multiple=option.several,
        help=text,
    )
