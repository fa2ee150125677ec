"""`clusterctl iam-policy`: the permissions that clusterctl and its nodes need."""

from __future__ import annotations

import click

from clusterctl.cli import output
from clusterctl.cli.params import json_option
from clusterctl.domain.errors import UsageError

WHO = ("operator", "roles", "network", "node")


@click.command("iam-policy")
@click.argument("who", type=click.Choice(WHO), required=False)
@click.option("--region", metavar="REGION", default="*", help="Only in this region.")
@click.option("--account", metavar="ID", default="*", help="Only in this account.")
@click.option("--node-role", metavar="ARN", help="The role that nodes may be given.")
@click.option(
    "--owner-tag",
    metavar="KEY=VALUE",
    help="Only clusters that carry this tag: `up --tag KEY=VALUE`.",
)
@click.option(
    "--data-bucket",
    metavar="BUCKET[/PREFIX]",
    multiple=True,
    help="What nodes may read in S3, '*' for every bucket; may be repeated.",
)
@click.option(
    "--checkpoint-prefix",
    metavar="BUCKET[/PREFIX]",
    multiple=True,
    help="Where nodes may write in S3; may be repeated.",
)
@click.option("--ssm", is_flag=True, help="Nodes may be reached through Systems Manager.")
@json_option("Policies")
def iam_policy(
    who: str | None,
    region: str,
    account: str,
    node_role: str | None,
    owner_tag: str | None,
    data_bucket: tuple[str, ...],
    checkpoint_prefix: tuple[str, ...],
    ssm: bool,
    as_json: bool,
) -> None:
    """Print the least that AWS has to allow, as JSON for `aws iam create-policy`.

    operator: whoever launches clusters. On top of that, roles: whoever gives them a role of their
    own, `up --instance-profile new`; network: whoever runs `clusterctl network`. node: the role of
    the nodes. Without a name: which actions those are, and what for.

    \b
    clusterctl iam-policy
    clusterctl iam-policy operator --node-role arn:aws:iam::123456789012:role/nodes
    clusterctl iam-policy roles
    clusterctl iam-policy operator --owner-tag owner=alice
    clusterctl iam-policy node --data-bucket my-data --checkpoint-prefix my-runs/checkpoints
    """
    from clusterctl.configuration.options import parse_tag
    from clusterctl.ec2.policy import (
        BOUNDARY,
        Bounds,
        network_policy,
        node_policy,
        operator_policy,
        roles_policy,
    )

    bounds = Bounds(region, account)
    owner = None if owner_tag is None else parse_tag(owner_tag)
    nodes_may = bool(data_bucket or checkpoint_prefix or ssm)
    for_users = {"--node-role": node_role, "--owner-tag": owner_tag}
    _check(
        who, as_json, [name for name, value in for_users.items() if value is not None], nodes_may
    )
    policies = {}
    if who in (None, "operator"):
        policies["operator"] = operator_policy(bounds, node_role, owner)
    if who in (None, "roles"):
        policies["roles"] = roles_policy(bounds, owner)
    if who in (None, "network"):
        policies["network"] = network_policy(bounds)
    if who == "node" or (who is None and nodes_may):
        policies["node"] = node_policy(bounds, data_bucket, checkpoint_prefix, ssm)
    if who is None and not as_json:
        _print_actions()
        return
    output.data(policies if who is None else policies[who])
    if who == "operator" and node_role is None:
        output.note(
            "no role may be given to nodes: --instance-profile NAME needs --node-role ARN here, "
            "--instance-profile new needs `clusterctl iam-policy roles` too"
        )
    if who == "roles":
        output.note(
            f"roles can be made within the policy {BOUNDARY} only. An administrator makes it, "
            f"`aws iam create-policy --policy-name {BOUNDARY} --policy-document file://nodes.json`"
            ", of what this prints: clusterctl iam-policy node --data-bucket BUCKET"
        )


def _check(who: str | None, as_json: bool, for_users: list[str], nodes_may: bool) -> None:
    """Raise UsageError for options that the requested policy would ignore."""
    if for_users and (
        who in ("network", "node") or (who == "roles" and "--node-role" in for_users)
    ):
        named = " and ".join(for_users)
        raise UsageError(f"for the operator's policy only: {named}", "leave it out")
    if nodes_may and who in ("operator", "roles", "network"):
        raise UsageError(
            "--data-bucket, --checkpoint-prefix and --ssm are for the nodes' policy",
            "clusterctl iam-policy node",
        )
    if who is None and not as_json and (for_users or nodes_may):
        raise UsageError("say whose policy", f"one of {', '.join(WHO)}, or --json for all")


def _print_actions() -> None:
    from clusterctl.ec2.policy import needed_actions, policy_data

    rows = [
        (action, who, one.purpose, policy_data()["scopes"][one.scope])
        for who in ("operator", "roles", "network")
        for one in needed_actions(who)
        for action in one.actions
    ]
    output.table(("ACTION", "WHO", "FOR", "LIMITED TO"), rows)
