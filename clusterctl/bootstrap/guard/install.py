"""The scripts that put the guard on a node. Pure: the same bytes for the same settings.

The program is started by cloud-init at every boot, and once when it is installed. Its parts lie
uncompressed in one zip file, so that whoever is root on a node can read what watches over it.
User data is short: there the program comes without its comments, which `up` brings later.
"""

from __future__ import annotations

import base64
import textwrap
import zlib

from clusterctl.node.guard.settings import GuardSettings
from clusterctl.node.packer import program_of

GUARD = program_of("clusterctl.node.guard.main")

_PLACES = """\
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
lib=/usr/local/lib/clusterctl kept=/var/lib/clusterctl boots=/var/lib/cloud/scripts/per-boot
id=$(cat /var/lib/cloud/data/instance-id 2>/dev/null)
"""
# A shell keeps the program running: it survives even `pkill -9 python`. It does nothing on a
# machine that was made from an image of this one.
BOOT_SCRIPT = (
    """\
#!/bin/sh
# Keeps the guard of this node running: clusterctl ends a cluster whose time is up from inside.
"""
    + _PLACES
    + """\
[ "$id" = "$(cat $kept/guard-instance 2>/dev/null)" ] || exit 0
if [ "$1" != stay ]; then
    cd / && setsid sh "$0" stay </dev/null >/dev/null 2>&1 &
    exit 0
fi
until python3 -IS $lib/guard run; do sleep 5; done
"""
)
_INSTALL = """\
install_guard() {
    umask 022
    mkdir -p $lib $kept $boots &&
    program | base64 -d | gzip -dc >$lib/guard.new &&
    settings >$kept/guard.json.new &&
    python3 -IS $lib/guard.new check $kept/guard.json.new || return 1
    # The state of another machine, of which an image was made.
    [ "$id" = "$(cat $kept/guard-instance 2>/dev/null)" ] || rm -f $kept/guard-*
    printf '%s\\n' "$id" >$kept/guard-instance &&
    if cmp -s $lib/guard.new $lib/guard; then rm $lib/guard.new
    else mv $lib/guard.new $lib/guard; fi &&
    mv $kept/guard.json.new $kept/guard.json &&
    boot >$boots/clusterctl-guard.new && chmod 755 $boots/clusterctl-guard.new &&
    mv $boots/clusterctl-guard.new $boots/clusterctl-guard &&
    $boots/clusterctl-guard
}
"""
# The program ends by itself once its settings say that there is nothing to guard.
_REMOVE = """\
rm -f $boots/clusterctl-guard $kept/guard-good.json
[ ! -e $kept ] || { settings >$kept/guard.json.new && mv $kept/guard.json.new $kept/guard.json; }
"""


def guard_script(settings: GuardSettings) -> str:
    """The user data script: the guard is armed even if nobody ever logs in."""
    return (
        f"#!/bin/sh\n# clusterctl's guard of the cluster {settings.cluster}.\n"
        + _PLACES
        + _functions(settings, GUARD.zipapp(comments=False))
        + _INSTALL
        + _or_without_python(settings)
    )


def guard_update_script(settings: GuardSettings) -> str:
    """For `sh -s` over SSH, as often as one likes: installs the guard, renews program and
    settings, or, where nothing is to be guarded any more, removes it. Prints `complete`.

    The login user needs `sudo -n`.
    """
    if settings.guards:
        do = _functions(settings, GUARD.zipapp()) + _INSTALL + "install_guard || exit 1\n"
    else:
        do = _prints("settings", settings.text()) + _REMOVE
    script = _PLACES + do + "echo complete\n"
    return (
        'as= && [ "$(id -u)" = 0 ] || as="sudo -n"\n'
        f"$as sh -s <<'CLUSTERCTL_GUARD'\n{script}CLUSTERCTL_GUARD\n"
    )


def _functions(settings: GuardSettings, program: bytes) -> str:
    """Each prints one file."""
    files = {"settings": settings.text(), "boot": BOOT_SCRIPT, "program": _packed(program)}
    return "".join(_prints(name, text) for name, text in files.items())


def _prints(name: str, text: str) -> str:
    return f"{name}() {{\ncat <<'END_OF_{name}'\n{text}END_OF_{name}\n}}\n"


def _packed(content: bytes) -> str:
    # As gzip packs, less its time stamp.
    packer = zlib.compressobj(9, wbits=31)
    packed = base64.b64encode(packer.compress(content) + packer.flush()).decode()
    return textwrap.fill(packed, 76) + "\n"


def _or_without_python(settings: GuardSettings) -> str:
    """A node on which the program does not run has the system's own timer until its next boot."""
    seconds = []
    if settings.lifetime_s is not None:
        seconds.append(f"{settings.lifetime_s:.0f}")
    if settings.ends_at is not None:
        seconds.append(f"$(({settings.ends_at:.0f} - $(date +%s)))")
    lines = ["install_guard && exit 0", "echo 'clusterctl: the guard could not be installed' >&2"]
    lines += [f'shutdown -P "+$(({one} / 60 + 1))"' for one in seconds[:1]]
    return "\n".join([*lines, "exit 1"]) + "\n"
