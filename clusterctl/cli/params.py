"""Types of command-line parameters: their checks and their shell completion."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterctl.cli import output
from clusterctl.config import home_folder, load_settings
from clusterctl.domain.cluster import is_cluster_name
from clusterctl.domain.errors import UsageError
from clusterctl.domain.ranges import parse_indices, parse_nodes
from clusterctl.domain.timeouts import Timeouts
from clusterctl.domain.units import (
    DURATIONS,
    as_utf8,
    format_bytes,
    parse_bytes,
    parse_duration_s,
    parse_rate,
)

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from clusterctl.domain.files import ClusterFolder

# Key in a click context's meta: words with paths on the nodes, each with its option or "".
NODE_PATHS_KEY = "clusterctl.node_paths"
# Key in a click context's meta: the set of clusters whose nodes were named.
NAMED_CLUSTERS_KEY = "clusterctl.clusters"


def together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds these options, in this order in the help."""
    return lambda command: functools.reduce(lambda one, add: add(one), reversed(options), command)


class SelectionOption(click.Option):
    """An option that names what the command is about: nodes, hosts, regions. Given twice it names
    both, if `joins`; else it is refused. The last one alone would leave out the others silently."""

    def __init__(self, *args: Any, joins: bool = False, **more: Any) -> None:
        super().__init__(*args, **more)
        self.joins = joins

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append", nargs=1)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> Any:
        given = opts.get(self.name or "")
        if isinstance(given, list):
            if len(given) > 1 and not (self.joins or ctx.resilient_parsing):
                named = ", ".join(given)
                raise UsageError(f"{self.opts[0]} is given twice: {named}", "give it once")
            opts = {**opts, self.name or "": ",".join(given)}
        return super().consume_value(ctx, opts)


yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


class JsonOption(click.Option):
    """--json. `result` is the name of the type of what it prints (json_types.py)."""

    def __init__(self, *args: Any, result: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.result = result


def json_option(result: str, text: str = "Print the result as JSON.") -> Callable[[Any], Any]:
    """Return the option --json of a command whose result has this type in json_types.py."""
    more: dict[str, Any] = {"cls": JsonOption, "result": result}
    return click.option("--json", "as_json", is_flag=True, help=text, **more)


dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done, and do nothing."
)
force_option = click.option("--force", is_flag=True, help="Even while a job runs.")

CREDENTIALS = ("profile", "mine", "none")


def credentials_option(text: str) -> Callable[[Any], Any]:
    """Return the option --credentials, with `text` as its help."""
    choice = click.Choice(CREDENTIALS)
    return click.option(
        "--credentials", type=choice, default="profile", show_default=True, help=text
    )


preset_option = click.option(
    "--preset",
    type=click.Choice(["auto", "gpu", "cpu"]),
    default="auto",
    show_default=True,
    help="For GPUs or CPUs; auto: by the NVIDIA driver.",
)
all_regions_option = click.option(
    "--all-regions", is_flag=True, help="All regions enabled for the account."
)


class AccountOption(click.Option):
    """One of the options for the account. The help has one line for them all (see `Group`)."""

    def get_help_record(self, ctx: click.Context) -> None:
        return None


class Group(click.Group):
    """A group that suggests the command that was meant, as click does from version 8.4 on.

    `elsewhere` has the names by which other programs call a command.
    """

    elsewhere: Mapping[str, str] = {}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command and command.help:  # its examples
            command.help = output.named(command.help)
        if command:
            refuse_blank_texts(command)
        if command and any(isinstance(one, AccountOption) for one in command.params):
            options = "--lab --region --profile --endpoint-url --config"
            command.epilog = f"Also {options}: see clusterctl config"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        known = self.list_commands(ctx)
        if word not in known and not word.startswith("-") and not ctx.resilient_parsing:
            import difflib

            close = difflib.get_close_matches(word, known, n=1)
            close = [self.elsewhere[word]] if word in self.elsewhere else close
            meant = f" (Did you mean {close[0]!r}?)" if close else ""
            ctx.fail(f"No such command {word!r}.{meant}")
        return super().resolve_command(ctx, args)


class Duration(click.ParamType):
    """Seconds from `30s`, `5m`, `2h`. `none` allows 0.

    `unit` is what a number without one, which is refused, probably means.
    """

    name = "duration"

    def __init__(self, none: bool = False, unit: str = "s") -> None:
        self._none, self._unit = none, unit

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, (int, float)):  # of a default, or of clusterctl.api
            if not (value > 0 or (self._none and value == 0)):
                self.fail(f"{value} s is no time", param, ctx)
            duration_s = value
        else:
            try:
                duration_s = parse_duration_s(value, self._unit)
            except UsageError as error:
                self.fail(_sentence(error), param, ctx)
        if not duration_s and not self._none:
            self.fail(f"no time at all; write it as {DURATIONS}", param, ctx)
        if duration_s > threading.TIMEOUT_MAX:
            self.fail(f"{value}: this machine waits for 290 years at the most", param, ctx)
        return duration_s


def _sentence(error: UsageError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


class Indices(click.ParamType):
    """Node indices from `0-3,5`, or if `named` from nodes' names: `demo-1`, `demo-[0-3,5]`.

    The clusters of the names go into the context's meta (CLUSTERS), where `account_options` refuses
    nodes of another cluster.
    """

    name = "indices"

    def __init__(self, named: bool = True) -> None:
        self._named = named

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            if isinstance(value, str):
                clusters, value = parse_nodes(value) if self._named else ((), parse_indices(value))
                ctx.meta.setdefault(NAMED_CLUSTERS_KEY, set()).update(clusters)
            return value
        except UsageError as error:
            self.fail(_sentence(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before = incomplete[: incomplete.rfind(",") + 1]
        return completions(
            ctx, lambda: [before + index for index in _indices_here(ctx)], incomplete
        )


def refuse_blank(param_type: click.ParamType, value: Any, param: Any, ctx: Any) -> None:
    """Refuse the empty word that an unset variable of a shell leaves. Raises BadParameter."""
    if isinstance(value, str) and not value.strip():
        param_type.fail(f"{value!r} is empty: is a variable of your shell unset?", param, ctx)


class NonBlank(click.types.StringParamType):
    """Any text. An empty word is refused: it would count as one that was not typed."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        source = click.core.ParameterSource
        typed = (source.COMMANDLINE, source.ENVIRONMENT)
        # Without a parameter it is a value of api.py, whose default may be empty.
        if param and ctx.get_parameter_source(param.name) in typed:
            refuse_blank(self, value, param, ctx)
        return super().convert(value, param, ctx)


class FreeText(NonBlank):
    """Words for people, such as a reason."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return as_utf8(super().convert(value, param, ctx))


def refuse_blank_texts(command: click.Command) -> None:
    """Let every text of the command's options and arguments be NonBlank."""
    for one in command.params:
        one.type = NonBlank() if one.type is click.STRING else one.type


class LocalPath(click.Path):
    """A path on this machine. An empty word is refused: it would mean the current folder. So is a
    URL, of which Path would make a folder named `s3:`."""

    def __init__(self, **how: Any) -> None:
        super().__init__(path_type=Path, **how)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        refuse_blank(self, value, param, ctx)
        if "://" in str(value):
            self.fail(f"{value} is a URL, not a path on this machine", param, ctx)
        return super().convert(value, param, ctx)


class OutputFile(LocalPath):
    """A file here that a command writes. What is there and is no regular file is refused: a device
    or a pipe would be replaced, since most files are renamed into place."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path: Any = super().convert(value, param, ctx)
        if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 - never raise
            self.fail(f"{path} is a device or a pipe, not a file", param, ctx)
        return path


def refuse_overwriting(written: Iterable[Path], read: Iterable[Path]) -> None:
    """Raise UsageError if a file is to be written that is also read, or written twice."""
    taken = list(read)
    for path in written:
        if any(_is_same(path, other) for other in taken):
            raise UsageError(f"{path} is named twice: it would be overwritten", "name another file")
        taken.append(path)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there
        return one.resolve() == other.resolve()


class NodePath(click.ParamType):
    """A word with a path on the nodes: the path itself, NAME=PATH, a command. An empty word is
    refused, unless it is one of several: then it may be an argument of a program.

    If the command fails, `account_options` names those that the user's shell has changed.
    """

    name = "text"

    def convert(self, value: str, param: Any, ctx: Any) -> str:
        if param and param.nargs == 1 and value != param.default:
            refuse_blank(self, value, param, ctx)
        if ctx:
            option = param.opts[0] if isinstance(param, click.Option) else ""
            note_node_path(ctx, value, option)
        return value


class CommandText(NodePath):
    """A command for the nodes' shell. An empty one is refused: it would succeed on every host."""

    def convert(self, value: str, param: Any, ctx: Any) -> str:
        refuse_blank(self, value, param, ctx)
        return super().convert(value, param, ctx)


def note_node_path(ctx: click.Context, word: str, option: str = "") -> None:
    """Note a word of the command line with a path on the nodes, as NodePath does."""
    ctx.meta.setdefault(NODE_PATHS_KEY, []).append((option, word))


# What the ranks and mpirun are given.
rank_options = together(
    click.option(
        "-x",
        "variables",
        multiple=True,
        type=NodePath(),
        metavar="NAME[=VALUE]",
        help="Set this variable in all ranks. Without a VALUE: to the one here, which stays "
        "private.",
    ),
    click.option(
        "--mpi-arg",
        "mpi_args",
        multiple=True,
        metavar="OPTION",
        help="Give mpirun this option, in place of ours of that name: '--mca NAME VALUE'.",
    ),
)


class JobId(click.ParamType):
    """The id of a job. Completion lists those on the head node, if it answers in time.

    An empty id, of a shell's unset variable, is refused: it must not mean the latest job, or all.
    `loose`: the word may be something else as well, which the command decides. `by_hand`: it may
    be the process ID of an mpirun that was started by hand.
    """

    name = "text"

    def __init__(self, loose: bool = False, by_hand: bool = False) -> None:
        self._loose, self._by_hand = loose, by_hand

    def convert(self, value: str, param: Any, ctx: Any) -> str:
        from clusterctl.jobs.plan import check_job_id

        try:
            is_pid = self._by_hand and value.isdecimal()
            return value if self._loose or is_pid else check_job_id(value)
        except UsageError as error:
            error.hint = error.hint.replace("NAME", ctx.params.get("name") or "NAME")
            raise

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return completions(ctx, lambda: _jobs_of(ctx), incomplete)


def _indices_argument(name: str, metavar: str, required: bool) -> Callable[[Any], Any]:
    """Return the argument of several words as `2-3 5`; the command gets their indices, sorted."""

    def flat(ctx: Any, param: Any, groups: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        return tuple(sorted({index for group in groups for index in group}))

    words: dict[str, Any] = {"nargs": -1, "required": required, "metavar": metavar}
    return click.argument(name, type=Indices(), callback=flat, **words)


indices_argument = _indices_argument("indices", "INDEX...", required=True)
optional_indices_argument = _indices_argument("chosen", "[INDEX]...", required=False)
job_argument = click.argument("job_id", required=False, type=JobId(), metavar="[JOB]")


def launched_here(name: str) -> bool:
    """Return whether this machine has launched a cluster of that name, and not removed it."""
    from clusterctl.domain.files import ClusterFolder

    return is_cluster_name(name) and ClusterFolder(home_folder() / name).launched


def clusters_here(given: Mapping[str, Any]) -> list[str]:
    """Return the clusters launched from this machine that a command with these options would find.

    `given` has the options of `account_options`. Each cluster's folder records whether it is in the
    lab or on AWS, and its region. Raises UsageError.
    """
    return [folder.name for folder in clusters_launched() if _is_meant(folder, given)]


def clusters_launched() -> list[ClusterFolder]:
    """Return the folders of all clusters launched from this machine, wherever they run."""
    from clusterctl.domain.files import ClusterFolder

    home = home_folder()
    paths = sorted(home.iterdir()) if home.is_dir() else []
    return [ClusterFolder(path) for path in paths if launched_here(path.name)]


def _is_meant(folder: ClusterFolder, given: Mapping[str, Any]) -> bool:
    config = given.get("config")
    settings = load_settings(
        lab=given.get("lab"),
        region=given.get("region"),
        config=Path(config) if config else None,
        cluster=folder.name,
    )
    try:
        region, _, where = folder.site.read_text().partition(" at ")
    except (OSError, UnicodeDecodeError):  # `up` writes the file before it launches
        return True
    other = given.get("endpoint_url") or os.environ.get("AWS_ENDPOINT_URL")
    is_local = where.startswith("a local EC2")
    return is_local == bool(settings.lab or other) and settings.region in (None, region)


def _meant(ctx: click.Context) -> ClusterFolder:
    """Return the folder of the cluster that is meant. Raises ValueError if several may be."""
    from clusterctl.domain.files import ClusterFolder

    # click leaves the words unparsed if an option before the cursor has no value yet.
    words = [ctx.params.get("name"), *ctx.args]
    (name,) = [word for word in words if word][:1] or clusters_here(ctx.params)
    return ClusterFolder(home_folder() / name)


def _indices_here(ctx: click.Context) -> list[str]:
    nodes = dict.fromkeys(_meant(ctx).node_names().values())
    return [node.rpartition("-")[2] for node in nodes]


def _jobs_of(ctx: click.Context) -> list[str]:
    from clusterctl.jobs.plan import JOB_ID

    folder = _meant(ctx)
    argv = ["ssh", "-F", str(folder.ssh_config), "-o", "BatchMode=yes"]
    listed = subprocess.run(
        [*argv, f"{folder.name}-0", "echo; ls -r .clusterctl/jobs"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=timeouts_of(ctx).completion_s - 0.5,  # ssh ends before completion does
        check=True,
    )
    # A .bashrc may print lines, too.
    return list(filter(JOB_ID.fullmatch, listed.stdout.decode().splitlines()))


def complete_file(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Have the shell complete a file's name, for a parameter that also takes URLs."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def timeouts_of(ctx: click.Context) -> Timeouts:
    """Return the command's timeouts: the context's object (`run_command`), or the defaults."""
    return ctx.find_object(Timeouts) or Timeouts()


def completions(
    ctx: click.Context, ask: Callable[[], Iterable[str]], incomplete: str
) -> list[CompletionItem]:
    """Return those of `ask`'s words that begin with `incomplete`, for the shell.

    Empty if `ask` fails, or takes longer than `completion_s`.
    """
    from click.shell_completion import CompletionItem

    found: list[str] = []

    def complete() -> None:
        # The command itself will report what is wrong.
        with contextlib.suppress(Exception):
            found.extend(ask())

    completing = threading.Thread(target=complete, daemon=True)
    completing.start()
    completing.join(timeouts_of(ctx).completion_s)
    return [CompletionItem(word) for word in found if word.startswith(incomplete)]


class Index(Indices):
    """One node's index, or its name. `instead` is appended to the error for any other word."""

    name = "index"

    def __init__(self, instead: str = "") -> None:
        super().__init__()
        self._instead = instead

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, int):
            return value
        try:
            clusters, indices = parse_nodes(value)
        except UsageError:
            indices = ()
        if len(indices) != 1:
            self.fail(f"not a node's index or name: {value!r}{self._instead}", param, ctx)
        return super().convert(value, param, ctx)[0]


timeout_option = click.option(
    "--timeout", "timeout_s", type=Duration(), help="Per host: 30s, 5m, 2h."
)


class NumberRange(click.FloatRange):
    """click's range without NaN, which is not outside of any range, and infinity."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number such as 8 or 0.5", param, ctx)
        return number


class Size(click.ParamType):
    """Bytes from `8MiB`, within limits."""

    name = "size"

    def __init__(self, least: int = 0, most: int = 2**63) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            size = value if isinstance(value, int) else parse_bytes(value)
        except UsageError as error:
            self.fail(_sentence(error), param, ctx)
        if not self._least <= size <= self._most:
            least, most = format_bytes(self._least), format_bytes(self._most)
            self.fail(f"{value} is not from {least} to {most}", param, ctx)
        return size


class Rate(click.ParamType):
    """Bytes a second from `25gbit`, `160mbit`, `100MiB/s`."""

    name = "rate"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return value if isinstance(value, (int, float)) else parse_rate(value)
        except UsageError as error:
            self.fail(_sentence(error), param, ctx)


class BitRate(click.ParamType):
    """Bits a second from the same texts, as network links are rated."""

    name = "rate"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, int):
            return value
        return round(Rate().convert(value, param, ctx) * 8)
