"""Shared by commands: the options of the account and of nodes, and the way to a cluster."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from clusterctl.cli import output
from clusterctl.cli.params import (
    NAMED_CLUSTERS_KEY,
    NODE_PATHS_KEY,
    AccountOption,
    Indices,
    LocalPath,
    SelectionOption,
    clusters_here,
    clusters_launched,
    completions,
    launched_here,
    timeouts_of,
    together,
)
from clusterctl.config import AccountFlags, Settings, load_settings
from clusterctl.domain.cluster import check_cluster_name, is_cluster_name
from clusterctl.domain.errors import AwsError, ClusterctlError, LabError, UsageError, unquoted_home
from clusterctl.domain.findings import folded
from clusterctl.domain.ranges import check_indices, other_cluster
from clusterctl.domain.timeouts import Timeouts

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from mypy_boto3_ec2 import EC2Client

    from clusterctl.domain.cluster import Cluster
    from clusterctl.domain.files import ClusterFolder
    from clusterctl.ec2.session import Clients
    from clusterctl.operations.access import Access
    from clusterctl.operations.status import ClusterStatus
    from clusterctl.transport.dial import Target


def config_option(
    cls: type[click.Option] = click.Option,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator that adds --config FILE."""
    text = "Settings to use in place of clusterctl.yaml."
    return click.option("--config", type=LocalPath(), metavar="FILE", help=text, cls=cls)


_OPTIONS = (
    click.option(
        "--lab/--no-lab",
        default=None,
        help="Use the local EC2 (or set CLUSTERCTL_LAB=1).",
        cls=AccountOption,
    ),
    click.option("--region", metavar="REGION", help="AWS region.", cls=AccountOption),
    click.option("--profile", metavar="NAME", help="AWS profile.", cls=AccountOption),
    click.option("--endpoint-url", metavar="URL", help="Another EC2 endpoint.", cls=AccountOption),
    config_option(AccountOption),
)


ACCOUNT_PARAMETERS = tuple(AccountFlags.__annotations__)


class AppContext:
    """The settings of this run, and the clients made from them when they are first needed."""

    def __init__(self, settings: Settings, timeouts: Timeouts = Timeouts()) -> None:
        self.settings = settings
        self.timeouts = timeouts
        self.ssh_user = ""  # of the cluster that was opened

    @functools.cached_property
    def proxy_command(self) -> tuple[str, ...]:
        """The command that connects SSH to instances whose addresses cannot be dialled.

        Empty but for the unprivileged local EC2.
        """
        record = self._lab
        return tuple(record.proxy_command or ()) if record else ()

    @property
    def ec2(self) -> EC2Client:
        return self.clients.ec2

    @functools.cached_property
    def clients(self) -> Clients:
        """The AWS clients, of the local EC2 with --lab. Raises LabError if that does not run."""
        from clusterctl.ec2.session import Account, Clients

        record, price_cache = self._lab, self.settings.home / "prices.json"
        if record:
            # `lab env --account` exports the key of one of the lab's accounts.
            key = record.key_named(os.environ.get("AWS_ACCESS_KEY_ID"))
            account = Account(
                region=_lab_region(self.settings.region or record.region),
                endpoint_url=record.endpoint_url,
                access_key=key.id,
                secret_key=key.secret,
                price_cache=price_cache,
            )
        else:
            account = Account(
                region=self.settings.region,
                profile=self.settings.profile,
                endpoint_url=self.settings.endpoint_url,
                price_cache=price_cache,
            )
        return Clients(account)

    @functools.cached_property
    def _lab(self) -> Any:
        if not self.settings.lab:
            return None
        from clusterctl.lab.record import read_record

        record = read_record(self.settings.home)
        if record is None:
            raise LabError("the local EC2 is not running", "start it: clusterctl lab start")
        return record

    def folder(self, name: str) -> ClusterFolder:
        """Return the local folder of cluster NAME, existing or not. Raises UsageError."""
        from clusterctl.domain.files import ClusterFolder

        return ClusterFolder(self.settings.home / check_cluster_name(name))

    def open(self, name: str) -> Access:
        """Return access to the running cluster NAME.

        Raises NoSuchCluster and the other errors of cluster_status and open_access.
        """
        status = self.status(name)
        output.findings(folded(status.findings))
        return self.access(status.cluster)

    def status(self, name: str) -> ClusterStatus:
        """Return a snapshot of cluster NAME. Raises NoSuchCluster, UsageError, AwsError.

        The cluster's files follow nodes whose addresses have changed.
        """
        from clusterctl.operations.local_state import follow_addresses, follow_members
        from clusterctl.operations.status import cluster_status

        found = cluster_status(self.clients, self.folder(name))
        files = (self.folder(name), self.proxy_command, found.leaving)
        if follow_addresses(found.cluster, *files):
            output.note(f"nodes of {name} have new addresses: ssh_config was written again")
        if follow_members(found.cluster, self.folder(name)):
            output.note(f"other nodes of {name} are in service now: hosts was written again")
        return found

    def access(self, cluster: Cluster) -> Access:
        """Return access to a cluster that EC2 has just described. Raises as open_access does, and
        MissingTool if the folder has the key of an earlier cluster of that name."""
        from clusterctl.node.untrusted import text_in
        from clusterctl.operations.access import open_access
        from clusterctl.operations.site import check_not_anothers
        from clusterctl.operations.status import Ec2Explanation

        self.ssh_user = cluster.ssh_user
        folder, explain = self.folder(cluster.name), Ec2Explanation(self.clients, cluster.name)
        known = text_in(folder.known_hosts)
        if not any(node.instance_id in known for node in cluster.nodes):
            # Nothing here is known of these machines.
            with suppress(AwsError):
                check_not_anothers(self.ec2, folder)
        access = open_access(cluster, folder, self.proxy_command, explain, self.timeouts)
        return replace(access, why_lost=explain.why_lost)


def cluster_named(name: str | None) -> str:
    """Return NAME. Raises UsageError without one, where no option takes its place."""
    if name is None:
        raise UsageError("which cluster?", "give its NAME")
    return name


def _lab_region(region: str) -> str:
    from clusterctl.lab.addresses import REGIONS

    if region not in REGIONS:
        raise UsageError(f"the local EC2 has no region {region}", f"it has {', '.join(REGIONS)}")
    return region


class ClusterName(click.ParamType):
    """The name of a cluster. Completion proposes those launched from this machine."""

    name = "text"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return completions(ctx, lambda: clusters_here(ctx.params), incomplete)


class ClusterCommand(click.Command):
    """A command for one cluster, NAME, which may be left out if this machine has only one.

    docs/clusters.md has the rule for users. The first word is NAME in three cases: a cluster here
    has that name; or there are more words than the other arguments take; or there are more words
    than they require, and the word can be a cluster's name (`2`, `~/data` and a node's name such as
    `demo-1` cannot). Otherwise NAME was left out. Words after `--` do not count if they are a
    program's (`runs_rest`).

    `explicit`: NAME cannot be left out; the error suggests the command line with it.
    `instead`: the parameters of options with each of which the command needs no cluster.
    """

    runs_rest = False

    def __init__(
        self, *args: Any, explicit: bool = False, instead: Sequence[str] = (), **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.explicit, self.instead = explicit, instead
        self._arguments = [one for one in self.params if isinstance(one, click.Argument)]
        self._arguments[0].type = ClusterName()
        self.params.sort(key=lambda one: one.name in ACCOUNT_PARAMETERS)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_cut = "--" in args and self.runs_rest
        before = args[: args.index("--")] if is_cut else args
        if not ctx.resilient_parsing and not set(ctx.help_option_names) & set(before):
            args = self._with_name(ctx, args, before)
        return super().parse_args(ctx, args)

    def _with_name(self, ctx: click.Context, args: list[str], before: list[str]) -> list[str]:
        """Return the words, with NAME in front if it was left out. `before`: those before `--`.

        Raises UsageError if it is not clear which cluster is meant.
        """
        options = [one for one in self.params if not isinstance(one, click.Argument)]
        parser = click.Command(None, params=options).make_parser(ctx)
        given, words, _ = parser.parse_args(list(before))
        rest = self._arguments[1:]
        fewest = sum(one.required for one in rest)
        fits = len(words) <= len(rest) or any(one.nargs < 0 for one in rest)
        may_name = not fits or (len(words) > fewest and _could_be_name(words[0]))
        if any(given.get(one) not in (None, False) for one in self.instead) or (
            words and (may_name or launched_here(words[0]))
        ):
            return args
        here = clusters_here(given)
        named = shlex.join([here[0] if len(here) == 1 else "NAME", *args])
        if self.explicit or len(here) != 1:
            if here:
                there = f"here {'is' if len(here) == 1 else 'are'} {', '.join(here)}"
            else:
                there = "there is none on this machine" + _elsewhere(given)
            hint = f"say its name: {ctx.command_path} {named}"
            instead = [one.opts[0] for one in options if one.name in self.instead]
            hint += f"; or give {' or '.join(instead)}" if instead else ""
            raise UsageError(f"which cluster? {there}", hint)
        output.note(f"cluster {here[0]}, the only one here")
        return [here[0], *args]


def _elsewhere(given: Mapping[str, Any]) -> str:
    """Return where clusters of this machine are that these options do not mean; may be empty."""
    others = clusters_launched()
    local = [one.name for one in others if in_lab(one)]
    if local and not given.get("lab"):
        return f" but on the local EC2, with --lab: {', '.join(local)}"
    names = ", ".join(one.name for one in others)
    return f" but in another place, or in one that is not known: {names}" if names else ""


def in_lab(folder: ClusterFolder) -> bool:
    """Return whether a cluster was launched in the local EC2, by its folder.

    One whose file cannot be read is not known to be: commands on it say so.
    """
    from clusterctl.operations.site import kept_site

    try:
        site = kept_site(folder)
    except ClusterctlError:
        return False
    return site is not None and site.endpoint.endswith(" at a local EC2")


def _could_be_name(word: str) -> bool:
    """Return whether the word is a valid cluster name, and no node's name here such as `demo-1`."""
    return is_cluster_name(word) and not launched_here(word.rpartition("-")[0])


def _complete_suggestions(context: click.Context) -> Callable[[str], str]:
    """Return a function that completes the commands that a text suggests.

    It inserts the options of `account_options` and the --prefix that the user typed, and the
    cluster's name where a command lacks it. A pasted command then means the same account, cluster
    and environment.
    """
    root, given = context.find_root().command, context.params
    typed = {"lab": {None: [], True: ["--lab"], False: ["--no-lab"]}[given["lab"]]}
    for option in ("region", "profile", "endpoint_url", "config", "prefix"):
        value = given.get(option)
        typed[option] = [f"--{option.replace('_', '-')}", str(value)] if value else []
    own, cluster = context.command, given.get("name")
    if isinstance(own, ClusterCommand) and any(given.get(one) for one in own.instead):
        cluster = None  # the word is a file, a folder or a job
    of_network = context.parent is not None and context.parent.info_name == "network"

    def complete(found: re.Match[str]) -> str:
        command, words, at = root, found[1].split(), 0
        while isinstance(command, click.Group) and at < len(words):
            inner = command.get_command(context, words[at])
            if inner is None:
                break
            command, at = inner, at + 1
        if isinstance(command, click.Group) or words[0] == "lab":
            return output.program + found[1]
        # NAME of `network up` is a network's, of all others a cluster's: never mix them.
        needs = isinstance(command, ClusterCommand) or any(
            one.name == "name" and one.required for one in command.params
        )
        # The rest of this suggestion: up to a backtick, `;`, a line's end or the next command.
        rest = re.split(r"[`;\n]|clusterctl ", found.string[found.end() :])[0].split()
        if isinstance(command, ClusterCommand) and command.instead:
            of = [one for one in command.params if one.name in command.instead]
            needs = not {*words, *rest} & {opt for one in of for opt in one.opts}
        if needs and cluster and of_network == (words[0] == "network"):
            if words[at : at + 1] in ([], ["NAME"]):
                words[at : at + 1] = [cluster]
            at += words[at] == cluster
        for parameter in command.params:
            option = typed.get(parameter.name or "", [])
            if option and option[0] not in rest:
                words[at:at] = [shlex.join(option)]
                at += 1
        return " ".join([output.program, *words])

    return lambda text: output.SUGGESTION.sub(complete, text)


# Statuses that say nothing about a path: success, Ctrl-C, a closed output, a silent host.
_WITHOUT_HINT = (None, 0, output.INTERRUPTED, output.BROKEN_PIPE_STATUS, 255)


def _unquoted(context: click.Context, app: AppContext, error: ClusterctlError | None = None) -> str:
    """Return the hint to quote a ~ if a path on the nodes is below the home folder here.

    The hint is empty if the error does not name the folder or has the hint already, and if the
    nodes' home folder has the same path.
    """
    home, user = str(Path.home()), app.ssh_user
    if error:
        found = [f"{one.message} {one.hint}" for one in getattr(error, "findings", ())]
        whole = " ".join([error.message, error.hint, *found])
        if home not in whole or "quote the ~" in whole:
            return ""
    if home == ("/root" if user == "root" else f"/home/{user}"):
        return ""
    words = context.meta.get(NODE_PATHS_KEY, ())
    return next(filter(None, (unquoted_home(word, home, option) for option, word in words)), "")


def account_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --lab, --region, --profile, --endpoint-url and --config; pass `app`, an AppContext.

    If the command has an argument `name`, that cluster's entry in clusterctl.yaml applies.
    """

    @functools.wraps(command)
    def wired(*args: Any, **kwargs: Any) -> Any:
        given = {name: kwargs.pop(name) for name in ACCOUNT_PARAMETERS}
        context = click.get_current_context()
        output.suggested = _complete_suggestions(context)
        for other in context.meta.get(NAMED_CLUSTERS_KEY, set()) - {kwargs.get("name")}:
            raise other_cluster(other, str(kwargs.get("name")))
        settings = load_settings(cluster=kwargs.get("name"), **cast("AccountFlags", given))
        app = AppContext(settings, timeouts_of(context))
        try:
            status = command(*args, app=app, **kwargs)
            hint = _unquoted(context, app) if status not in _WITHOUT_HINT else ""
            if hint:
                output.note(f"  hint: {hint}")
            return status
        except ClusterctlError as error:
            error.hint = "; or ".join(filter(None, [_unquoted(context, app, error), error.hint]))
            name = kwargs.get("name") if isinstance(context.command, ClusterCommand) else None
            # `lab env` exports the endpoint of the local EC2.
            endpoint = settings.endpoint_url or os.environ.get("AWS_ENDPOINT_URL")
            elsewhere = not (settings.lab or endpoint)
            if elsewhere and name and is_cluster_name(name) and in_lab(app.folder(name)):
                error.hint = f"cluster {name} is on the local EC2: add --lab"
            raise

    for option in reversed(_OPTIONS):
        wired = option(wired)
    return wired


def cluster_command(
    name: str | None = None,
    *,
    cls: type[ClusterCommand] = ClusterCommand,
    group: Any = click,
    required: bool = True,
    **more: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator of a command for a cluster: NAME comes first, and the options of
    `account_options` come last. `more` goes to `cls`."""

    def decorate(command: Callable[..., Any]) -> Any:
        named = click.argument("name", required=required)(account_options(command))
        return group.command(name, cls=cls, **more)(named)

    return decorate


nodes_option = click.option(
    "--nodes",
    "indices",
    type=Indices(),
    cls=SelectionOption,
    joins=True,
    help="Only these nodes: 0-3,5 or NAME-1.",
)


node_options = together(
    click.option("--head", is_flag=True, help="Only the head node."), nodes_option
)


def selected(access: Access, head: bool, indices: tuple[int, ...] | None) -> tuple[Target, ...]:
    """Return the targets that --head and --nodes select, by default all in service.

    Raises UsageError.
    """
    if head and indices is not None:
        raise UsageError("--head and --nodes exclude each other", "the head node is node 0")
    return access.select((0,) if head else indices)


def check_nodes(app: AppContext, name: str, indices: tuple[int, ...]) -> None:
    """Raise UsageError for indices of nodes that neither exist nor should. Queries EC2, no node.

    It accepts any index if the cluster does not exist: the command itself reports that.
    """
    from clusterctl.ec2.instances import unfinished_of, wanted_of
    from clusterctl.operations.status import find_own

    instances = find_own(app.clients, app.folder(name))
    there = {found.node.index for found in instances} | set(wanted_of(instances))
    if there:
        # A node whose removal is not finished may be named again, to finish it.
        check_indices(name, there, set(indices).difference(unfinished_of(instances).remove))
