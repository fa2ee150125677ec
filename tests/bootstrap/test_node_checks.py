"""Disks and EFA devices of a node: what a real shell reports, and the findings from it."""

from __future__ import annotations

import shlex

import pytest

from clusterctl.bootstrap.inspection import (
    Equipment,
    FileSystem,
    RequestedEquipment,
    check_equipment,
    inspection_script,
    parse_inspection,
)
from clusterctl.domain.findings import Severity, folded

HEADER = "Filesystem     1024-blocks      Used Available Capacity Mounted on"
ROOT = "/dev/nvme0n1p1   507836416  52428800 455407616      11% /"
STORE = "/dev/mapper/vg.01-lv_ephemeral 943718400 1024 943717376 1% /opt/dlami/nvme"


class World:
    """A node whose systemd, /dev and /sys are made by the test."""

    def __init__(self, node, tmp_path):
        self.node = node
        self.root = tmp_path / "root"
        self.root.mkdir()

    def folder(self, path):
        (self.root / path).mkdir(parents=True)

    def file(self, path):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).touch()

    def df(self, *lines):
        self.node.program("df", "\n".join(f"echo '{line}'" for line in (HEADER, *lines)))

    def unit(self, *answers):
        """Set the answers of systemctl: one for each call. The last one is repeated."""
        self.folder("run/systemd/system")
        texts = [" ".join(answer.split()).replace(" ", "\\n") for answer in answers]
        cases = "".join(f"{at}) printf '{text}\\n' ;;\n" for at, text in enumerate(texts[:-1]))
        self.node.program(
            "systemctl",
            'times=$(cat "$HOME/times" 2>/dev/null || echo 0)\n'
            'echo $((times + 1)) >"$HOME/times"\n'
            f"case $times in\n{cases}*) printf '{texts[-1]}\\n' ;;\nesac",
        )

    @property
    def asked_systemd(self):
        return int((self.node.home / "times").read_text())

    def look(self, efa=0) -> Equipment:
        self.node.program("sleep", "true")
        script = inspection_script(False, efa)
        for path in (
            *("/run/systemd", "/dev/disk", "/dev/nvidia-nvswitch", "/sys/module", "/sys/class"),
        ):
            script = script.replace(path, f"{self.root}{path}")
        done = self.node.run(script)
        assert (done.returncode, done.stderr) == (0, "")
        return parse_inspection("demo-0", done.stdout).equipment


@pytest.fixture
def world(node, tmp_path):
    return World(node, tmp_path)


def test_a_node_with_all_of_it(world):
    world.df(ROOT, STORE)
    world.unit(ACTIVE)
    for number in range(4):
        world.file(f"sys/class/infiniband/rdmap{number}s27")
    world.folder("sys/module/efa")
    world.file("dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_AWS1A2B")
    found = world.look(efa=4)
    assert (found.efa, found.store_disks) == (4, True)
    assert found.store_unit == {"LoadState": "loaded", "ActiveState": "active", "Result": "success"}
    assert {where: one.source for where, one in found.file_systems.items()} == {
        "/": "/dev/nvme0n1p1",
        "/opt/dlami/nvme": "/dev/mapper/vg.01-lv_ephemeral",
    }
    assert found.file_systems["/opt/dlami/nvme"].size_gib == 900.0
    [store] = check_equipment("demo-0", found, RequestedEquipment(4, 500))
    assert (store.severity, store.message) == (
        Severity.INFO,
        "instance store: 900 GiB at /opt/dlami/nvme",
    )


def state(load="loaded", active="active", **more):
    said = {"LoadState": load, "ActiveState": active, "Result": "success", **more}
    return " ".join(f"{name}={value}" for name, value in said.items())


ACTIVE, ACTIVATING = state(), state(active="activating")


@pytest.mark.parametrize(
    ("answers", "active", "times"),
    [
        ((state(active="inactive", Job=417), ACTIVATING, ACTIVATING, ACTIVE), "active", 4),
        ((ACTIVATING,), "activating", 61),
        # An image without this service.
        ((state("not-found", "inactive"),), None, 1),
        (("Failed to connect to bus",), None, 1),
    ],
)
def test_the_instance_store_is_waited_for_but_not_for_ever(world, answers, active, times):
    assert world.look() == Equipment()
    world.unit(*answers)
    assert world.look().store_unit.get("ActiveState") == active
    assert world.asked_systemd == times


@pytest.mark.parametrize(("devices", "efa"), [(0, 0), (3, 3), (16, 16), (17, 17)])
def test_efa_devices(world, devices, efa):
    world.folder("sys/module/efa")
    for number in range(devices):
        world.file(f"sys/class/infiniband/efa_{number}")
    assert world.look(efa=16).efa == efa


def test_efa_is_looked_at_only_where_it_was_asked_for_and_has_its_driver(world):
    world.file("sys/class/infiniband/mlx5_0")
    assert world.look(efa=1).efa is None
    world.folder("sys/module/efa")
    assert world.look(efa=0).efa is None
    assert world.look(efa=1).efa == 1


def test_a_df_that_says_nonsense(world):
    world.df("none - - - - /", "/dev/sda1 ١٢ 1 1 1% /data", "x", "")
    assert world.look().file_systems == {}


def root(size_gib, source="/dev/nvme0n1p1"):
    return {"/": FileSystem(source, size_gib)}


def unit(**properties):
    return {"LoadState": "loaded", "ActiveState": "inactive", "Result": "success", **properties}


NO_REQUEST = RequestedEquipment()
PROBLEMS = [
    (Equipment(root(29.0)), RequestedEquipment(0, 500), "disk.size"),
    (Equipment(efa=3), RequestedEquipment(4), "efa.count"),
    (Equipment(efa=0), RequestedEquipment(1), "efa.count"),
    (Equipment(efa=None), RequestedEquipment(4), "efa.driver"),
    *(
        (Equipment(store_unit=unit(**properties), store_disks=disks), NO_REQUEST, "store.mount")
        for properties, disks in (
            ({"ActiveState": "failed", "Result": "exit-code"}, False),
            ({"ActiveState": "activating"}, False),
            ({"Job": "7"}, False),
            ({"ActiveState": "active"}, True),
        )
    ),
    (Equipment(store_disks=True), NO_REQUEST, "store.mount"),
    (Equipment(fabric_manager="failed", inactive_links=0), NO_REQUEST, "gpu.fabric"),
    (Equipment(fabric_manager="unknown"), NO_REQUEST, "gpu.fabric"),
    (Equipment(fabric_manager="active", inactive_links=12), NO_REQUEST, "gpu.nvlink"),
]


@pytest.mark.parametrize(("found", "asked", "check_id"), PROBLEMS)
def test_each_problem_of_the_equipment_is_a_finding(found, asked, check_id):
    """tests/test_findings.py prints them."""
    [finding] = check_equipment("demo-3", found, asked)
    assert (finding.check, finding.host) == (check_id, "demo-3")


@pytest.mark.parametrize(
    ("found", "asked"),
    [
        (Equipment(), RequestedEquipment()),
        (Equipment(root(486.0)), RequestedEquipment(0, 500)),
        (Equipment(root(29.0)), RequestedEquipment(0, 0)),
        # The lab: an overlay says nothing about a volume.
        (Equipment(root(29.0, "overlay")), RequestedEquipment(0, 500)),
        (Equipment(root(29.0, "tmpfs")), RequestedEquipment(0, 500)),
        (Equipment(efa=5), RequestedEquipment(4)),
        (Equipment(store_unit=unit()), RequestedEquipment()),
        (Equipment(store_unit=unit(ActiveState="active")), RequestedEquipment()),
    ],
)
def test_what_is_as_it_was_asked_for(found, asked):
    assert check_equipment("demo-3", found, asked) == ()


def test_nodes_of_which_the_same_is_said_are_said_together():
    said = [
        finding
        for index, size in enumerate((29.0, 29.0, 30.0, 29.0))
        for finding in check_equipment(
            f"demo-{index}", Equipment(root(size)), RequestedEquipment(0, 500)
        )
    ]
    assert [(one.host, one.message[:28]) for one in folded(said)] == [
        ("demo-[0-1,3]", "its root file system has 29 "),
        ("demo-2", "its root file system has 30 "),
    ]


@pytest.mark.parametrize(
    ("answers", "state"),
    [(["active"], "active"), (["activating", "active"], "active"), (["failed"], "failed")],
)
def test_a_machine_with_nvswitches_waits_for_its_fabric(world, answers, state):
    """nvidia-smi works while CUDA still fails with error 802."""
    world.df(HEADER, ROOT)
    world.file("dev/nvidia-nvswitch0")
    world.unit(*answers)
    (world.root / "run/systemd/system").rmdir()  # systemctl is asked for the fabric alone
    links = ["GPU 0: NVIDIA A100", "\t Link 0: 25 GB/s", "\t Link 1: <inactive>"]
    world.node.program("nvidia-smi", f"printf '%b\\n' {' '.join(map(shlex.quote, links))}")
    found = world.look()
    assert (found.fabric_manager, found.inactive_links) == (state, 1)


def test_a_machine_without_nvswitches_has_no_fabric(world):
    world.df(HEADER, ROOT)
    found = world.look()
    assert (found.fabric_manager, found.inactive_links) == ("", None)
