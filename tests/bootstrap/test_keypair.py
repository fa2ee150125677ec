from __future__ import annotations

import subprocess

from clusterctl.operations.local_state import new_key_pair
from clusterctl.transport.keys import load_key


def test_a_key_that_openssh_and_paramiko_understand(tmp_path):
    pair = new_key_pair("clusterctl-demo")
    file = tmp_path / "id_ed25519"
    file.write_bytes(pair.private)
    file.chmod(0o600)
    argv = ["ssh-keygen", "-y", "-f", str(file)]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert shown.split()[:2] == pair.public.split()[:2]
    assert load_key(file).get_base64() == pair.public.split()[1]
    assert pair.public.split()[2] == "clusterctl-demo"


def test_each_is_another_and_none_shows_its_private_half():
    one, two = new_key_pair("a"), new_key_pair("a")
    assert one.public != two.public
    assert "PRIVATE" not in repr(one)
