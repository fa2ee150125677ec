"""Host keys in console text as machines really print it: prefixes, noise, cut off anywhere."""

from __future__ import annotations

import base64
import struct

import pytest
from botocore.exceptions import ClientError

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.host_keys import AT_ONCE, PER_S, Consoles, parse_host_keys

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


def test_nothing_yet():
    assert parse_host_keys("") == ()
    assert parse_host_keys("[    0.000000] Linux version 6.8.0-1021-aws\n") == ()


def test_cut_off_anywhere_gives_all_keys_or_none():
    text = console(ED25519, ECDSA)
    answers = {parse_host_keys(text[:length]) for length in range(len(text) + 1)}
    assert answers == {(), (ED25519, ECDSA)}


def test_the_start_is_missing():
    text = console(ED25519, ECDSA)
    answers = {parse_host_keys(text[start:]) for start in range(len(text))}
    assert answers == {(), (ED25519, ECDSA)}


@pytest.mark.parametrize(
    "broken",
    [
        ED25519[:-1],
        ED25519[:40],
        ED25519[:40] + "[   13.1] random: crng init done " + ED25519[40:],
        ED25519.replace("ssh-ed25519", "ssh-rsa"),
        "ssh-ed25519 AAAA",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5",
        "ssh-dss AAAAB3NzaC1kc3M=",
        "",
    ],
)
def test_a_broken_key_is_left_out(broken):
    assert parse_host_keys(console(broken, ECDSA)) == (ECDSA,)


def test_only_what_is_inside_the_block_counts():
    text = console(ECDSA)
    assert parse_host_keys(f"{OTHER} before\n{text}{OTHER} after\n") == (ECDSA,)


def test_after_a_reboot_the_last_block_counts():
    assert parse_host_keys(console(OTHER) + console(ED25519)) == (ED25519,)


def test_a_block_under_way_does_not_hide_the_one_before():
    assert parse_host_keys(console(ED25519) + f"{BEGIN}\n{OTHER}\n") == (ED25519,)


def test_a_key_printed_twice_is_one():
    assert parse_host_keys(console(ED25519, ED25519)) == (ED25519,)


def key(kind: str, *fields: bytes) -> str:
    blob = b"".join(struct.pack(">I", len(field)) + field for field in (kind.encode(), *fields))
    return f"{kind} {base64.b64encode(blob).decode()}"


KERNEL = "[   21.734211] nvidia: loading out-of-tree module taints kernel."
WHOLE = console(ED25519, ECDSA)
HALF = len(ED25519) // 2
# Of 64 KiB only the end is kept, here from within the first key on.
CUT = (KERNEL + "\n") * 900 + WHOLE


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        pytest.param(WHOLE.partition(END)[0], (), id="no end"),
        pytest.param(WHOLE.partition(BEGIN)[2], (), id="no beginning"),
        pytest.param(CUT[CUT.index(ED25519) + 9 :][-65536:], (), id="64 KiB cut in the block"),
        pytest.param(CUT[-65536:], (ED25519, ECDSA), id="64 KiB cut before the block"),
        pytest.param(
            console(f"{ED25519}\n{KERNEL}\n{ECDSA}"),
            (ED25519, ECDSA),
            id="the kernel between two keys",
        ),
        pytest.param(
            console(f"{ED25519[:HALF]}\r\n{KERNEL}\r\n{ED25519[HALF:]}", ECDSA),
            (ECDSA,),
            id="the kernel within a key",
        ),
        pytest.param(
            WHOLE.replace(BEGIN, BEGIN[:20] + KERNEL + BEGIN[20:]),
            (),
            id="the kernel within the marker",
        ),
        pytest.param(
            console(OTHER).partition(END)[0] + WHOLE,
            (ED25519, ECDSA),
            id="a boot that was cut short, then another",
        ),
        pytest.param(console(OTHER) + WHOLE, (ED25519, ECDSA), id="two boots"),
        pytest.param(console(OTHER) + console(""), (), id="two boots, no key in the last"),
        pytest.param(f"{BEGIN}\n{ED25519}\n{END}\n{OTHER}\n{END}\n", (ED25519,), id="two ends"),
        pytest.param(console(ED25519, eol="\r\n"), (ED25519,), id="CRLF"),
        pytest.param(console(ED25519, eol="\r"), (ED25519,), id="CR alone"),
        pytest.param(
            "\x00\ufffd\x1b[2J" * 999 + console(f"\x00{ED25519}\x00", prefix="\ufffd\x07"),
            (ED25519,),
            id="binary junk",
        ),
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
)
def test_hostile_consoles(text, keys):
    assert parse_host_keys(text) == keys


class Answers:
    """GetConsoleOutput of an instance that knows `Latest`, or one that does not (Xen)."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def get_console_output(self, **arguments):
        self.asked.append(arguments)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return {"Output": answer} if answer else {}
        raise answer


def refused(code):
    return ClientError({"Error": {"Code": code, "Message": "x"}}, "GetConsoleOutput")


@pytest.mark.parametrize(
    ("answers", "texts", "latest"),
    [
        (["now", "then"], ["now", "then"], [True, True]),
        ([refused("UnsupportedOperation"), "older", "old"], ["older", "old"], [True, False, False]),
        # The older one may be of another boot.
        (["", "older", "now"], ["", "older", "now"], [True, False, True]),
        (["", "", "now"], ["", "", "now"], [True, False, True]),
        ([refused("RequestLimitExceeded"), "now"], ["", "now"], [True, True]),
        ([refused("InvalidInstanceID.NotFound"), "now"], ["", "now"], [True, True]),
    ],
)
def test_each_look_is_one_request_for_the_console_that_there_is(answers, texts, latest):
    client = Answers(*answers)
    consoles = Consoles(client)
    assert [consoles.look("i-1") for _ in texts] == texts
    assert [asked.get("Latest", False) for asked in client.asked] == latest


def test_256_nodes_look_at_one_pace_and_in_order():
    now = [0.0]
    consoles = Consoles(Answers(), clock=lambda: now[0])
    turns = [consoles.turn_s() for _ in range(256)]
    assert turns[:AT_ONCE] == [0.0] * AT_ONCE
    assert turns == sorted(turns)
    assert turns[-1] == pytest.approx((256 - AT_ONCE) / PER_S)
    # What nobody has used is not saved up beyond that.
    now[0] = 3600.0
    assert [consoles.turn_s() for _ in range(AT_ONCE + 1)][-2:] == [0.0, pytest.approx(1 / PER_S)]


def test_not_being_allowed_to_see_it_is_an_error():
    with pytest.raises(AwsError):
        Consoles(Answers(refused("UnauthorizedOperation"))).look("i-1")
