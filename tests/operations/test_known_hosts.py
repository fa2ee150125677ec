"""Pinned host keys: the instance that they belong to, and why another key is refused."""

from __future__ import annotations

import subprocess

import pytest
from paramiko.hostkeys import HostKeyEntry

from clusterctl.domain.errors import HostKeyChanged, HostKeyUnknown
from clusterctl.operations.access import node_target
from clusterctl.operations.known_hosts import ClusterHostKeys, LearntHostKeys, key_fingerprint
from tests.operations.clusters import ED25519, OTHER, cluster, node

ON_NO_CURVE = (
    "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBB" + "A" * 86 + "="
)


def key(text: str):
    return HostKeyEntry.from_line(f"x {text}").key


def pins(tmp_path, text: str) -> ClusterHostKeys:
    path = tmp_path / "known_hosts"
    path.write_text(text)
    return ClusterHostKeys(path, cluster(node(0), node(1)))


TARGET = node_target(node(1), "ubuntu")


def refusal(given: ClusterHostKeys, shown: str):
    with pytest.raises((HostKeyChanged, HostKeyUnknown)) as caught:
        given.verify(TARGET, key(shown))
    return caught.value


@pytest.mark.parametrize(
    "line",
    [
        f"10.0.0.5,demo-1 {ED25519} i-1",
        f"10.0.0.5,demo-1 {ED25519} i-1 unverified",
        # A line of an older clusterctl, or written by hand.
        f"10.0.0.5 {ED25519}",
        f"10.0.0.5 {ED25519} somebody@home",
        f"no line at all\n\n# x y z i-8\n10.0.0.5,demo-1 {ED25519} i-1\n10.0.0.9 {OTHER} i-9",
        f"10.0.0.5 {ON_NO_CURVE} i-1\n10.0.0.5 ssh-ed25519 AAAA i-1\n10.0.0.5 {ED25519} i-1",
    ],
)
def test_the_pinned_key_is_taken(tmp_path, line):
    pins(tmp_path, f"{line}\n").verify(TARGET, key(ED25519))


def test_a_node_and_the_one_that_it_replaces_are_both_known(tmp_path):
    path = tmp_path / "known_hosts"
    path.write_text(f"10.0.0.5,demo-1 {ED25519} i-1\n")
    new = node(1, instance_id="i-8", private_ip="10.0.0.9")
    for nodes in ((node(1), new), (new, node(1))):
        known = ClusterHostKeys(path, cluster(node(0), *nodes))
        known.verify(TARGET, key(ED25519))
        with pytest.raises(HostKeyUnknown):
            known.verify(node_target(new, "ubuntu"), key(OTHER))


def test_the_same_instance_with_another_key(tmp_path):
    error = refusal(pins(tmp_path, f"10.0.0.5,demo-1 {ED25519} i-1\n"), OTHER)
    assert error.message.startswith("i-1 is the same instance as before and shows another host key")
    assert f"it shows {key_fingerprint(OTHER)}" in error.message
    assert f"known is {key_fingerprint(ED25519)}" in error.message
    assert "Do not delete the known key" in error.hint
    assert "clusterctl up demo" in error.hint


@pytest.mark.parametrize("shown", [OTHER, ED25519])
def test_an_address_that_is_used_again(tmp_path, shown):
    """The key of the earlier machine does not belong to this one."""
    error = refusal(pins(tmp_path, f"10.0.0.5,demo-7 {ED25519} i-7\n"), shown)
    assert isinstance(error, HostKeyChanged)
    assert "another instance, i-7; now i-1 has the address" in error.message
    assert f"it shows {key_fingerprint(shown)}" in error.message
    assert "clusterctl up demo" in error.hint


def test_an_address_that_is_new(tmp_path):
    error = refusal(pins(tmp_path, f"10.0.0.7,demo-7 {ED25519} i-7\n"), ED25519)
    assert isinstance(error, HostKeyUnknown)
    assert "clusterctl up demo" in error.hint


def test_keys_that_are_none_are_left_out(tmp_path):
    learnt = LearntHostKeys(tmp_path / "known_hosts")
    learnt.learn(node(1), [ON_NO_CURVE, ED25519])
    learnt.verify(TARGET, key(ED25519))


def test_what_is_learnt_again_replaces_what_was(tmp_path):
    learnt = LearntHostKeys(tmp_path / "known_hosts")
    learnt.learn(node(0), [ED25519])
    learnt.learn(node(1), [ED25519])
    learnt.learn(node(1), [OTHER])
    learnt.verify(TARGET, key(OTHER))
    learnt.verify(node_target(node(0), "ubuntu"), key(ED25519))
    with pytest.raises(HostKeyChanged):
        learnt.verify(TARGET, key(ED25519))


def test_fingerprints_are_those_of_ssh_keygen(tmp_path):
    path = tmp_path / "key.pub"
    path.write_text(ED25519)
    said = subprocess.check_output(["ssh-keygen", "-lf", str(path)], text=True).split()[1]
    assert key_fingerprint(ED25519) == f"ssh-ed25519 {said}"
