"""Hosts files as users write them."""

from __future__ import annotations

import pytest

from clusterctl.domain.errors import UsageError
from clusterctl.domain.hostsfile import (
    HostsFile,
    HostSlots,
    format_hosts_file,
    parse_hosts_file,
)

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
    ],
)
def test_invalid_hosts_files_are_refused(text, says):
    with pytest.raises(UsageError) as caught:
        parse_hosts_file(text, "hosts")
    assert says in caught.value.message
    assert caught.value.message.startswith("hosts")


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
