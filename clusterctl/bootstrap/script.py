"""The script that makes one node part of its cluster. Pure; running it again changes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from clusterctl.bootstrap.inspection import MPI_KEY_COMMENT
from clusterctl.bootstrap.trust import (
    KNOWN_HOSTS,
    NodeIdentity,
    cluster_known_hosts,
    cluster_ssh_config,
    etc_hosts,
)

BEGIN = "# >>> clusterctl >>>"
END = "# <<< clusterctl <<<"

# without_block FILE: the file without our block. A block whose end is missing is left alone,
# since what follows it may be the user's.
_FUNCTIONS = f"""\
set -eu
umask 077
mkdir -p ~/.ssh
cd ~/.ssh
without_block() {{
    [ -f "$1" ] || return 0
    awk -v begin={shlex.quote(BEGIN)} -v end={shlex.quote(END)} '
        !inside && $0 == begin {{ inside = 1; kept = $0; next }}
        inside && $0 == begin {{ print kept; kept = $0; next }}
        inside {{ kept = kept "\\n" $0; if ($0 == end) inside = 0; next }}
        {{ print }}
        END {{ if (inside) print kept }}
    ' "$1"
}}
"""
# The head node's key, alone in its block: that of a head node that was replaced must not log in any
# more. Older versions wrote it as a line among the user's, known by its comment.
_AUTHORIZE = f"""\
touch authorized_keys
{{
    without_block authorized_keys | sed '/ {MPI_KEY_COMMENT}$/d'
    printf '%s' "$block"
}} >keys.clusterctl
mv keys.clusterctl authorized_keys
"""
# Not every login user may use sudo: the names are a convenience, addresses always work.
_ETC_HOSTS = """\
if names=$(without_block /etc/hosts; printf '%s' "$block") && [ -n "$names" ] &&
    [ "$names" != "$(cat /etc/hosts)" ]; then
    printf '%s\\n' "$names" | sudo -n tee /etc/hosts >/dev/null 2>&1 ||
        echo 'note /etc/hosts left alone: no sudo'
fi
"""
_CONFIG = """\
{ printf '%s' "$block"; without_block config; } >config.clusterctl
mv config.clusterctl config
"""


def node_script(members: Sequence[NodeIdentity], mpi_public_key: str, user: str, head: bool) -> str:
    """For `sh -s` on one node. `members` are all nodes, head first; the head also gets the way
    to the others."""
    key_line = f"{mpi_public_key}\n"
    script = [
        _FUNCTIONS,
        f"block={shlex.quote(_block(key_line))}\n",
        _AUTHORIZE,
        f"block={shlex.quote(_block(etc_hosts(members)))}\n",
        _ETC_HOSTS,
    ]
    if head:
        script += [
            f"printf '%s' {shlex.quote(cluster_known_hosts(members))} >{KNOWN_HOSTS}.new\n",
            f"mv {KNOWN_HOSTS}.new {KNOWN_HOSTS}\n",
            f"block={shlex.quote(_block(cluster_ssh_config(members, user)))}\n",
            _CONFIG,
        ]
    return "".join([*script, "echo complete\n"])


def _block(text: str) -> str:
    return f"{BEGIN}\n{text}{END}\n"
