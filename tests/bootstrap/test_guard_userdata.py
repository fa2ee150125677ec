"""The guard in the user data, together with the user's own data, as cloud-init reads it."""

from __future__ import annotations

import base64
import email
import gzip
import os
import subprocess
from dataclasses import replace

import pytest

from clusterctl.bootstrap.guard import (
    guard_script,
    guard_update_script,
    guard_user_data,
    with_guard,
)
from clusterctl.domain.cluster import USER_DATA_BYTES
from clusterctl.domain.errors import UsageError
from clusterctl.node.guard.settings import GuardSettings

SETTINGS = GuardSettings("demo", lifetime_s=28800)
OFF = GuardSettings("demo")
MULTIPART = b"""Content-Type: multipart/mixed; boundary="==B=="
MIME-Version: 1.0

--==B==
Content-Type: text/cloud-config; charset="us-ascii"

#cloud-config
packages: [htop]
--==B==
Content-Type: text/x-shellscript; charset="us-ascii"
Content-Disposition: attachment; filename="mine.sh"

#!/bin/sh
echo mine
--==B==--
"""


def parts(user_data: bytes) -> list[tuple[str, bytes, str | None]]:
    """Return (type, content, file name) of each part, as cloud-init splits user data."""
    if user_data.startswith(b"\x1f\x8b"):
        user_data = gzip.decompress(user_data)
    assert b"mime-version:" in user_data[:4096].lower()
    found = []
    for part in email.message_from_string(user_data.decode()).walk():
        if part.get_content_maintype() != "multipart":
            content = part.get_payload(decode=True)
            found.append((part.get_content_type(), content, part.get_filename()))
    return found


OWN = {
    "a script": (b"#!/bin/bash\necho hi\n", "text/x-shellscript"),
    "no newline at the end": (b"#!/bin/sh\necho hi", "text/x-shellscript"),
    "carriage returns": (b"#!/bin/sh\r\necho hi\r\n", "text/x-shellscript"),
    "cloud-config": (b"#cloud-config\npackages: [htop]\n", "text/cloud-config"),
    "an archive": (b"#cloud-config-archive\n- x\n", "text/cloud-config-archive"),
    "a boothook": (b"#cloud-boothook\n#!/bin/sh\n", "text/cloud-boothook"),
    "includes": (b"#include\nhttps://example.com/a\n", "text/x-include-url"),
    "a template": (b"## template: jinja\n#cloud-config\n", "text/jinja2"),
    "a part handler": (b"#part-handler\n", "text/part-handler"),
    "anything else": (b"hello", "text/plain"),
    "other letters": ("#!/bin/sh\necho 'Grüße \N{SNOWMAN}'\n".encode(), "text/x-shellscript"),
    "no text at all": (b"#!/bin/sh\n\xff\xfe\x00", "text/x-shellscript"),
    "boundaries": (b"#!/bin/sh\n--clusterctl-\n----\n", "text/x-shellscript"),
    "a mail": (b"#!/bin/sh\nmail <<E\nFrom me\n\n.\nE\n", "text/x-shellscript"),
}


@pytest.mark.parametrize(("own", "kind"), OWN.values(), ids=OWN)
@pytest.mark.parametrize("given", [bytes, gzip.compress, base64.b64encode])
def test_the_users_own_stays(own, kind, given):
    ours, theirs = parts(with_guard(given(own), SETTINGS))
    assert ours == ("text/x-shellscript", guard_script(SETTINGS).encode(), "00-clusterctl-guard")
    assert theirs == (kind, own, None)


def test_a_multipart_of_the_users_stays():
    ours, *theirs = parts(with_guard(MULTIPART, SETTINGS))
    assert with_guard(MULTIPART, SETTINGS) == with_guard(MULTIPART, SETTINGS)
    assert ours[2] == "00-clusterctl-guard"
    assert theirs == [
        ("text/cloud-config", b"#cloud-config\npackages: [htop]", None),
        ("text/x-shellscript", b"#!/bin/sh\necho mine", "mine.sh"),
    ]


@pytest.mark.parametrize("own", [b"", MULTIPART, *(own for own, _ in OWN.values())])
def test_a_node_that_joins_gets_the_present_limits_in_place_of_those_of_the_first_launch(own):
    now = replace(SETTINGS, lifetime_s=60.0)
    assert with_guard(with_guard(own, SETTINGS), now) == with_guard(own, now)


@pytest.mark.parametrize("nothing", [b"", b" \n", gzip.compress(b"\n", mtime=0)])
def test_without_any_of_the_users(nothing):
    assert with_guard(nothing, SETTINGS) == guard_user_data(SETTINGS)


@pytest.mark.parametrize("own", [b"", b"#!/bin/sh\n", b"\x1f\x8bbroken", b"x" * 20_000])
def test_nothing_to_guard_leaves_it_alone(own):
    assert with_guard(own, OFF) == own


def test_what_does_not_fit_beside_a_script_of_the_users_is_refused():
    own = b"#!/bin/sh\n" + base64.b64encode(os.urandom(2200))
    made = with_guard(own, SETTINGS)
    assert len(made) <= USER_DATA_BYTES
    assert parts(made)[1][1] == own
    with pytest.raises(UsageError, match="does not fit"):
        with_guard(b"#!/bin/sh\n" + base64.b64encode(os.urandom(12_000)), SETTINGS)


@pytest.mark.parametrize(
    "own",
    [
        b"\x1f\x8b\x08\x00broken",
        gzip.compress(b"#!/bin/sh\n", mtime=0)[:-6],
        gzip.compress(b"#" * 5_000_000, mtime=0),
    ],
)
def test_what_cannot_be_read_is_refused(own):
    with pytest.raises(UsageError):
        with_guard(own, SETTINGS)


@pytest.mark.parametrize(
    ("script", "settings"),
    [(guard_script, SETTINGS), (guard_update_script, SETTINGS), (guard_update_script, OFF)],
    ids=["user data", "update", "removal"],
)
def test_a_plain_shell_reads_it(script, settings):
    text = script(settings)
    done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_failed_installation_leaves_no_drafts(tmp_path):
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    text = guard_update_script(SETTINGS).replace('"sudo -n"', "")
    for folder in ("/usr/local/lib/clusterctl", "/var/lib"):
        text = text.replace(folder, str(tmp_path / "node"))
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh"], input=text, env=environ, check=False, text=True)
    assert done.returncode
    assert [path for path in (tmp_path / "node").rglob("*") if path.is_file()] == []


def test_the_removal_whole():
    assert guard_update_script(OFF) == (
        'as= && [ "$(id -u)" = 0 ] || as="sudo -n"\n'
        "$as sh -s <<'CLUSTERCTL_GUARD'\n"
        "PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        "lib=/usr/local/lib/clusterctl kept=/var/lib/clusterctl"
        " boots=/var/lib/cloud/scripts/per-boot\n"
        "id=$(cat /var/lib/cloud/data/instance-id 2>/dev/null)\n"
        "settings() {\n"
        "cat <<'END_OF_settings'\n"
        '{\n "cluster": "demo"\n}\n'
        "END_OF_settings\n"
        "}\n"
        "rm -f $boots/clusterctl-guard $kept/guard-good.json\n"
        "[ ! -e $kept ] || { settings >$kept/json.$$ &&"
        " mv $kept/json.$$ $kept/guard.json; }\n"
        "echo complete\n"
        "CLUSTERCTL_GUARD\n"
    )
