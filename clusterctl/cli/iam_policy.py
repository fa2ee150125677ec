"""`clusterctl iam-policy`: the permissions that clusterctl and its nodes need."""

from __future__ import annotations

import click

from clusterctl.cli import output
from clusterctl.domain.errors import UsageError

WHO = ("operator", "network", "node")


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
@click.option("--data-bucket", metavar="BUCKET[/PREFIX]", help="What nodes may read in S3.")
@click.option("--checkpoint-prefix", metavar="BUCKET[/PREFIX]", help="Where nodes may write in S3.")
@click.option("--ssm", is_flag=True, help="Nodes may be reached through Systems Manager.")
@click.option("--json", "as_json", is_flag=True, help="All policies as one JSON object.")
def iam_policy(
    who: str | None,
    region: str,
    account: str,
    node_role: str | None,
    owner_tag: str | None,
    data_bucket: str | None,
    checkpoint_prefix: str | None,
    ssm: bool,
    as_json: bool,
) -> None:
    """Print the least that AWS has to allow, as JSON for `aws iam create-policy`.

    operator: whoever launches clusters. network: on top of that, whoever runs `clusterctl
    network`. node: the role of the nodes. Without a name: which actions those are, and what for.

    \b
    clusterctl iam-policy
    clusterctl iam-policy operator --node-role arn:aws:iam::123456789012:role/nodes
    clusterctl iam-policy operator --owner-tag owner=alice
    clusterctl iam-policy node --data-bucket my-data --checkpoint-prefix my-runs/checkpoints
    """
    from clusterctl.configuration.options import parse_tag
    from clusterctl.ec2.policy import Bounds, network_policy, node_policy, operator_policy

    bounds = Bounds(region, account)
    owner = None if owner_tag is None else parse_tag(owner_tag)
    nodes_may = data_bucket is not None or checkpoint_prefix is not None or ssm
    for_operator = {"--node-role": node_role, "--owner-tag": owner_tag}
    _check(
        who, as_json, [name for name, value in for_operator.items() if value is not None], nodes_may
    )
    policies = {}
    if who in (None, "operator"):
        policies["operator"] = operator_policy(bounds, node_role, owner)
    if who in (None, "network"):
        policies["network"] = network_policy(bounds)
    if who == "node" or (who is None and nodes_may):
        policies["node"] = node_policy(bounds, data_bucket, checkpoint_prefix, ssm)
    if who is None and not as_json:
        _print_actions()
        return
    output.data(policies if who is None else policies[who])
    if who == "operator" and node_role is None:
        output.note("no role may be given to nodes: --instance-profile needs --node-role ARN here")


def _check(who: str | None, as_json: bool, for_operator: list[str], nodes_may: bool) -> None:
    """Raise UsageError for options that the policy asked for would ignore."""
    if for_operator and who in ("network", "node"):
        named = " and ".join(for_operator)
        raise UsageError(f"for the operator's policy only: {named}", "leave it out")
    if nodes_may and who in ("operator", "network"):
        raise UsageError(
            "--data-bucket, --checkpoint-prefix and --ssm are for the nodes' policy",
            "clusterctl iam-policy node",
        )
    if who is None and not as_json and (for_operator or nodes_may):
        raise UsageError("say whose policy", f"one of {', '.join(WHO)}, or --json for all")


def _print_actions() -> None:
    from clusterctl.ec2.policy_actions import NETWORK, OPERATOR

    rows = [
        (action, who, purpose, scope.value)
        for who, table in (("operator", OPERATOR), ("network", NETWORK))
        for purpose, scope, actions in table
        for action in actions
    ]
    output.table(("ACTION", "WHO", "FOR", "LIMITED TO"), rows)
