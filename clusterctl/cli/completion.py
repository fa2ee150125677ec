"""`clusterctl completion SHELL`: the script that makes a shell complete our commands."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from clusterctl.cli import output

# All programs of this package that a person types (setup.cfg).
PROGRAMS = ("clusterctl", "cctl", "runclust", "copyclust")

SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice([*SHELLS]))
def completion(shell: str) -> None:
    """Print the script that makes SHELL complete clusterctl, cctl, runclust and copyclust.

    \b
    eval "$(clusterctl completion bash)"      # a line for ~/.bashrc
    eval "$(clusterctl completion zsh)"       # for ~/.zshrc, after compinit
    clusterctl completion fish | source       # for ~/.config/fish/config.fish

    Bash needs version 4.4 or newer. Tab proposes commands, options, instance types, and from
    ~/.clusterctl the names of clusters and nodes. Nothing queries AWS. A job's id is the only word
    for which the head node is queried, over SSH, for at most three seconds.
    """
    root = click.get_current_context().find_root().command
    for program in PROGRAMS:
        output.line(SHELLS[shell](root, {}, program, f"_{program.upper()}_COMPLETE").source())
