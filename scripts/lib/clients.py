"""Run other people's AWS clients against the local EC2: `./scripts/test --clients [CLIENT ...]`.

Each client is installed from PyPI into an environment of its own below .clients/, and gets a lab of
its own. Its steps are shell commands. All must succeed, and leave nothing in the lab.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CLUSTERCTL = ROOT / ".venv/bin/clusterctl"
STEP_S = 240


@dataclass(frozen=True)
class Client:
    """A client: its packages, the steps (what is tried, a shell command), and what is not tried.

    `files` are written into the folder in which the steps run, `{...}` in them replaced as by
    `values`. `until` says where the lab's part ends, and what of the client's comes after it.
    """

    packages: tuple[str, ...]
    steps: tuple[tuple[str, str], ...]
    until: str = ""
    files: tuple[tuple[str, str], ...] = ()


SSH = "ssh -i {key} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
ANSIBLE = """\
- hosts: localhost
  gather_facts: false
  vars: {ansible_python_interpreter: "{{ ansible_playbook_python }}"}
  tasks:
    - amazon.aws.ec2_security_group: {name: play, description: play, rules: [{proto: tcp,
        ports: [22], cidr_ip: 0.0.0.0/0}]}
    - amazon.aws.ec2_instance: {name: play, image_id: IMAGE, instance_type: c5.large,
        exact_count: 2,
        key_name: clients, security_group: play, wait: true, filters: {"tag:Name": play},
        tags: {Name: play}, network_interfaces: [{assign_public_ip: true}]}
      register: made
    - ansible.builtin.wait_for: {host: "{{ item.public_ip_address }}", port: 22, timeout: 60}
      loop: "{{ made.instances }}"
    - ansible.builtin.add_host: {name: "{{ item.public_ip_address }}", groups: nodes}
      loop: "{{ made.instances }}"
- hosts: nodes
  remote_user: ubuntu
  tasks:
    - ansible.builtin.copy: {content: hello, dest: /data/hello}
    - ansible.builtin.reboot:
      become: true
    - ansible.builtin.command: cat /data/hello
- hosts: localhost
  gather_facts: false
  vars: {ansible_python_interpreter: "{{ ansible_playbook_python }}"}
  tasks:
    - amazon.aws.ec2_instance: {state: STATE, filters: {"tag:Name": play}, wait: true}
      loop: [stopped, started, terminated]
    - amazon.aws.ec2_security_group: {name: play, state: absent}
""".replace("state: STATE", 'state: "{{ item }}"')
# `pip` does nothing: Ray installs boto3 on the head node, from the Internet.
RAY = """\
cluster_name: rayed
max_workers: 1
provider: {type: aws, region: us-east-1, availability_zone: us-east-1a, cache_stopped_nodes: false}
auth: {ssh_user: ubuntu}
available_node_types:
  head: {resources: {CPU: 1}, node_config: {InstanceType: c5.large, ImageId: IMAGE}}
  worker: {resources: {CPU: 1}, min_workers: 0, max_workers: 1,
    node_config: {InstanceType: c5.large, ImageId: IMAGE}}
head_node_type: head
initialization_commands: ["printf '#!/bin/sh\\n' | sudo tee /usr/local/bin/pip",
  sudo chmod 755 /usr/local/bin/pip]
setup_commands: [echo set up]
head_start_ray_commands: [echo started >~/started]
worker_start_ray_commands: []
"""
# Amazon Linux has these, Ubuntu has not; and Flintrock formats what lsblk shows.
FLINTROCK = """\
#!/bin/sh
ln -s /usr/bin/python3 /usr/local/bin/python
printf '#!/bin/sh\\n' >/usr/local/bin/yum
chmod 755 /usr/local/bin/yum
"""
CLIENTS = {
    "aws-cli": Client(
        ("awscli",),
        (
            (
                "launch",
                "aws ec2 run-instances --image-id IMAGE --instance-type c5.large --key-name clients"
                " --count 2 --query 'Instances[].InstanceId' --output text >ids",
            ),
            ("wait", "aws ec2 wait instance-status-ok --instance-ids $(cat ids)"),
            (
                "log in",
                "for a in $(aws ec2 describe-instances --instance-ids $(cat ids) --output text"
                " --query 'Reservations[].Instances[].PublicIpAddress');"
                " do SSH ubuntu@$a nproc; done",
            ),
            (
                "stop, start",
                "aws ec2 stop-instances --instance-ids $(cat ids)"
                " && aws ec2 wait instance-stopped --instance-ids $(cat ids)"
                " && aws ec2 start-instances --instance-ids $(cat ids)"
                " && aws ec2 wait instance-running --instance-ids $(cat ids)",
            ),
            (
                "s3",
                "aws s3 mb s3://one && head -c 20M /dev/zero >big && aws s3 cp big s3://one/"
                " && aws s3 sync s3://one back && cmp big back/big && aws s3 rb --force s3://one",
            ),
            (
                "remove",
                "aws ec2 terminate-instances --instance-ids $(cat ids)"
                " && aws ec2 wait instance-terminated --instance-ids $(cat ids)",
            ),
        ),
    ),
    "s5cmd": Client(
        ("s5cmd",),
        (
            ("make", "s5cmd mb s3://five && mkdir in && cd in && split -n 64 /usr/bin/python3 x"),
            ("copy", "s5cmd cp 'in/*' s3://five/in/ && s5cmd cp 's3://five/in/*' out/"),
            ("compare", "diff -r in out"),
            ("list", "test $(s5cmd ls --all-versions 's3://five/*' | wc -l) = 64"),
            ("remove", "s5cmd rm 's3://five/*' && s5cmd rb s3://five"),
        ),
    ),
    "Flintrock": Client(
        ("Flintrock==2.1.0", "setuptools<81"),
        (
            (
                "launch",
                "flintrock launch flint --num-slaves 1 --no-install-hdfs --no-install-spark"
                " --ec2-key-name clients --ec2-identity-file KEY --ec2-ami IMAGE --ec2-user ubuntu"
                " --ec2-instance-type c5.large --ec2-region us-east-1 --assume-yes"
                " --ec2-authorize-access-from 127.0.0.1/32 --ec2-user-data user-data",
            ),
            ("describe", "flintrock describe flint --ec2-region us-east-1"),
            ("run", "flintrock run-command flint hostname FLAGS"),
            ("add", "flintrock add-slaves flint --num-slaves 1 --assume-yes FLAGS"),
            ("stop", "flintrock stop flint --assume-yes --ec2-region us-east-1"),
            ("start", "flintrock start flint FLAGS"),
            ("remove", "flintrock destroy flint --assume-yes --ec2-region us-east-1"),
            (
                "its groups",
                "for g in flintrock-flint flintrock; do"
                " aws ec2 delete-security-group --group-name $g || true; done",
            ),
        ),
        "Spark and HDFS, which it downloads",
        (("user-data", FLINTROCK),),
    ),
    "Ansible": Client(
        ("ansible", "boto3"),
        (("play", "ansible-playbook play.yml"),),
        "apt, pip, services and mounts, which hosts of the lab do not have",
        (("play.yml", ANSIBLE),),
    ),
    "Ray": Client(
        ("ray[default]", "boto3"),
        (
            ("launch", "ray up -y --no-config-cache ray.yaml"),
            ("run", "ray exec ray.yaml 'cat started'"),
            ("address", "ray get-head-ip ray.yaml"),
            ("remove", "ray down -y ray.yaml"),
            (
                "its groups and key",
                "aws ec2 wait instance-terminated --filters Name=tag:ray-cluster-name,Values=rayed"
                " && aws ec2 delete-security-group --group-name ray-autoscaler-rayed"
                " && aws ec2 delete-key-pair --key-name $(aws ec2 describe-key-pairs --output text"
                " --query 'KeyPairs[?starts_with(KeyName,`ray-autoscaler`)].KeyName')",
            ),
        ),
        "workers that its autoscaler launches, which needs Ray installed on the hosts",
        (("ray.yaml", RAY),),
    ),
}
# Client -> why it is not run.
NOT_RUN = {"SkyPilot": "its list of types and what it runs on hosts come from the Internet"}


def main(chosen: list[str]) -> int:
    """Run the clients, print a table, and return the exit status."""
    known = [*CLIENTS, *NOT_RUN]
    if unknown := set(chosen) - set(known):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    # So that a lab is stopped, too, when this program is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    failed = False
    for name in chosen or known:
        client = CLIENTS.get(name)
        folder = _installed(name, client) if client else None
        if client is None or folder is None:
            why = NOT_RUN.get(name, "its packages do not install")
            print(f"{name:10} not run: {why}", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="clients-") as work:
            failed |= not _run(name, client, folder, Path(work))
    return int(failed)


def _installed(name: str, client: Client) -> Path | None:
    """Return the folder of the client's programs, installed if they are not; None if that fails."""
    place = ROOT / ".clients" / name
    packages = [*dict.fromkeys((*client.packages, "awscli"))]
    marker = place / "packages.json"
    if not marker.exists() or json.loads(marker.read_text()) != packages:
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        pip = [place / "bin/pip", "install", "--quiet", *packages]
        if subprocess.run(pip, check=False).returncode:
            return None
        marker.write_text(json.dumps(packages))
    return place / "bin"


def _run(name: str, client: Client, programs: Path, work: Path) -> bool:
    """Run a client's steps in a new lab. Return whether all succeeded and nothing is left."""
    home = {"HOME": str(work), "CLUSTERCTL_HOME": str(work / "clusterctl")}
    environ = {**os.environ, **home, "PATH": f"{programs}:{os.environ['PATH']}"}
    for variable in [one for one in environ if one.startswith(("AWS_", "PIP_", "PYTHON"))]:
        del environ[variable]
    lab(environ, "start")
    try:
        told = lab(environ, "env", "--json")
        environ |= {key: str(value) for key, value in json.loads(told).items()}
        values = _prepare(environ, work)
        for file, text in client.files:
            (work / file).write_text(_filled(text, values))
        before = _resources(environ)
        for what, command in client.steps:
            start = time.monotonic()
            problem = _step(_filled(command, values), environ, work)
            print(
                f"{name:10} {what:20} {'failed' if problem else 'ok':7}"
                f" {time.monotonic() - start:5.1f} s",
                flush=True,
            )
            if problem:
                print(problem, flush=True)
                return False
        left = sorted(_resources(environ) - before)
        print(f"{name:10} {'nothing left':20} {', '.join(left) or 'ok'}", flush=True)
        log = (work / "clusterctl/lab/lab.log").read_text(errors="replace")
        noise = [line for line in log.splitlines() if " INFO " not in line]
        print(f"{name:10} {'a quiet lab.log':20} {' | '.join(noise[:20]) or 'ok'}", flush=True)
        if client.until:
            print(f"{name:10} until here: {client.until}", flush=True)
        return not left and not noise
    finally:
        lab(environ, "stop", "--yes")


def _prepare(environ: dict[str, str], work: Path) -> dict[str, str]:
    """Make a key pair, and return what is filled into steps and files."""
    key = work / "clients.pem"
    made = _aws(environ, "create-key-pair", "--key-name", "clients")
    key.write_text(made["KeyMaterial"])
    key.chmod(0o600)
    images = _aws(environ, "describe-images", "--owners", "898082745236")["Images"]
    newest = max(images, key=lambda one: (one["Architecture"] == "x86_64", one["CreationDate"]))
    flags = f"--ec2-region us-east-1 --ec2-identity-file {key} --ec2-user ubuntu"
    ssh = SSH.format(key=shlex.quote(str(key)))
    environ |= {"ANSIBLE_PRIVATE_KEY_FILE": str(key), "ANSIBLE_HOST_KEY_CHECKING": "false"}
    return {"IMAGE": newest["ImageId"], "KEY": str(key), "FLAGS": flags, "SSH": ssh}


def _filled(text: str, values: dict[str, str]) -> str:
    for word, value in values.items():
        text = text.replace(word, value)
    return text


def _step(command: str, environ: dict[str, str], work: Path) -> str:
    """Run a step; return the end of its output if it fails, else nothing."""
    shell = ["bash", "-euo", "pipefail", "-c", command]
    try:
        ran = subprocess.run(
            shell,
            env=environ,
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=STEP_S,
        )
    except subprocess.TimeoutExpired as slow:
        return f"it took more than {STEP_S} s: {str(slow.output)[-2000:]}"
    return ran.stdout[-3000:] or f"exit status {ran.returncode}" if ran.returncode else ""


def _resources(environ: dict[str, str]) -> set[str]:
    """Return the ids of all that costs or clutters: instances, volumes, groups, keys, buckets."""
    kinds: dict[str, Any] = {
        "describe-instances": "Reservations[].Instances[?State.Name!='terminated'].InstanceId[]",
        "describe-volumes": "Volumes[].VolumeId",
        "describe-security-groups": "SecurityGroups[].GroupId",
        "describe-key-pairs": "KeyPairs[].KeyName",
        "describe-addresses": "Addresses[].AllocationId",
        "describe-placement-groups": "PlacementGroups[].GroupName",
    }
    found = [_aws(environ, kind, "--query", query) for kind, query in kinds.items()]
    buckets = _aws(environ, "list-buckets", "--query", "Buckets[].Name", service="s3api")
    return {str(one) for group in (*found, buckets) for one in group or ()}


def _aws(environ: dict[str, str], *words: str, service: str = "ec2") -> Any:
    argv = ["aws", service, *words, "--output", "json"]
    ran = subprocess.run(argv, env=environ, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(ran.stdout or "null")


def lab(environ: dict[str, str], *words: str) -> str:
    argv = [CLUSTERCTL, "lab", *words]
    return subprocess.run(
        argv, env=environ, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
