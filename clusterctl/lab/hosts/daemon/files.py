"""The files that differ from host to host."""

from __future__ import annotations

import base64
import json
import uuid

from clusterctl.lab.hosts.daemon import template
from clusterctl.lab.hosts.daemon.boot import HostSpec

# In the place of host/init: a host that boots, and then says and answers nothing.
SILENT_INIT = b"""#!/bin/sh
trap 'exit 81' USR1 # reboot
trap 'exit 82' USR2 # poweroff
echo "$(hostname): lab host booting"
while :; do
  sleep 3600 &
  wait $!
done
"""


def own_files(spec: HostSpec) -> list[tuple[str, bytes, int]]:
    """Of each its path below the host's root, its content and its mode."""
    names = f"{spec.hostname}.{spec.domain} {spec.hostname}"
    files = [
        ("etc/hostname", f"{spec.hostname}\n".encode(), 0o644),
        ("var/lib/cloud/data/instance-id", f"{spec.id}\n".encode(), 0o644),
        ("etc/hosts", f"127.0.0.1 localhost\n{spec.address} {names}\n".encode(), 0o644),
    ]
    if spec.silent:
        files.append((f"{template.TOOLS}/init", SILENT_INIT, 0o755))
    for path, content in spec.user_files:
        files.append((f"var/lib/cloud/{path}", base64.b64decode(content), 0o700))
    if spec.user_data_problem:
        files.append(("var/lib/cloud/instance/problem", spec.user_data_problem.encode(), 0o644))
    if spec.gpus:
        files += _gpu_files(spec)
    return files


def _gpu_files(spec: HostSpec) -> list[tuple[str, bytes, int]]:
    """What the simulated nvidia-smi answers from."""
    names = [f"{spec.hostname}/{index}" for index in range(spec.gpus)]
    uuids = [f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, name)}" for name in names]
    gpus = {"count": spec.gpus, "name": spec.gpu_name, "memory_mib": spec.gpu_memory_mib}
    lines = (f"GPU {n}: {spec.gpu_name} (UUID: {number})\n" for n, number in enumerate(uuids))
    return [
        ("etc/clusterctl-lab/gpus.json", json.dumps({**gpus, "uuids": uuids}).encode(), 0o644),
        ("etc/clusterctl-lab/gpus.txt", "".join(lines).encode(), 0o644),
    ]
