"""For each check, inputs that make each of its findings appear. test_findings.py prints them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from botocore.exceptions import ClientError

from clusterctl.bench.network import NCCL_TESTS, AllreduceTable, NetworkFigures
from clusterctl.bench.network import findings as bench_findings
from clusterctl.bootstrap.inspection import RequestedEquipment, check_equipment
from clusterctl.bootstrap.training import EnvState
from clusterctl.bootstrap.training_checks import obstacles, release_findings, state_findings
from clusterctl.cli import cluster as cluster_commands
from clusterctl.cli import tuning as tuning_command
from clusterctl.diagnosis.drift import check
from clusterctl.domain.cluster import Disk, Limits
from clusterctl.domain.errors import AwsError, ClusterctlError, HostUnreachable
from clusterctl.domain.files import ClusterFolder
from clusterctl.domain.findings import Finding
from clusterctl.domain.results import HostOutcome
from clusterctl.ec2 import health
from clusterctl.ec2.launch import execution
from clusterctl.ec2.launch.capacity import QuotaUse, quota_finding
from clusterctl.ec2.machines import image_findings, retired_finding
from clusterctl.ec2.money.costs import budget_findings, left_findings, spending
from clusterctl.ec2.money.prices import price_key
from clusterctl.ec2.policy import temporary_keys
from clusterctl.ec2.tags import Unfinished
from clusterctl.jobs.deploy import Code
from clusterctl.jobs.horovod import Timeline, Tuned
from clusterctl.jobs.metrics.logs import MetricSeries
from clusterctl.jobs.nccl import NcclNetwork, parse_transport, transport_finding
from clusterctl.jobs.preflight import crowding_findings, preflight
from clusterctl.jobs.trainer import JobRecipe
from clusterctl.node.facts.disks import mount
from clusterctl.node.facts.gpus import GpusOfNode, ProcessOnGpu
from clusterctl.node.facts.guard import guard_busy, guard_silence_s
from clusterctl.node.facts.parts import copy_parts
from clusterctl.node.facts.report import FactReading, FactReport
from clusterctl.node.facts.software import data, scripts
from clusterctl.node.facts.system import system
from clusterctl.node.jobs.processes import NodeProcess
from clusterctl.node.record import name_of
from clusterctl.operations import doctor, guards, known_hosts, readiness
from clusterctl.operations.bench_network import no_answer
from clusterctl.operations.costs import with_gone
from clusterctl.operations.disk import SlowDisk, findings_of
from clusterctl.operations.guards import guard_findings
from clusterctl.operations.kill import memory_of_none
from clusterctl.operations.logs import RunningWork
from clusterctl.operations.losses import Losses, Written
from clusterctl.operations.results import Results
from clusterctl.operations.selftest import too_dear
from clusterctl.operations.site import others_finding
from clusterctl.operations.status import ClusterStatus
from clusterctl.operations.train import code_findings, leftovers, unreachable_findings
from clusterctl.operations.tuning import Tuning, read_tuning
from clusterctl.operations.up import ended_findings
from tests.bench.test_network import measured
from tests.bootstrap import test_node_checks as equipment
from tests.bootstrap import test_training_checks as env
from tests.diagnosis import test_drift as drift
from tests.ec2 import test_image_findings as images
from tests.ec2.launch import test_preflight as launch
from tests.ec2.money.test_costs import costing
from tests.ec2.money.test_spending import NOW, TEN, ago, machine, spent_by
from tests.ec2.observed import MACHINE, NOTHING, SPEC, instance, offering, with_nodes
from tests.jobs import test_nccl as nccl
from tests.jobs import test_preflight as jobs
from tests.operations.clusters import ED25519, OTHER, cluster, node


def of_launches() -> Iterator[Finding]:
    for observed, spec in launch.FOUND.values():
        yield from launch.plan(observed, spec).findings
    few = QuotaUse("Elastic IPs", "L-0263D0A3", 5, 5.0)
    many = QuotaUse("Network interfaces per Region", "L-DF5E4CA3", 3, 5.0, "vpc")
    for observed, spec in (
        (offering(MACHINE, addresses=few, interfaces=many), SPEC),
        (launch.single(), SPEC),
        (launch.single(efa_interfaces=4), SPEC),
        (with_nodes(0, 1), replace(SPEC, tags=(("team", "vision"),), disk=Disk(size_gib=200))),
        (replace(with_nodes(0), instances=(instance(0, unfinished=Unfinished(add=(1,))),)), SPEC),
        (
            replace(with_nodes(0), instances=(instance(0), instance(1, retired=True))),
            replace(SPEC, nodes=1),
        ),
        (
            replace(NOTHING, ssh_from="0.0.0.0/0"),
            replace(SPEC, limits=Limits(idle_minutes=30, max_hours=8)),
        ),
        (
            launch.two_types(placement_strategies=("spread",)),
            launch.asked(or_types=(launch.OTHER,), placement_group=True),
        ),
        (
            replace(
                with_nodes(),
                instances=tuple(
                    instance(index, limits_text="idle-minutes=30 max-hours=8") for index in (0, 1)
                ),
            ),
            replace(SPEC, limits=Limits(max_hours=9)),
        ),
    ):
        yield from launch.plan(observed, spec).findings


def of_dry_runs() -> Iterator[Finding]:
    refused = AwsError("InvalidParameterCombination", "the parameters do not fit", "")
    for error, is_new in (
        (AwsError("DryRunOperation", ""), True),
        (AwsError("DryRunOperation", ""), False),
        (AwsError("UnauthorizedOperation", "you may not"), True),
        (refused, True),
        (refused, False),
    ):
        yield from execution._result_of(error, is_new)


def of_types_and_images() -> Iterator[Finding | None]:
    for name, known in (("p3.16xlarge", True), ("p3.16xlarge", False), ("p2.16xlarge", False)):
        yield retired_finding(name, known, "eu-west-1")
    yield retired_finding("p3.metal", False, "eu-west-1")
    yield retired_finding("p3dn.24xlarge", False, "eu-west-1")
    for image, on, *_ in images.CASES:
        yield from image_findings(image, on, today=images.TODAY)
    yield from image_findings(None, images.P3, today=images.TODAY)
    yield from image_findings(None, images.P4D, "ami-2", images.TODAY)
    plain = images.image("ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64")
    yield from image_findings(plain, images.P4D, "ami-1", images.TODAY)


def of_quotas() -> Iterator[Finding | None]:
    use = QuotaUse("Running On-Demand P instances", "L-417A185B", 96, 480)
    for one in (
        replace(use, limit=None),
        replace(use, reserved=192),
        QuotaUse("spot", "", 0, None),
    ):
        yield quota_finding(one, MACHINE, 3, "us-west-2")


def of_costs() -> Iterator[Finding]:
    for limited, hourly, spent in (
        (Limits(max_hourly_usd=9.99), 10.0, 0.0),
        (Limits(budget_usd=100, max_hours=11), 10.0, 0.0),
        (Limits(budget_usd=9.99), 10.0, 0.0),
        (Limits(budget_usd=100), 10.0, 100.0),
        (Limits(), None, 0.0),
        (Limits(budget_usd=100, max_hourly_usd=5), None, 0.0),
    ):
        yield from budget_findings(limited, costing(hourly), spent)
    yield too_dear("2 nodes of g5.xlarge", 4.62, 3.0)
    yield from left_findings(Limits(max_hours=8, budget_usd=5), 8.0, 5.5, 10)
    yield from left_findings(Limits(max_hours=8, budget_usd=6), 7.95, 5.5, 12)
    for price in (12, None):
        yield from left_findings(Limits(max_hourly_usd=5), 0.0, 0.0, price)
    off = {"state": "stopped", "transition_reason": ago(0.5)}
    for node_, limited, price in (
        (machine(3, made=50), "max-hours=3.25", TEN),
        (machine(3), "max-hours=1.9", TEN),
        (machine(3), "budget=30 max-hourly=10", TEN),
        (machine(3), "budget=30", None),
        (machine(3, **off, reservation_id="cr-1"), "max-hours=2", TEN),
        (machine(99, "stopped", transition_reason=ago(73)), "idle-minutes=5 stopped-days=3", TEN),
        (machine(3, earlier_limits="max-hours=30"), "max-hours=8", TEN),
    ):
        yield from spent_by(replace(node_, limits_text=limited), price=price).findings
    money = spending([machine(3)], {price_key(machine(3)): TEN}, NOW)
    yield from with_gone(money, "demo", {1: None}).findings
    yield from ended_findings("demo", Limits(max_hours=2), money)
    yield from ended_findings("demo", Limits(max_hours=9), replace(money, complete=False))
    for hourly in (10.0, None):
        yield cluster_commands._unlimited("demo", hourly)


def of_ec2s_reports() -> Iterator[Finding]:
    status = {
        "SystemStatus": {
            "Status": "impaired",
            "Details": [{"Status": "failed", "ImpairedSince": NOW}],
        },
        "Events": [
            {"Code": "instance-retirement", "NotBefore": NOW},
            {"Code": "instance-move", "Description": "it is moved"},
        ],
    }
    yield from health._of_node("demo-1", status)
    yield health._unknown("scheduled events and status checks", AwsError("x", "you may not"))
    yield from ClusterStatus(
        cluster(node(0), node(1), node(1)), gone={2: None, 3: instance(3)}
    ).findings


def of_equipment() -> Iterator[Finding]:
    for found, asked, *_ in equipment.PROBLEMS:
        yield from check_equipment("demo-3", found, asked)
    stored = {"/opt/dlami/nvme": equipment.FileSystem("/dev/vg", 900.0)}
    yield from check_equipment("demo-3", equipment.Equipment(stored), RequestedEquipment())


def of_environments() -> Iterator[Finding]:
    for nodes, *_ in env.OBSTACLES:
        yield from obstacles(nodes, env.FOLDER)
    toolkit = "there is no CUDA 12 toolkit (nvcc), only CUDA 13.0 (/usr/local/cuda): install one"
    yield from obstacles([env.gpus(0, 80, no_toolkit=toolkit)], env.FOLDER, needs_build=True)
    for release, *capabilities in (
        ("default", 80, 100),
        ("newest", 52),
        ("newest", 52, 100),
        ("default", 37),
    ):
        nodes = [env.gpus(index, one, release=release) for index, one in enumerate(capabilities)]
        yield from release_findings(nodes)
    states = (EnvState.MISSING, EnvState.PARTIAL, EnvState.FOREIGN, EnvState.OTHER)
    others = [env.missing(2 + n, state=state, stamp="x") for n, state in enumerate(states)]
    nodes = [env.ready(0), env.ready(1, key=env.OTHER_KEY), *others]
    yield from state_findings(nodes, env.FOLDER, "demo")


def of_networks() -> Iterator[Finding]:
    for pair in ((0, 1), (2, None)):
        slow = measured(
            9,
            lambda a, b, pair=pair: 1 if (a, b) == pair or a == pair[0] and pair[1] is None else 10,
            lambda a, b, pair=pair: (
                9e-4 if (a, b) == pair or pair == (2, None) and 2 in (a, b) else 5e-5
            ),
        )
        yield from bench_findings(slow, "demo")
    yield from bench_findings(measured(2, lambda a, b: 1 if a else 10), "demo")
    half = measured(40, lambda a, b: 1 if b == a + 1 else 10, seed=2)
    yield from bench_findings(half, "demo")
    tables = (
        AllreduceTable("osu_allreduce", 4, error="it failed (exit status 1)"),
        AllreduceTable(f"alltoall_perf ({NCCL_TESTS})", 4, error="it printed no figures"),
    )
    yield from bench_findings(
        NetworkFigures(
            ("demo-0", "demo-1", "demo-2"),
            *(8, 1.0),
            failures=(no_answer("demo", "demo-2", "no answer within 10 s"),),
            broken={("demo-0", "demo-1"): "connection refused"},
            allreduce=tables,
            lacks_nccl_tests=("all_gather_perf", "alltoall_perf"),
        ),
        "demo",
    )


def of_nccl() -> Iterator[Finding]:
    for log, _ in nccl.LOGS:
        yield transport_finding(parse_transport(log), True)
    yield transport_finding(NcclNetwork("Socket"), False)


def of_nodes() -> Iterator[Finding]:
    for change, _ in drift.CHANGES:
        yield from check(drift.nodes(4, n2=change))
    yield from check(drift.nodes(2, n1={scripts: {"train.sh": "b", "train.py": "c"}}))
    with_data = {f"n{n}": {data: ("/data", "ab" if n else "cd")} for n in range(3)}
    yield from check(drift.nodes(3, **with_data))
    yield from check(drift.nodes(3, (90.0, 90.0, -30.0)))
    yield from check(drift.nodes(2, n1=drift.changed(system, hostname="ip-10-0-0-4")))
    found = FactReport(
        *(0.0, 0.0),
        (
            FactReading(
                name_of(mount), "mount /data", error="no answer within 5 s", timed_out=True
            ),
            FactReading(name_of(mount), "mount", error="OSError: x"),
            FactReading(name_of(copy_parts), "copy_parts", error="OSError: x"),
        ),
        "demo-0",
    )
    yield from findings_of(found)
    yield SlowDisk("demo-0", 125 << 20, 900 << 30).finding(150 << 30)
    silent = HostOutcome("demo-1", error=HostUnreachable("demo-1", "did not answer in time"))
    yield from doctor._unreachable([silent])
    used = replace(drift.CARD, memory_used_mib=14000.0)
    own = replace(used, processes=(ProcessOnGpu(None, None),))
    yield from memory_of_none("demo-1", GpusOfNode("580.95.05", "13.0", (drift.CARD, own, used)))
    unguarded = FactReport(0, 0, (FactReading(name_of(guard_silence_s), "", 300.0),))
    yield from guard_findings("demo-1", unguarded, "max-hours=8 budget=500")
    busy = ["demo-1: nvidia-smi: no answer in time", *(f"demo-{index}: busy" for index in range(4))]
    used = FactReport(0, 0, (FactReading(name_of(guard_busy), "", busy),))
    yield from guard_findings("demo-0", used, "idle-minutes=30")
    left = NodeProcess("demo-1", 812, 0, "rank", None, 9, ("python", "train.py"))
    access = SimpleNamespace(head_name="demo-0", cluster=SimpleNamespace(name="demo"))
    yield from doctor._of_unknown_jobs(access, [left])
    for served in ({}, {"demo-0": ["resnet"]}, {"demo-1": ["resnet", "mn"]}):
        yield from leftovers("demo", RunningWork((), (left, left), served_on=served))


def of_jobs(folder: Path) -> Iterator[Finding]:
    head, second, run, plan = jobs.NODE, jobs.SECOND, jobs.RUN, jobs.plan
    old = jobs.checkpoints(head, 200, 484)
    kept = replace(run, clears=False)
    files = dict(list(jobs.TRAINING.items())[:10])
    gpu = {"versions": jobs.GPU_2_15}
    for nodes, job in (
        ([head, replace(second, versions={})], plan()),
        ([head, replace(second, versions=dict(jobs.VERSIONS, tensorflow="2.14.1"))], plan()),
        ([replace(head, versions=dict(jobs.VERSIONS, python_variables="PYTHONHOME=/x"))], plan()),
        ([replace(head, versions=dict(jobs.VERSIONS, tensorflow="1.15", keras="3.1"))], plan()),
        ([replace(head, versions=dict(jobs.VERSIONS, keras="3.3.3"))], plan()),
        ([replace(head, versions=dict(jobs.VERSIONS, horovod_error="/x/a.so: no _ZN"))], plan()),
        ([replace(head, **gpu, capabilities=(90,))], plan(preset="gpu")),
        ([replace(head, **gpu, capabilities=(100,))], plan(preset="gpu")),
        ([replace(head, versions=jobs.GPU_NEWEST, capabilities=(100,))], plan(preset="gpu")),
        ([replace(head, versions=jobs.GPU_NEWEST, capabilities=(52,))], plan(preset="gpu")),
        ([replace(head, versions=jobs.GPU_NEWEST, capabilities=(52, 100))], plan(preset="gpu")),
        ([head, replace(second, notices=jobs.NOTICES[:1])], plan()),
        ([head, replace(second, notices=jobs.NOTICES)], plan()),
        ([head], plan(refused="unknown flag --lr")),
        ([replace(head, script_error=jobs.NONE)], plan(**jobs.OWN, script_path="/data/x.py")),
        ([replace(head, output_error="x is no folder")], plan(output="x")),
        ([head], plan(output="/root/x", home="/home/ubuntu")),
        ([replace(head, training={})], plan()),
        ([replace(head, training={})], plan(replace(run, data_dir="/root/d"), home="/home/u")),
        ([replace(head, training={}, data_error="/data: Permission denied")], plan()),
        ([replace(head, training=files)], plan()),
        ([head, replace(second, training=files)], plan()),
        ([replace(head, training=dict(jobs.TRAINING, **jobs.shards(8)))], plan()),
        ([replace(head, training=dict(jobs.TRAINING, **{"train-00016-of-00016": 1}))], plan()),
        ([head, replace(second, records={"train-00001-of-00016": -1})], plan()),
        ([head, replace(second, training=dict(jobs.TRAINING, **{"train-00003-of-00016": 1}))],
         plan()),
        ([replace(head, validation={})], plan()),
        ([replace(old, validation={})], plan(replace(kept, evaluates_only=True), ())),
        ([head], plan(replace(kept, evaluates_only=True), ())),
        ([head], plan(replace(run, ranks=17))),
        ([head], plan(replace(run, ranks=6))),
        ([head], plan(replace(run, batch_size=194))),
        ([replace(head, records=dict(head.records, **{"train-00002-of-00016": 99}))], plan()),
        ([old], plan()),
        ([old], plan(clears_on_purpose=True)),
        ([old], plan(kept)),
        ([jobs.checkpoints(head, 485)], plan(kept)),
        ([jobs.checkpoints(head, 400)], plan()),
        ([jobs.checkpoints(head, 400)], plan(kept)),
        ([jobs.checkpoints(head, 400)], plan(replace(run, data_dir=None))),
        ([head, jobs.checkpoints(second, 400)], plan(kept)),
        ([replace(jobs.checkpoints(head, 7), images_per_step=64)], plan(kept)),
        ([replace(jobs.checkpoints(head, 7), images_per_step=63)], plan(kept)),
        ([replace(jobs.checkpoints(head, 7), model="resnet18")], plan(kept)),
        ([head], plan(kept)),
        ([replace(head, free_bytes=1 << 29)], plan()),
        ([head, replace(second, shell="/usr/bin/fish", sessions_bytes=0)], plan()),
        ([head], plan(replace(run, eval_interval=5))),
        ([head], plan(replace(run, trace_steps=(999, 1009)))),
        ([head], plan(replace(run, batch_size=4096))),
        ([head], plan(replace(run, batch_size=8192))),
        ([head], plan(replace(run, batch_size=4096, epochs=None, batches=9))),
        ([head], plan(replace(run, batch_size=4096, uses_larc=True),
                      recipe=JobRecipe("fast", largest_step=16_384))),
    ):  # fmt: skip
        yield from preflight(job, nodes, ["demo-0", "demo-1"], callers_home="/root")
    for in_lab in (False, True):
        crowded = [replace(node_, cpus=2, in_lab=in_lab) for node_ in (head, second)]
        yield from crowding_findings(crowded, {"demo-0": 8, "demo-1": 8})
    yield from unreachable_findings("demo", [("demo-1", "did not answer in time")])
    (folder / "train.py").write_text("import torch\n")
    code = Code(folder, "train.py", ("train.py", "requirements.txt"), 1)
    yield from code_findings(code, plan(None), {"python": "3.11"}, False)
    written = Written("demo-1", "20261120-154502-0001", "/home/ubuntu/out", "model", 5, 1 << 20)
    by_hand = replace(written, job_id="", kind="files", unread=("a: Permission denied",))
    ids = ("20261120-154502-0002",)
    losses = Losses(
        ids,
        (("demo-1", "python train.py"),),
        (written, replace(written, recorded=False, lost_copy="/root/runs"), by_hand),
        {"demo-2": "did not answer in time"},
        {ids[0]: f"where job {ids[0]} wrote is not known: spec.json: cut short"},
    )
    yield from losses.findings(ClusterFolder(Path("/root/.clusterctl/demo")))
    series = MetricSeries("loss", (), ("3 values lack a step",))
    damaged = "job.log: 2 rows in JSON cannot be read, and are missing"
    yield from Results(("job.log",), metrics=(series,), damaged=(damaged,)).findings
    yield from read_tuning(Path("/dev/null"), Path(__file__)).unread
    tuned = Tuned(64.0, 1.0, {}, 1.0, 1, True, 1)
    yield from tuning_command._lost(Tuning(None, Timeline(1.0, {}, (), {}, 2, 1234), None, tuned))


def of_keys_and_ownership() -> Iterator[Finding | None]:
    def refuse(**_):
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "you may not"}}, "x")

    def lend(**_):
        given = {"AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c"}
        return {"Credentials": given}

    meta = SimpleNamespace(partition="aws")
    for token, session in (("t", lend), ("", lend), ("", refuse)):
        sts = SimpleNamespace(meta=meta, get_federation_token=refuse, get_session_token=session)
        clients = SimpleNamespace(frozen_keys=lambda token=token: ("a", "b", token), sts=sts)
        yield temporary_keys(clients, ["train"]).finding
    yield known_hosts._renewed(node(1), (OTHER,), (ED25519,))
    yield known_hosts._accepted(node(1), ED25519)
    yield others_finding("demo", ("instance i-1", "security group sg-1"))
    refused = ClusterctlError("sudo: a password is required")
    yield guards._untold("demo", "demo-2", refused)
    yield readiness._untold(refused)
    launcher = SimpleNamespace(folder=ClusterFolder(Path("/root/.clusterctl/demo")))
    yield readiness._no_programs(launcher, "demo-0", "no Python 3.10")


def every_finding(folder: Path) -> list[Finding]:
    """Return every finding that the checks make, each once, by check. `folder` is for files."""
    of_checks = (
        *(of_launches(), of_dry_runs(), of_types_and_images(), of_quotas(), of_costs()),
        *(of_ec2s_reports(), of_equipment(), of_environments(), of_networks(), of_nccl()),
        *(of_nodes(), of_jobs(folder), of_keys_and_ownership()),
    )
    found = {one for some in of_checks for one in some if one}
    return sorted(found, key=lambda one: (one.check, one.severity.value, f"{one}"))
