"""Host keys from consoles, in the format that machines print, and from Systems Manager."""

from __future__ import annotations

import base64
import struct

import boto3
import pytest
from botocore.stub import Stubber

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.host_keys import (
    AT_ONCE,
    COMMAND,
    DOCUMENT,
    NOT_MANAGED,
    PER_S,
    Consoles,
    ask_host_keys,
    parse_host_keys,
)
from tests.clock import FakeClock
from tests.ec2.launching import refused

ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGpKsSb4iRTaMhcPcU3cYKcwWxW8oXhGJFRSgkE3Jd2k"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAMurDY1ljmtMV8d9sHhDgH0pT0Yc3bMgmu0NGQ2vkuA"
ECDSA = (
    "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZMy7"
    "opKgwFB9nkt5YRrYMjNuG5N87uRgg6CLrbo5wAdT/y6v0mKV0U2w0WZ2YB/++Tpockg="
)
BEGIN = "-----BEGIN SSH HOST KEY KEYS-----"
END = "-----END SSH HOST KEY KEYS-----"


def console(*keys: str, prefix: str = "", eol: str = "\n") -> str:
    lines = [
        "[    0.000000] Linux version 6.8.0-1021-aws",
        f"{prefix}-----BEGIN SSH HOST KEY FINGERPRINTS-----",
        f"{prefix}256 SHA256:XoZSh7Ib6rPYYLNGfmyGzZqRqXHj0 root@ip-10-0-0-4 (ED25519)",
        f"{prefix}-----END SSH HOST KEY FINGERPRINTS-----",
        f"{prefix}{BEGIN}",
        *[f"{prefix}{key} root@ip-10-0-0-4" for key in keys],
        f"{prefix}{END}",
        "[   21.3] cloud-init[1201]: Cloud-init v. 24.4 finished",
    ]
    return eol.join(lines) + eol


@pytest.mark.parametrize("eol", ["\n", "\r\n", "\r\r\n"])
@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "ec2: ",
        "<14>Oct 27 12:00:01 ec2: ",
        "[   12.345678] cloud-init[1]: ",
        "\x1b[0;32m  OK  \x1b[0m ",
        "ünïcödé: ",
    ],
)
def test_prefixes_and_line_ends(prefix, eol):
    assert parse_host_keys(console(ED25519, ECDSA, prefix=prefix, eol=eol)) == (ED25519, ECDSA)


def test_cut_off_anywhere_gives_all_keys_or_none():
    text = console(ED25519, ECDSA)
    places = range(len(text) + 1)
    for answers in (
        {parse_host_keys(text[:end]) for end in places},
        {parse_host_keys(text[start:]) for start in places},
    ):
        assert answers == {(), (ED25519, ECDSA)}


def key(kind: str, *fields: bytes) -> str:
    blob = b"".join(struct.pack(">I", len(field)) + field for field in (kind.encode(), *fields))
    return f"{kind} {base64.b64encode(blob).decode()}"


KERNEL = "[   21.734211] nvidia: loading out-of-tree module taints kernel."
WHOLE = console(ED25519, ECDSA)
HALF = len(ED25519) // 2
# EC2 keeps only the last 64 KiB, which here start within the first key.
CUT = (KERNEL + "\n") * 900 + WHOLE


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        pytest.param(f"{OTHER} before\n{WHOLE}{OTHER} after\n", (ED25519, ECDSA), id="around it"),
        pytest.param(
            console(ED25519) + f"{BEGIN}\n{OTHER}\n", (ED25519,), id="a second block under way"
        ),
        pytest.param(console(ED25519, ED25519), (ED25519,), id="a key printed twice"),
        pytest.param(CUT[CUT.index(ED25519) + 9 :][-65536:], (), id="64 KiB cut in the block"),
        pytest.param(CUT[-65536:], (ED25519, ECDSA), id="64 KiB cut before the block"),
        pytest.param(console(f"{ED25519}\n{KERNEL}\n{ECDSA}"), (ED25519, ECDSA),
            id="the kernel between two keys"),
        pytest.param(console(f"{ED25519[:HALF]}\r\n{KERNEL}\r\n{ED25519[HALF:]}", ECDSA), (ECDSA,),
            id="the kernel within a key"),
        pytest.param(WHOLE.replace(BEGIN, BEGIN[:20] + KERNEL + BEGIN[20:]), (),
            id="the kernel within the marker"),
        pytest.param(console(OTHER).partition(END)[0] + WHOLE, (ED25519, ECDSA),
            id="a boot that was cut short, then another"),
        pytest.param(console(OTHER) + WHOLE, (ED25519, ECDSA), id="two boots"),
        pytest.param(console(OTHER) + console(""), (), id="two boots, no key in the last"),
        pytest.param(f"{BEGIN}\n{ED25519}\n{END}\n{OTHER}\n{END}\n", (ED25519,), id="two ends"),
        pytest.param(console(ED25519, eol="\r"), (ED25519,), id="CR alone"),
        pytest.param("\x00\ufffd\x1b[2J" * 999 + console(f"\x00{ED25519}\x00", prefix="\ufffd\x07"),
            (ED25519,), id="binary junk"),
        pytest.param(
            console(
                "ssh-dss AAAAB3NzaC1kc3MAAAABAQ==",
                key("sk-ssh-ed25519@openssh.com", b"k" * 32, b"ssh:"),
                key("sk-ecdsa-sha2-nistp256@openssh.com", b"nistp256", b"\x04" * 65, b"ssh:"),
                key("ssh-ed25519-cert-v01@openssh.com", b"n" * 32, b"k" * 32),
                ECDSA,
            ),
            (ECDSA,),
            id="keys of types that no host shows",
        ),
        pytest.param(
            console(
                ED25519[:-1],
                ED25519[:40],
                ED25519.replace("ssh-ed25519", "ssh-rsa"),
                "ssh-ed25519 AAAA",
                "",
                f"sk-{ED25519}",
                f"x@{ED25519}",
                key("ssh-ed25519", b"k" * 31),
                key("ssh-ed25519", b"k" * 32, b""),
                key("ssh-rsa", b"\x01\x00\x01", b"\x00" * 64),
                key("ssh-rsa", b"", b"\xff" * 257),
                key("ecdsa-sha2-nistp256", b"nistp384", b"\x04" * 65),
                key("ecdsa-sha2-nistp256", b"nistp256", b"\x04" * 64),
                key("ecdsa-sha2-nistp256", b"nistp256", b"\x02" * 65),
                key("ecdsa-sha2-nistp256"),
                key("ssh-ed25519").replace("ssh-ed25519 ", "ssh-rsa "),
                ECDSA,
            ),
            (ECDSA,),
            id="keys that are none",
        ),
    ],
)  # fmt: skip
def test_hostile_consoles(text, keys):
    assert parse_host_keys(text) == keys


class Answers:
    """GetConsoleOutput of an instance that supports `Latest`, or of one that does not (Xen)."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def get_console_output(self, **arguments):
        self.asked.append(arguments)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return {"Output": answer} if answer else {}
        raise answer


@pytest.mark.parametrize(
    ("answers", "texts", "latest"),
    [
        (["now", "then"], ["now", "then"], [True, True]),
        ([refused("UnsupportedOperation"), "older", "old"], ["older", "old"], [True, False, False]),
        # The older console may be of another boot.
        (["", "older", "now"], ["", "older", "now"], [True, False, True]),
        (["", "", "now"], ["", "", "now"], [True, False, True]),
        ([refused("RequestLimitExceeded"), "now"], ["", "now"], [True, True]),
        ([refused("InvalidInstanceID.NotFound"), "now"], ["", "now"], [True, True]),
    ],
)
def test_each_look_is_one_request_for_the_console_that_there_is(answers, texts, latest):
    client = Answers(*answers)
    consoles = Consoles(client)
    assert [consoles.read("i-1") for _ in texts] == texts
    assert [asked.get("Latest", False) for asked in client.asked] == latest


def test_256_nodes_look_at_one_pace_and_in_order():
    now = [0.0]
    consoles = Consoles(Answers(), clock=lambda: now[0])
    turns = [consoles.turn_s() for _ in range(256)]
    assert turns[:AT_ONCE] == [0.0] * AT_ONCE
    assert turns == sorted(turns)
    assert turns[-1] == pytest.approx((256 - AT_ONCE) / PER_S)
    # Unused requests do not add up beyond the limit.
    now[0] = 3600.0
    assert [consoles.turn_s() for _ in range(AT_ONCE + 1)][-2:] == [0.0, pytest.approx(1 / PER_S)]


def test_not_being_allowed_to_see_it_is_an_error():
    with pytest.raises(AwsError):
        Consoles(Answers(refused("UnauthorizedOperation"))).read("i-1")


ID = "00000000-0000-4000-8000-{:012}"


def invocation(instance_id, output="", status="Success", details=None):
    return {
        "InstanceId": instance_id,
        "Status": status,
        "StatusDetails": details or status,
        "CommandPlugins": [{"Name": "aws:runShellScript", "Output": output}],
    }


class Agents:
    """Systems Manager with prepared answers, in order. It checks the requests."""

    def __init__(self):
        self.client = boto3.client(
            "ssm", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
        )
        self.stub = Stubber(self.client)
        self.commands = 0

    def online(self, ids, online=None, status="Online"):
        entries = [
            {"InstanceId": one, "PingStatus": status} for one in (ids if online is None else online)
        ]
        self.stub.add_response(
            "describe_instance_information",
            {"InstanceInformationList": entries},
            {"Filters": [{"Key": "InstanceIds", "Values": list(ids)}], "MaxResults": 50},
        )

    def sent(self, ids):
        self.commands += 1
        self.stub.add_response(
            "send_command",
            {"Command": {"CommandId": ID.format(self.commands)}},
            {
                "InstanceIds": list(ids),
                "DocumentName": DOCUMENT,
                "Comment": "clusterctl: host keys",
                "TimeoutSeconds": 30,
                "Parameters": {"commands": [COMMAND]},
            },
        )

    def answered(self, *invocations, token=None, after=None):
        question = {"CommandId": ID.format(self.commands), "Details": True, "MaxResults": 50}
        page = {"CommandInvocations": list(invocations)}
        self.stub.add_response(
            "list_command_invocations",
            {**page, **({"NextToken": token} if token else {})},
            {**question, **({"NextToken": after} if after else {})},
        )

    def ask(self, ids, within_s=60.0):
        with self.stub:
            answers = ask_host_keys(self.client, ids, within_s, FakeClock())
            self.stub.assert_no_pending_responses()
        return answers


@pytest.fixture
def agents():
    return Agents()


INSTANCES = [f"i-{number:017x}" for number in range(120)]
A, B, C = INSTANCES[:3]


def test_answers_come_late_and_on_pages(agents):
    agents.online([A, B])
    agents.sent([A, B])
    agents.answered()
    agents.answered(invocation(A, status="InProgress"), invocation(B, status="Pending"))
    agents.answered(invocation(A, ED25519), token="more")
    agents.answered(invocation(B, status="InProgress"), after="more")
    agents.answered(invocation(A, ED25519), invocation(B, ECDSA))
    assert agents.ask([A, B]).keys == {A: (ED25519,), B: (ECDSA,)}


def test_more_nodes_than_a_call_takes(agents):
    ids = INSTANCES
    for group in (ids[:50], ids[50:100], ids[100:]):
        agents.online(group)
        agents.sent(group)
        agents.answered(*(invocation(one, ED25519) for one in group))
    assert set(agents.ask(ids).keys) == set(ids)


def test_a_node_without_an_agent_hides_no_other(agents):
    agents.online([A, B, C], online=[B])
    agents.sent([B])
    agents.answered(invocation(B, f"{ECDSA} root@b\n{ED25519}\n"))
    answers = agents.ask([A, B, C])
    assert answers.keys == {B: (ECDSA, ED25519)}
    assert answers.reasons == {A: NOT_MANAGED, C: NOT_MANAGED}
    agents.online([A], status="ConnectionLost")
    assert agents.ask([A]).reasons == {A: NOT_MANAGED}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (invocation(A), "sent no host key"),
        (invocation(A, "cat: /etc/ssh/ssh_host_*_key.pub: No such file"), "sent no host key"),
        (invocation(A, ED25519[:-9]), "sent no host key"),
        (invocation(A, status="InProgress"), "not answered in time"),
        (invocation(A, status="Failed"), "could not read them: Failed"),
        (invocation(A, status="TimedOut", details="DeliveryTimedOut"), "DeliveryTimedOut"),
        (invocation(A, status="Cancelled"), "Cancelled"),
        ({"InstanceId": A, "Status": "Success"}, "sent no host key"),
    ],
)
def test_an_agent_that_fails(agents, said, reason):
    agents.online([A])
    agents.sent([A])
    agents.answered(said)
    answers = agents.ask([A], within_s=0.0)
    assert answers.keys == {}
    assert reason in answers.reasons[A]


@pytest.mark.parametrize("call", ["describe_instance_information", "send_command"])
def test_what_is_refused_is_a_reason(agents, call):
    if call == "send_command":
        agents.online([A])
    agents.stub.add_client_error(call, "InvalidInstanceId", "Instances not in a valid state")
    answers = agents.ask([A])
    assert answers.keys == {}
    assert "Instances not in a valid state" in answers.reasons[A]
