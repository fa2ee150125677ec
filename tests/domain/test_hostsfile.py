"""Hosts files as users write them."""

from __future__ import annotations

import ipaddress
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.domain.errors import UsageError
from clusterctl.domain.hostsfile import HostsFile, HostSlots, format_hosts_file, parse_hosts_file

TUTORIAL = """172.100.1.200 slots=8
172.200.8.99 slots=8
172.48.3.124 slots=8
localhost slots=8
"""


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("localhost slots=8\n", [HostSlots("localhost", 8)]),
        ("localhost", [HostSlots("localhost", 1)]),
        ("a\nb\n", [HostSlots("a"), HostSlots("b")]),
        ("# head\n\n  a   slots=2  # four GPUs\n\t\n", [HostSlots("a", 2)]),
        ("a slots=2\r\nb slots=4\r\n", [HostSlots("a", 2), HostSlots("b", 4)]),
        ("a slots = 2", [HostSlots("a", 2)]),
        ("a SLOTS=2", [HostSlots("a", 2)]),
        ("a slots=2 max-slots=4", [HostSlots("a", 2, 4)]),
        ("a slots=2 max_slots=4", [HostSlots("a", 2, 4)]),
        ("a max-slots=4", [HostSlots("a", 4, 4)]),
        ("fe80::1 slots=8", [HostSlots("fe80::1", 8)]),
        ("[2001:db8::5] slots=8", [HostSlots("2001:db8::5", 8)]),
        ("fe80::1%eth0", [HostSlots("fe80::1%eth0", 1)]),
        ("\ufeffa slots=1\n", [HostSlots("a", 1)]),
        ("ip-10-0-0-4.ec2.internal slots=8", [HostSlots("ip-10-0-0-4.ec2.internal", 8)]),
        (
            "my_alias\nnode.1\n9node.\n",
            [HostSlots("my_alias"), HostSlots("node.1"), HostSlots("9node.")],
        ),
        ("::ffff:10.0.0.4 slots=8", [HostSlots("::ffff:10.0.0.4", 8)]),
    ],
)
def test_valid_lines_are_read(text, entries):
    assert list(parse_hosts_file(text).entries) == entries


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no host"),
        ("# nothing\n\n", "names no host"),
        ("a\nb\na slots=2\n", "a is on lines 1 and 3"),
        ("[::1]\n::1\n", "::1 is on lines 1 and 2"),
        ("a slots=0", "line 1: slots must be a number from 1, not '0'"),
        ("\na slots=-1", "line 2: slots must be"),
        ("a slots=", "slots must be"),
        ("a slots=eight", "not 'eight'"),
        ("a slots=٣", "slots must be"),
        ("a slots=99999999", "slots must be"),
        ("a slots=2 slots=3", "slots is given twice"),
        ("a slots=4 max-slots=2", "max-slots=2 is less than slots=4"),
        ("a gpus=4", "cannot read 'gpus=4'"),
        ("a 8", "cannot read '8'"),
        ("-oProxyCommand=evil slots=8", "not a host name"),
        ("a;reboot", "not a host name"),
        ("$(reboot)", "not a host name"),
        ("user@host", "'user@host' names a user"),
        ("host:22 slots=8", "'host:22' names a port"),
        ("[::1]:2222", "'[::1]:2222' names a port"),
        ("10.82.0.4:8", "'10.82.0.4:8' names a port or, as in MPICH's files, slots"),
        ("[workers]\n10.0.0.4\n", "line 1: '[workers]' is no host: only an IPv6 address stands in"),
        ("10.0.0.4\n[gpu:children]\nworkers\n", "line 2: '[gpu:children]' is no host"),
        ("[all:vars]\nansible_user=ubuntu\n", "line 1: '[all:vars]' is no host"),
        ("node[1:3]", "line 1: not an IPv6 address: 'node[1:3]'"),
        ("node[1-3]", "not a host name or address: 'node[1-3]'"),
        ("[1.2.3.4", "not a host name or address: '[1.2.3.4'"),
        ("1.2.3.4]", "not a host name or address"),
        ("[10.0.0.4] slots=8", "'[10.0.0.4]' is no host: only an IPv6 address stands in brackets"),
        ("[[::1]]", "not an IPv6 address"),
        ("::1::2", "not an IPv6 address"),
        ("fe80::12345", "not an IPv6 address"),
        ("fe80::1%", "not an IPv6 address"),
        ("300.1.1.1", "not an IPv4 address of four numbers up to 255, without zeros before"),
        ("10.82.0", "not an IPv4 address"),
        ("10.0.0.04", "not an IPv4 address"),
        ("10.0.0.4.", "not an IPv4 address"),
        ("10", "not an IPv4 address"),
        ("0x0a000004", "not an IPv4 address"),
        ("١٠.0.0.4", "not an IPv4 address"),
        ("10.0.0.²4", "not an IPv4 address"),
        ("a..b", "not a host name"),
        ("a-.b", "not a host name"),
        ("a%eth0", "not a host name"),
        ("a" * 254, "not a host name"),
        ("2001:db8::5\n2001:DB8:0:0::5\n", "2001:DB8:0:0::5 is on lines 1 and 2"),
        # What to write instead.
        ("node1:8", "; for slots write node1 slots=8; for a port write only the address, and "),
        ("[::1]:8", "; for slots write [::1] slots=8;"),
        ("10.0.0.4 slots 1", "; write slots=N, as in slots=8"),
        ("10.0.0.4 8", "; write slots=8 or max-slots=N"),
        ("[workers]", "; leave out the sections of an Ansible inventory"),
    ],
)
def test_invalid_hosts_files_are_refused(text, says):
    with pytest.raises(UsageError) as caught:
        parse_hosts_file(text, "hosts")
    assert says in f"{caught.value.message}; {caught.value.hint}"
    assert caught.value.message.startswith("hosts")


def is_address(host):
    try:
        # It takes any text for the name of an interface.
        return bool(ipaddress.ip_address(host)) and not re.search(
            r"[:\[\]]", host.partition("%")[2]
        )
    except ValueError:
        return False


@given(st.text("0123456789.:[]%a/", min_size=1, max_size=16))
def test_a_word_of_an_addresss_characters_is_an_address_or_refused(text):
    try:
        [entry] = parse_hosts_file(text).entries
    except UsageError as error:
        assert "hosts file, line 1: " in error.message
        assert not is_address(text)
    else:
        assert is_address(entry.host) or "a" in entry.host
        assert entry.host in (text, text[1:-1])


@given(st.integers(0, len(TUTORIAL) - 1), st.characters(exclude_categories=["Cs"]))
def test_a_damaged_byte_changes_a_word_or_is_refused_with_its_line(at, character):
    damaged = TUTORIAL[:at] + character + TUTORIAL[at + 1 :]
    try:
        entries = parse_hosts_file(damaged).entries
    except UsageError as error:
        assert "line" in error.message
        assert error.hint
    else:
        for entry in entries:
            assert entry.host in damaged
            digits = entry.host.replace(".", "")
            assert is_address(entry.host) or not digits.isnumeric()


def test_a_file_read_is_written_back_as_it_was():
    text = "# my cluster\n\n10.0.0.1   slots=8\nlocalhost\n"
    assert format_hosts_file(parse_hosts_file(text)) == text


def test_a_file_made_is_one_line_per_host():
    hosts = HostsFile((HostSlots("10.0.0.1", 8), HostSlots("10.0.0.2", 8, 16)))
    assert format_hosts_file(hosts) == "10.0.0.1 slots=8\n10.0.0.2 slots=8 max-slots=16\n"


def test_the_tutorials_file():
    hosts = parse_hosts_file(TUTORIAL)
    assert hosts.slots == 32
    assert hosts.hosts[-1] == "localhost"
