from __future__ import annotations

import base64
import gzip
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

import pytest

from clusterctl.domain.errors import LabError
from clusterctl.lab import lifecycle
from clusterctl.lab.hosts.userdata import UserData, decode
from tests.lab.running import ssh, wait_until

SCRIPT = b"#!/bin/sh\necho hello\n"


def script(content: bytes = SCRIPT) -> UserData:
    return UserData(files=(("instance/scripts/part-001", content),))


def mime(*parts: tuple[str, str, str]) -> bytes:
    """Return a MIME message of parts, each with its type, file name and text."""
    whole = MIMEMultipart()
    for kind, name, text in parts:
        part = MIMEText(text, kind)
        if name:
            part.add_header("Content-Disposition", "attachment", filename=name)
        whole.attach(part)
    return whole.as_bytes()


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", UserData()),
        (SCRIPT, script()),
        (gzip.compress(SCRIPT, mtime=0), script()),
        (base64.b64encode(gzip.compress(SCRIPT, mtime=0)) + b"\n", script()),
        (SCRIPT.replace(b"\n", b"\r\n"), script()),
        (
            b"#!/bin/sh\n\xff\xfe",
            UserData((("instance/scripts/part-001", b"#!/bin/sh\n\xff\xfe"),)),
        ),
        (b"#cloud-boothook\n" + SCRIPT, UserData((("instance/boothooks/part-001", SCRIPT),))),
    ],
)
def test_the_format_of_user_data_is_recognised(raw, expected):
    assert decode(raw) == expected


@pytest.mark.parametrize(
    ("parts", "files"),
    [
        ([], []),
        (
            [("x-shellscript", "", "a"), ("plain", "", "#!b"), ("x-shellscript", "c.sh", "c")],
            [
                ("instance/scripts/part-001", b"a"),
                ("instance/scripts/part-002", b"#!b"),
                ("instance/scripts/c.sh", b"c"),
            ],
        ),
        (
            [("cloud-boothook", "", "#cloud-boothook\n#!a"), ("x-shellscript-per-boot", "b", "b")],
            [("instance/boothooks/part-001", b"#!a"), ("scripts/per-boot/b", b"b")],
        ),
        # The file name is untrusted: the file stays in its folder.
        ([("x-shellscript", "../../etc/x", "a")], [("instance/scripts/.._.._etc_x", b"a")]),
        ([("x-shellscript", "\u00e4 $(x)\n", "a")], [("instance/scripts/(x)", b"a")]),
        (
            [("x-shellscript", "a", "1"), ("x-shellscript", "a", "2")],
            [("instance/scripts/a", b"2")],
        ),
    ],
)
def test_the_parts_of_a_message(parts, files):
    assert decode(mime(*parts)) == UserData(tuple(files))


def test_nested_parts_are_found():
    inner, outer = MIMEMultipart(), MIMEMultipart()
    inner.attach(MIMEText("a", "x-shellscript"))
    outer.attach(MIMEText("b", "x-shellscript"))
    outer.attach(inner)
    names = [path for path, _ in decode(gzip.compress(outer.as_bytes())).files]
    assert names == ["instance/scripts/part-001", "instance/scripts/part-002"]


def test_a_part_that_the_lab_cannot_run_keeps_no_other_from_running():
    decoded = decode(mime(("x-odd", "", "packages: []"), ("x-shellscript", "", "a")))
    assert decoded.files == (("instance/scripts/part-002", b"a"),)
    assert "'text/x-odd'" in decoded.problem


def test_what_the_lab_does_of_a_cloud_config_becomes_scripts():
    decoded = decode(
        b"#cloud-config\n"
        b"users: [default, {name: a b, groups: 'x, y', ssh_authorized_keys: [ssh-rsa k]}]\n"
        b"ssh_authorized_keys: [ssh-rsa o]\n"
        b"write_files: [{path: /e/f, content: aGk=, encoding: b64, permissions: '0600'}]\n"
        b"runcmd: [echo $HOME, [echo, $HOME]]\n"
    )
    hook, script = (dict(decoded.files)[f"instance/{name}"].decode() for name in SCRIPTS)
    assert hook.splitlines()[2:] == [
        "add_file /e/f aGk= 0600 root:root ''",
        "add_user 'a b' /bin/sh",
        "add_group 'a b' x",
        "add_group 'a b' y",
        "add_key 'a b' 'ssh-rsa k'",
        "add_key ubuntu 'ssh-rsa o'",
    ]
    assert script == "#!/bin/sh\necho $HOME\necho '$HOME'\n"
    assert decoded.problem == ""


def test_what_it_does_not_do_is_named():
    decoded = decode(b"#cloud-config\npackages: [jq]\nruncmd: [id]\n")
    assert len(decoded.files) == 2
    assert decoded.problem.endswith("of #cloud-config, not packages")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"#cloud-config\n: [", "the #cloud-config is not valid"),
        (b"#cloud-config\nwrite_files: [{content: a}]", "the #cloud-config is not valid: 'path'"),
        (b"#cloud-config\n- a", "no mapping"),
        # Like cloud-init: without MIME-Version it is no message.
        (b"Content-Type: multipart/mixed", "'Content-Type: multipart/mixed'"),
        (gzip.compress(SCRIPT, mtime=0)[:-9], "not valid gzip"),
    ],
)
def test_what_the_lab_cannot_run_is_said(raw, said):
    decoded = decode(raw)
    assert decoded.files == ()
    assert said in decoded.problem


def nested(depth: int) -> bytes:
    """Return messages nested thousands of levels deep: packed, they fit into 16 KiB."""
    heads = (b"Content-Type: multipart/mixed; boundary=%d\n\n--%d\n" % (n, n) for n in range(depth))
    return gzip.compress(b"MIME-Version: 1.0\n" + b"".join(heads), mtime=0)


def bomb() -> bytes:
    """Return 200 parts in a few KiB, each of 12 MiB when unpacked."""
    part = base64.b64encode(gzip.compress(bytes(12 * 2**20))).decode()
    text = "--b\nContent-Type: text/x-shellscript\nContent-Transfer-Encoding: base64\n\n"
    head = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n"
    return gzip.compress((head + f"{text}{part}\n" * 200).encode(), mtime=0)


@pytest.mark.parametrize(
    "raw", [nested(3000), bomb(), gzip.compress(bytes(17 * 2**20))], ids=["deep", "parts", "whole"]
)
def test_what_a_launch_may_not_take_is_refused(raw):
    assert len(raw) < 20_000
    with pytest.raises(LabError, match="nested too deeply|inflates to more than 16 MiB"):
        decode(raw)


SCRIPTS = ("boothooks/cloud-config", "scripts/runcmd")


@pytest.mark.lab
def test_a_launch_that_cannot_be_understood_ends_that_instance_only(instances, lab):
    good, bad = (
        instances.request(UserData=data)[0]["InstanceId"] for data in (SCRIPT, nested(3000))
    )
    instances.in_state(bad, "terminated")
    reason = instances.see(bad)["StateReason"]
    assert reason["Code"] == "Server.InternalError"
    assert "nested too deeply" in reason["Message"]
    told = {one["instance_id"]: one["problem"] for one in lifecycle.instances(lab)}
    assert "nested too deeply" in told[bad]
    instances.reachable(good)


PER_BOOT = """#!/bin/sh
echo per-boot as $(id -un)
echo boot >>/home/ubuntu/boots
(sleep 1000 &)
"""
HOOK = "#!/bin/sh\nls /run/sshd.pid 2>&1; echo hook of $INSTANCE_ID >>/home/ubuntu/hooks\n"


@pytest.mark.lab
def test_parts_run_in_cloud_inits_order(instances, lab):
    """Each boot runs hooks, then per-boot scripts. The first boot then runs the user's scripts."""
    data = mime(
        ("x-shellscript", "zz-last", "#!/bin/sh\necho last\n"),
        ("x-shellscript-per-boot", "watch", PER_BOOT),
        ("cloud-boothook", "hook", HOOK),
        ("x-shellscript", "01-first", "#!/bin/sh\necho first\nexit 7\n"),
    )
    one = instances.up(UserData=data)[0]
    id = one["InstanceId"]
    instances.console(id)
    done = ssh(lab, instances.key, one["PrivateIpAddress"], "cloud-init status --wait --long")
    assert done.returncode == 1
    assert "01-first ended with exit status 7" in done.stdout
    user = "ubuntu" if lab.mode == "single" else "root"
    log = instances.run(one, "cat /var/log/cloud-init-output.log").splitlines()
    assert log[-3:] == [f"per-boot as {user}", "first", "last"]
    assert instances.run(one, "cat /var/lib/cloud/data/instance-id hooks") == f"{id}\nhook of {id}"
    assert instances.run(one, "pgrep -cx sleep") == "1"

    instances.ec2.reboot_instances(InstanceIds=[id])
    instances.reachable(id)
    wait_until(lambda: instances.run(one, "cat boots").split() == ["boot"] * 2, "scripts per boot")
    assert instances.run(one, "wc -l <hooks") == "2"
    assert instances.run(one, "pgrep -cx sleep") == "1"
    assert instances.run(one, "grep -c ^first /var/log/cloud-init-output.log") == "1"


@pytest.mark.lab
@pytest.mark.all
def test_a_shutdown_is_scheduled_seen_and_cancelled(instances, lab):
    one = instances.up()[0]
    root = "" if lab.mode == "single" else "sudo "
    scheduled = "cat /run/systemd/shutdown/scheduled"
    said = instances.run(one, f"{root}shutdown -P +5 going home 2>&1")
    assert said.startswith("Shutdown scheduled for ")
    shown = dict(line.split("=", 1) for line in instances.run(one, scheduled).splitlines())
    now = int(instances.run(one, "date +%s"))
    assert 200 < int(shown["USEC"]) // 1_000_000 - now <= 300
    assert (shown["MODE"], shown["WALL_MESSAGE"]) == ("poweroff", "going home")
    instances.run(one, f"{root}shutdown -r 23:59")
    assert "MODE=reboot" in instances.run(one, scheduled)
    instances.run(one, f"{root}shutdown -c")
    assert ssh(lab, instances.key, one["PrivateIpAddress"], scheduled).returncode == 1
    wrong = ssh(lab, instances.key, one["PrivateIpAddress"], f"{root}shutdown -P later")
    assert (wrong.returncode, "later" in wrong.stderr) == (1, True)
    ssh(lab, instances.key, one["PrivateIpAddress"], f"{root}shutdown -P now 'the time is up'")
    instances.in_state(one["InstanceId"], "stopped")
