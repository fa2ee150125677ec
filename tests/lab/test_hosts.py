"""A host as seen after a login."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from clusterctl.lab import lifecycle
from clusterctl.lab.hosts.daemon import template
from clusterctl.lab.hosts.daemon.cgroups import MEMORY_FILES, MOST_PROCESSES
from clusterctl.lab.hosts.supervisor import LOG_MOST
from tests.lab.running import (
    make_key,
    processes_of_hosts,
    real_uids,
    shared_with_hosts,
    ssh,
    wait_until,
)

pytestmark = pytest.mark.lab


def test_its_name_and_address(host):
    address = host.host["PrivateIpAddress"]
    name = "ip-" + address.replace(".", "-")
    assert host.run(host.host, "hostname; hostname -I") == f"{name}\n{address}"
    assert host.run(host.host, f"getent hosts {name}").split()[0] == address
    assert host.host["PrivateDnsName"] == f"{name}.ec2.internal"


def test_it_booted_just_now(host):
    since = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    ours = time.clock_gettime(time.CLOCK_BOOTTIME) - since / os.sysconf("SC_CLK_TCK")
    assert float(host.run(host.host, "cut -d' ' -f1 /proc/uptime")) < ours


def test_another_key_and_root_are_refused(host, lab, key, tmp_path):
    for given, user in ((make_key(tmp_path, "other"), "ubuntu"), (key, "root")):
        said = ssh(lab, given, host.host["PrivateIpAddress"], "true", user=user)
        assert (said.returncode, "Permission denied (publickey)" in said.stderr) == (255, True)


def test_the_user_and_sudo(host, lab):
    assert host.run(host.host, "id -un; id -u; pwd") == "ubuntu\n1000\n/home/ubuntu"
    expected = "1000" if lab.mode == "single" else "0"
    assert host.run(host.host, "sudo -n id -u") == expected


def test_the_environment_is_the_hosts_own(host):
    shown = host.run(host.host, "env")
    assert "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" in shown.splitlines()
    assert "pyenv" not in shown
    assert host.run(host.host, "ls -d /root/.* 2>/dev/null || true") == ""


def test_root_changes_usr_and_opt_for_itself_only(host):
    host.run(host.host, "sudo touch /opt/by-a-host /usr/local/bin/by-a-host /etc/by-a-host")
    assert host.run(host.host, "ls /opt/by-a-host") == "/opt/by-a-host"
    assert not [
        top for top in ("opt", "usr/local/bin", "etc") if Path("/", top, "by-a-host").exists()
    ]


def test_the_data_volume(host):
    host.run(host.host, "echo kept >/data/file")
    size_kib = int(host.run(host.host, "df --output=size /data | tail -1"))
    assert size_kib == 1024 * 1024
    assert host.run(host.host, "stat -f -c %T /data; stat -c %a /data") == "tmpfs\n1777"


def test_sshd_keeps_its_stock_limits(host):
    shown = host.run(host.host, "sudo /usr/sbin/sshd -T | grep -E '^max(startups|sessions)'")
    assert set(shown.splitlines()) == {"maxstartups 10:30:100", "maxsessions 10"}


def test_its_tcp_is_as_that_of_images_where_the_machine_allows_it(host, lab):
    settings = "tcp_allowed_congestion_control tcp_congestion_control"
    allowed, chosen = host.run(host.host, f"cd /proc/sys/net/ipv4 && cat {settings}").splitlines()
    machines = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    assert chosen == lab.tcp == ("cubic" if "cubic" in allowed.split() else machines)


def test_user_data_ran_once_as_root_and_cloud_init_says_so(host, lab):
    user = "ubuntu" if lab.mode == "single" else "root"
    log = host.run(host.host, "cat /var/log/cloud-init-output.log; cat user-data")
    assert log == f"user data ran as {user}\nran"
    assert host.run(host.host, "cloud-init status --wait") == "status: done"
    shown = json.loads(host.run(host.host, "cloud-init status --format json"))
    assert (shown["status"], shown["errors"]) == ("done", [])
    assert "simulated" in host.run(host.host, "cloud-init --version")


def test_the_console_has_the_keys_that_the_host_shows(host):
    console = host.console(host.host["InstanceId"])
    between = console.split("-----BEGIN SSH HOST KEY KEYS-----")[1].split("-----END")[0]
    on_console = {tuple(line.split()[:2]) for line in between.strip().splitlines()}
    address = host.host["PrivateIpAddress"]
    if host.lab.proxy_command:
        shown = host.run(host.host, "ssh-keyscan localhost 2>/dev/null")
    else:
        scan = subprocess.run(["ssh-keyscan", address], capture_output=True, text=True, check=True)
        shown = scan.stdout
    answered = {tuple(line.split()[1:3]) for line in shown.splitlines() if not line.startswith("#")}
    assert on_console == answered
    assert len(on_console) == 2


def test_the_console_has_the_fingerprints_as_cloud_init_prints_them(host):
    lines = host.console(host.host["InstanceId"]).splitlines()
    marked = [line.partition(" ec2: ")[2] for line in lines if " ec2: " in line]
    assert marked[:2] == ["", "#" * 61]
    assert marked[2] == "-----BEGIN SSH HOST KEY FINGERPRINTS-----"
    assert marked[-2:] == ["-----END SSH HOST KEY FINGERPRINTS-----", "#" * 61]
    assert [line.split()[-1] for line in marked[3:-2]] == ["(ECDSA)", "(ED25519)"]


def test_eight_simulated_gpus(host):
    listed = host.run(host.host, "nvidia-smi -L").splitlines()
    assert len(listed) == 8
    assert listed[7].startswith("GPU 7: Tesla V100-SXM2-16GB (simulated) (UUID: GPU-")
    query = "nvidia-smi --query-gpu=index,memory.total,utilization.gpu --format=csv"
    assert host.run(host.host, query).splitlines()[:2] == [
        "index, memory.total [MiB], utilization.gpu [%]",
        "0, 16384 MiB, 0 %",
    ]
    assert host.run(host.host, f"{query},noheader,nounits").splitlines()[0] == "0, 16384, 0"
    assert "simulated" in host.run(host.host, "nvidia-smi")


def test_a_type_without_gpus_has_no_nvidia_smi(instances, lab, key):
    one = instances.up(InstanceType="c5.large")[0]
    done = ssh(lab, key, one["PrivateIpAddress"], "nvidia-smi -L")
    assert (done.returncode, "command not found" in done.stderr) == (127, True)


def test_user_data_that_fails_and_what_is_not_run_are_errors(instances):
    """The first is a packed script; the second is a cloud-init format that the lab does not run."""
    script = gzip.compress(b"#!/bin/sh\necho about to fail\nexit 3\n")
    failing, config = (
        instances.up(UserData=data)[0] for data in (script, "#cloud-config\npackages: [htop]\n")
    )
    said = []
    for one in (failing, config):
        command = "cloud-init status --wait --format json"
        done = ssh(instances.lab, instances.key, one["PrivateIpAddress"], command)
        shown = json.loads(done.stdout)
        assert (done.returncode, shown["status"]) == (1, "error")
        said.append(shown["errors"][0])
    assert "exit status 3" in said[0]
    assert instances.run(failing, "cat /var/log/cloud-init-output.log") == "about to fail"
    told = {seen["instance_id"]: seen["problem"] for seen in lifecycle.instances(instances.lab)}
    assert "#cloud-config" in said[1]
    assert "#cloud-config" in told[config["InstanceId"]]


def test_root_on_a_host_is_nobody_outside_and_so_is_who_reads_its_requests(host, lab):
    if lab.mode != "root":
        pytest.skip("the lab does not run as root")
    assert min(real_uids(processes_of_hosts(lab))) >= 100_000
    assert min(real_uids({lab.pid})) >= 100_000
    status = Path(f"/proc/{lab.pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    assert "Groups:\t \n" in status


def test_its_processes_have_no_files_of_the_lab(host, lab):
    host.run(host.host, "pgrep -x sshd")
    assert shared_with_hosts(lab) == set()


def test_its_file_systems_are_bounded(host):
    sizes = host.run(host.host, "df --output=size -k / /tmp /dev/shm /run /home /usr | tail -n +2")
    root = 8 * 1024 * 1024
    assert [int(size) for size in sizes.split()] == [1024, root, 2**21, 2**16, root, root]


def test_nothing_of_the_machines_var_is_there(host):
    everything = host.run(host.host, "find /var -xdev -not -path '/var/lib/cloud*' | sort")
    logs = {f"/var/log/{name}" for name in ("auth.log", "cloud-init-output.log", "wtmp")}
    own = logs | {"/var/run", "/var/lock"}
    folders = {f"/var/{name}" for name in template.VAR} | {"/var", "/var/lib/dpkg"}
    assert set(everything.splitlines()) - {"/var/lib/sudo"} == own | folders
    if Path("/var/lib/dpkg/status").exists():
        assert host.run(host.host, "dpkg-query -W -f '${Package}' sudo") == "sudo"


def test_a_console_that_never_ends_takes_little_memory(instances, lab):
    """EC2 shows the last 64 KiB, and the lab does not store its beginning."""
    script = (
        "#!/bin/sh\nyes console | head -c 50000000 >>/proc/1/fd/1; echo the end >>/proc/1/fd/1\n"
    )
    one = instances.up(UserData=script)[0]
    console = wait_until(
        lambda: "the end" in (text := instances.console(one["InstanceId"])) and text, "the console"
    )
    assert len(console) <= 64 * 1024
    kept = "stat -L -c '%s %b %B' /proc/1/fd/1"
    root = "" if lab.mode == "single" else "sudo "

    def bounded():
        size, blocks, block = map(int, instances.run(one, root + kept).split())
        assert size > 50_000_000
        return blocks * block < 2**20

    wait_until(bounded, "a short console")


def test_what_a_host_does_to_its_console_and_to_tmp_ends_no_other_one(instances, host):
    one = instances.up()[0]
    nest = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
    instances.run(one, "sudo fallocate --keep-size -o 4M -l 2M /proc/1/fd/1")
    instances.run(one, f'cd /tmp && python3 -c "{nest}"')
    instances.ec2.reboot_instances(InstanceIds=[one["InstanceId"]])
    wait_until(lambda: boots_of(instances.lab, one) == 2, "another boot")
    instances.reachable(one["InstanceId"])
    assert instances.run(one, "ls -A /tmp") == ""
    host.run(host.host, "true")


def boots_of(lab, host):
    seen = lifecycle.instances(lab)
    return next(one["boots"] for one in seen if one["instance_id"] == host["InstanceId"])


def test_no_host_can_be_this_machines_router(lab):
    """Otherwise the machine would accept IPv6 routes that a host announces on the lab's link."""
    if not lab.link or not Path("/proc/net/if_inet6").exists():
        pytest.skip("no link or no IPv6 on this machine")
    links = [line.split()[-1] for line in Path("/proc/net/if_inet6").read_text().splitlines()]
    assert lab.link not in links


def test_the_labs_log_is_cut_to_its_end(lab):
    log = lab.home / "lab/lab.log"
    line = "something that recurs\n"
    # First up to the limit, then beyond it: what is being written during the cut may be lost.
    with log.open("a") as file:
        file.write(line * ((LOG_MOST - log.stat().st_size) // len(line) - 1000) + "the end\n")
    with log.open("a") as file:
        file.write(line * 2000)

    def cut():
        lines = log.read_text().splitlines()
        return len(lines) < 100_000 and "the end" in lines and lines

    assert wait_until(cut, "a short log")[0] == "something that recurs"


def test_a_host_that_forks_without_end_meets_its_own_limit(host, lab):
    if not lab.cgroups:
        pytest.skip("no control groups on this machine")
    id, groups = host.host["InstanceId"], [Path(folder, "hosts") for folder in lab.cgroups]
    limit = next(file for group in groups if (file := group / id / "pids.max").exists())
    assert int(limit.read_text()) == MOST_PROCESSES
    memory = [
        int((group / name).read_text())
        for group in groups
        for name in MEMORY_FILES
        if (group / name).exists()
    ]
    assert memory == [lab.memory_bytes // 4096 * 4096]
    limit.write_text("60")
    # Root on a host may mount its control group.
    lift = "mount -t cgroup -o pids - /mnt || mount -t cgroup2 - /mnt; echo max >/mnt/pids.max"
    try:
        host.run(host.host, f"sudo unshare --mount --cgroup sh -c '{lift}' 2>&1 || true")
        many = "for i in $(seq 80); do sleep 5 & done 2>&1; wait"
        done = ssh(lab, host.key, host.host["PrivateIpAddress"], many)
        assert "Resource temporarily unavailable" in done.stdout + done.stderr
    finally:
        limit.write_text(str(MOST_PROCESSES))
    host.run(host.host, "true")
