"""The complete mpirun command line: each Open MPI family and preset, and further options."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from dataclasses import replace

import pytest

from clusterctl.domain.errors import ClusterctlError, MissingTool, NotEnoughGpus, UsageError
from clusterctl.domain.hostsfile import parse_hosts_file
from clusterctl.jobs.detached import spec_of
from clusterctl.jobs.head_facts import (
    Environment,
    HeadFacts,
    facts_of_head,
    facts_to_read,
    head_slots,
    shared_network,
)
from clusterctl.jobs.horovod import HorovodTuning
from clusterctl.jobs.mpirun import (
    JOB_VARIABLE,
    MpiRun,
    Variable,
    mpirun_arguments,
    parse_mpirun_version,
    parse_variable,
    sets_binding,
)
from clusterctl.jobs.plan import (
    EXAMPLES_MODELS,
    JobRequest,
    check_per_host,
    check_request,
    plan_job,
    ranks_per_host,
)
from clusterctl.jobs.trainer import GPU
from clusterctl.node.jobs.folder import JobFolder
from clusterctl.node.record import to_data, to_json
from clusterctl.operations.environment import allreduce_command
from clusterctl.transport.call import read_report
from tests.changes import CHECKOUT
from tests.local_node import HEAD, LocalNode
from tests.programs import completed

JOB = "20261120-154501-3f2a"
HOSTS = parse_hosts_file("10.0.0.4 slots=8\n10.0.0.5 slots=8\n10.0.0.6 slots=8\n10.0.0.7 slots=8\n")
FOUR = Environment(MpiRun("/usr/bin/mpirun", "4.1.4"), "/usr/bin/python3", True)
FIVE = Environment(
    MpiRun("/opt/clusterctl/training/bin/mpirun", "5.0.11"),
    "/opt/clusterctl/training/bin/python",
    True,
)


def facts(environment=FIVE, **changes):
    values = {
        "home": "/home/ubuntu",
        "host": "demo-0",
        "search_path": "/usr/local/bin:/usr/bin:/bin",
        "environments": (environment,),
        "interfaces": (("lo", "127.0.0.1/8"), ("ens5", "10.0.0.4/24"), ("br-1f", "172.18.0.1/16")),
    }
    return HeadFacts(**{**values, **changes})


def with_gpus(environment=FIVE, **changes):
    return facts(environment, **{"nvidia_driver": True, "gpu_memory_mib": 16160, **changes})


def with_efa(count, **changes):
    libraries = ("/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu", "/opt/amazon/efa/lib")
    return with_gpus(efa=count, efa_libraries=libraries, **changes)


def line(request, head, hosts=HOSTS):
    return plan_job(request, head, hosts, JOB).line


SSH = "'-o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=10 -o ServerAliveCountMax=5'"
NCCL = "-x HOROVOD_FUSION_THRESHOLD=16777216 -x 'NCCL_SOCKET_IFNAME=^docker,br-,virbr,veth,lo'"
HIERARCHICAL = (
    f"-x HOROVOD_HIERARCHICAL_ALLREDUCE=1 -x NCCL_MIN_NRINGS=4 -x NCCL_MIN_NCHANNELS=4 {NCCL}"
)
KERNELS = " -x CUDA_CACHE_PATH=/home/ubuntu/.cache/clusterctl/cuda -x CUDA_CACHE_MAXSIZE=4294967296"
GPU_4 = (
    "/usr/bin/mpirun -np 32 --hostfile hosts"
    f" --mca plm_rsh_no_tree_spawn 1 --mca plm_rsh_args {SSH}"
    f" --stdin none --bind-to none --map-by slot {HIERARCHICAL}"
    " -x TF_CPP_MIN_LOG_LEVEL=0 -x PYTHONUNBUFFERED=1"
    f" -x PATH=/usr/bin:/usr/local/bin:/bin{KERNELS} -x CLUSTERCTL_JOB={JOB}"
    " --mca pml ob1 --mca btl '^openib' --mca btl_tcp_if_include 10.0.0.0/24"
    " /usr/bin/python3 -W ignore train_imagenet_resnet_hvd.py"
    " --synthetic --log_dir imagenet_resnet_synthetic --num_epochs 5 -b 256 --clear_log"
)


def on_gpus_with_5(exports, libraries=""):
    return (
        "/opt/clusterctl/training/bin/mpirun -np 32 --hostfile hosts"
        f" --prtemca plm_ssh_no_tree_spawn 1 --prtemca plm_ssh_args {SSH}"
        f" --stdin none --bind-to none --map-by slot {exports}"
        " -x TF_CPP_MIN_LOG_LEVEL=0 -x PYTHONUNBUFFERED=1"
        " -x PATH=/opt/clusterctl/training/bin:/usr/local/bin:/usr/bin:/bin"
        f"{libraries}{KERNELS} -x CLUSTERCTL_JOB={JOB}"
        " --mca pml ob1 --mca btl self,sm,tcp --mca btl_tcp_if_include 10.0.0.0/24"
        " /opt/clusterctl/training/bin/python -W ignore train_imagenet_resnet_hvd.py"
        f" --synthetic --log_dir imagenet_resnet_synthetic --num_epochs 5 -b 256 --clear_log"
    )


EFA = f"-x FI_EFA_USE_HUGE_PAGE=0 {NCCL}"
EFA_PATH = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu:/opt/amazon/efa/lib"
CPU_4 = (
    "/usr/bin/mpirun -np 32 --hostfile hosts"
    f" --mca plm_rsh_no_tree_spawn 1 --mca plm_rsh_args {SSH}"
    " --stdin none --bind-to none --map-by slot -x TF_CPP_MIN_LOG_LEVEL=2 -x PYTHONUNBUFFERED=1"
    f" -x PATH=/usr/bin:/usr/local/bin:/bin -x CLUSTERCTL_JOB={JOB}"
    " --mca pml ob1 --mca btl '^openib' --mca btl_tcp_if_include 10.0.0.0/24"
    " --mca mpi_yield_when_idle 1"
    " /usr/bin/python3 -W ignore train_imagenet_resnet_hvd.py"
    " --synthetic --log_dir imagenet_resnet_synthetic"
    " --num_batches 40 -b 8 --image_size 64 --nofp16 --display_every 10 --clear_log"
)
CPU_5 = (
    "/opt/clusterctl/training/bin/mpirun -np 32 --hostfile hosts"
    f" --prtemca plm_ssh_no_tree_spawn 1 --prtemca plm_ssh_args {SSH}"
    " --stdin none --bind-to none --map-by slot -x TF_CPP_MIN_LOG_LEVEL=2 -x PYTHONUNBUFFERED=1"
    " -x PATH=/opt/clusterctl/training/bin:/usr/local/bin:/usr/bin:/bin"
    f" -x CLUSTERCTL_JOB={JOB}"
    " --mca pml ob1 --mca btl self,sm,tcp --mca btl_tcp_if_include 10.0.0.0/24"
    " --mca mpi_yield_when_idle 1"
    " /opt/clusterctl/training/bin/python -W ignore train_imagenet_resnet_hvd.py"
    " --synthetic --log_dir imagenet_resnet_synthetic"
    " --num_batches 40 -b 8 --image_size 64 --nofp16 --display_every 10 --clear_log"
)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        pytest.param(with_gpus(FOUR), GPU_4, id="gpu-4.1"),
        # p3.16xlarge and small g5 instances: one network card, no EFA.
        pytest.param(with_gpus(), on_gpus_with_5(HIERARCHICAL), id="p3-5"),
        pytest.param(with_efa(4, gpu_memory_mib=40960, library_path="/usr/local/cuda/lib64"),
         on_gpus_with_5(EFA, f" -x LD_LIBRARY_PATH={EFA_PATH}:/usr/local/cuda/lib64"), id="p4d-5"),
        pytest.param(with_efa(32, gpu_memory_mib=81559),
            on_gpus_with_5(EFA, f" -x LD_LIBRARY_PATH={EFA_PATH}"), id="p5-5"),
        # EFA without a GPU: no setting is for NCCL.
        pytest.param(facts(FIVE, efa=1, efa_libraries=("/opt/amazon/efa/lib",)), CPU_5, id="c5n"),
        pytest.param(facts(FOUR), CPU_4, id="cpu-4.1"),
        pytest.param(facts(FIVE), CPU_5, id="cpu-5"),
    ],
)  # fmt: skip
def test_the_whole_line(head, expected):
    assert line(JobRequest(32, synthetic=True), head) == expected


@pytest.mark.parametrize(
    ("hosts", "interfaces", "network"),
    [
        ("10.0.0.4 10.0.0.5", "lo 127.0.0.1/8 ens5 10.0.0.4/24", "10.0.0.0/24"),
        # Of several network cards, the one of the hosts file's addresses, found by the network.
        ("10.0.0.4 10.0.0.5", "ens6 10.0.9.7/24 ens5 10.0.0.4/20", "10.0.0.0/20"),
        ("10.0.0.4 10.0.1.5 10.0.2.6", "ens5 10.0.0.4/24", "10.0.0.0/22"),
        # The tutorial's hosts file calls the leader localhost.
        ("10.0.0.5 localhost", "tun0 10.8.0.2 ens5 10.0.0.4/24", "10.0.0.0/24"),
        ("localhost", "lo 127.0.0.1/8 ens5 10.0.0.4/24", "10.0.0.0/24"),
        # A bridge in another network is harmless; one in the hosts' network is not, nor is lo.
        ("172.31.0.4", "docker0 172.17.0.1/16 eth0 172.31.0.4/20", "172.31.0.0/20"),
        ("172.100.1.200 172.48.3.124", "br-1f 172.18.0.1/16 eth0 172.100.1.200/24", ""),
        ("10.0.0.4 54.1.2.3", "lo 127.0.0.1/8 ens5 10.0.0.4/24", "0.0.0.0/2"),
        ("10.0.0.4 100.1.2.3", "lo 127.0.0.1/8 ens5 10.0.0.4/24", ""),
        ("10.0.0.4 192.0.2.3", "ens5 10.0.0.4/24", ""),
        # Names, IPv6 addresses, and hosts that did not report leave the network unknown.
        ("demo-0 demo-1", "ens5 10.0.0.4/24", ""),
        ("fd00::4 fd00::5", "ens5 10.0.0.4/24", ""),
        ("10.0.0.4 10.0.0.5", "", ""),
        ("10.0.0.4 10.0.0.5", "ens5 nonsense", ""),
    ],
)
def test_the_network_of_the_hosts(hosts, interfaces, network):
    words = interfaces.split()
    head = HeadFacts("/h", interfaces=tuple(zip(words[::2], words[1::2])))
    assert shared_network(hosts.split(), head) == network


def output_of(folder, script, *arguments, **more):
    request = JobRequest(2, script=script, output=folder, arguments=arguments, **more)
    return plan_job(request, facts(), HOSTS, JOB).output


@pytest.mark.parametrize("script", ["program.py", "~/program.py"])
@pytest.mark.parametrize("end", ["", "/", "/."])
@pytest.mark.parametrize(
    "folder",
    ["~", "/", "/etc", "/home/ubuntu", "/data/../home/ubuntu", "~/.ssh", "~/x/../.ssh/y", "/tmp"]
    + ["~/.clusterctl", f"~/.clusterctl/code/{JOB}x", "/home/ubuntu/.clusterctl/jobs", "/root"],
)
def test_a_folder_for_results_that_the_nodes_need_is_refused(folder, end, script):
    with pytest.raises(UsageError, match="the nodes need"):
        output_of(folder + end, script)


@pytest.mark.parametrize(
    ("folder", "path"),
    [
        ("~/results/", "/home/ubuntu/results"),
        ("/data/.", "/data"),
        ("/tmp/x", "/tmp/x"),
        (".", f"/home/ubuntu/.clusterctl/code/{JOB}"),
        ("out", f"/home/ubuntu/.clusterctl/code/{JOB}/out"),
    ],
)
def test_a_folder_for_results(folder, path):
    assert output_of(folder, "program.py") == path


@pytest.mark.parametrize("program", EXAMPLES_MODELS)
def test_the_model_of_a_shipped_example_is_fetched(program):
    """Wherever the program saves it: by its own default, its flag or SageMaker's variable."""
    script, home = f"~/examples/horovod/{program}", "/home/ubuntu"
    default = EXAMPLES_MODELS[program]
    assert f'"SM_MODEL_DIR", "{default}"' in "".join(
        file.read_text() for file in (CHECKOUT / "examples/horovod" / program).parent.glob("*.py")
    )
    assert output_of(None, script) == home + default[1:]
    assert output_of("~/x", script) == f"{home}/x"
    assert output_of(None, script, "--epochs", "1", "--model-dir=/m") == "/m"
    assert output_of(None, script, "--model_dir", "m") == f"{home}/examples/horovod/tensorflow/m"
    assert output_of(None, script, "--model_dir", "s3://b/m") == "", "the program refuses it"
    assert output_of(None, script, variables=(Variable("SM_MODEL_DIR", "/sm"),)) == "/sm"
    for unfit in ("/tmp", "~", "~other/m", ""):
        assert output_of(None, script, "--model_d", unfit) == ""
    assert output_of(None, "~/mine/mnist_hvd.py") == ""


@pytest.mark.parametrize(
    "folder", ["", "s3://b/out", "~other/x", *("..", "../x", f"../../jobs/{JOB}")]
)
def test_no_folder_for_results(folder):
    with pytest.raises(UsageError, match="the nodes need" if folder[:1] == "." else None):
        output_of(folder, "program.py")


def test_where_the_network_is_not_known_known_bridges_are_left_out():
    text = line(JobRequest(2, synthetic=True), facts(interfaces=()))
    assert " --mca btl_tcp_if_exclude lo,docker0,virbr0 " in text


def test_variables_and_options_of_the_users_own():
    given = ["NCCL_DEBUG=INFO", "PYTHONUNBUFFERED=", "WANDB_API_KEY=hidden", "HERE", "A=1", "A=b=c"]
    request = JobRequest(
        32,
        variables=tuple(parse_variable(text, {"HERE": "hidden too"}) for text in given),
        mpi_arguments=mpirun_arguments(
            ["--report-bindings", "-bind-to none", "--mca pml '^ucx a'"]
        ),
    )
    plan = plan_job(request, facts(), HOSTS, JOB)
    ours = (
        f" -x TF_CPP_MIN_LOG_LEVEL=2 -x PYTHONUNBUFFERED="
        " -x PATH=/opt/clusterctl/training/bin:/usr/local/bin:/usr/bin:/bin"
        f" -x NCCL_DEBUG=INFO -x WANDB_API_KEY -x HERE -x A=b=c -x CLUSTERCTL_JOB={JOB}"
        " -x RANK_BINDING=none"
        " --mca btl self,sm,tcp --mca btl_tcp_if_include 10.0.0.0/24 --mca mpi_yield_when_idle 1"
        " --report-bindings -bind-to none --mca pml '^ucx a'"
        " /opt/clusterctl/training/bin/python -W ignore "
    )
    for text in plan.lines:
        assert f" --map-by slot{ours}" in text
        assert "--bind-to none" not in text.replace(ours, "")
        assert "hidden" not in text
    described = to_data(spec_of(plan))
    assert described["variables"] == {
        "NCCL_DEBUG": "INFO",
        "PYTHONUNBUFFERED": "",
        "WANDB_API_KEY": None,
        "HERE": None,
        "A": "b=c",
    }
    assert described["mpi_arguments"] == list(request.mpi_arguments)
    assert "hidden" not in to_json(spec_of(plan)) + "".join(plan.lines)


@pytest.mark.parametrize(
    ("option", "gone"),
    [
        ("--mca btl_tcp_if_exclude eth1", "--mca btl_tcp_if_include 10.0.0.0/24"),
        ("--prtemca plm_ssh_args '-o Port=2222'", f"--prtemca plm_ssh_args {SSH}"),
        ("--map-by ppr:4:node", "--map-by slot"),
    ],
)
def test_an_option_of_the_users_takes_the_place_of_ours(option, gone):
    request = JobRequest(2, synthetic=True, mpi_arguments=mpirun_arguments([option]))
    ours = line(JobRequest(2, synthetic=True), facts())
    assert line(request, facts()) == ours.replace(f" {gone}", "").replace(
        f" {FIVE.python}", f" {option} {FIVE.python}"
    )


@pytest.mark.parametrize(
    "text", ["", "=1", "1A=1", "A B=1", "A*", "É=1", "A\n=1", "-x", "NOT_HERE", f"{JOB_VARIABLE}=1"]
)
def test_no_variable(text):
    with pytest.raises(UsageError):
        parse_variable(text, {"HERE": "1"})


@pytest.mark.parametrize(
    "text", ["true", "'a", "-np 4", "--hostfile=x", "-H a", "-x A=1", "-n 3", "--wdir /x", "-wd=/x"]
)
def test_no_option_for_mpirun(text):
    with pytest.raises(UsageError):
        mpirun_arguments([text])


def flags_of(text):
    return text.partition("train_imagenet_resnet_hvd.py ")[2]


DATA = "--data_dir /home/ubuntu/data/tf-imagenet/ --num_epochs 90 -b 256"
SYNTHETIC = "--synthetic --log_dir imagenet_resnet_synthetic"
LARC = "--mom 0.977 --wdecay 0.0005 --loss_scale 256. --use_larc"
CPU = "-b 8 --image_size 64 --nofp16 --display_every 10"


@pytest.mark.parametrize(
    ("request_", "head", "flags"),
    [
        # The flags of the tutorial's train.sh, train_more_aug.sh and train_synthetic.sh.
        (
            JobRequest(32),
            with_gpus(),
            f"{DATA} --lr_decay_mode poly --warmup_epochs 10 --clear_log",
        ),
        # From 128 GPUs on the warm-up is that of the tutorial's run.
        *((JobRequest(ranks, more_augmentation=True), with_gpus(),
           f"{DATA} --increased_aug {LARC} --lr_decay_mode linear_cosine --warmup_epochs {epochs}"
           " --clear_log") for ranks, epochs in [(32, 5), (127, 5), (128, 10), (256, 10)]),
        (JobRequest(127, synthetic=True), with_gpus(),
         f"{SYNTHETIC} --num_epochs 5 -b 256 --clear_log"),
        (JobRequest(128, synthetic=True), with_gpus(),
         f"{SYNTHETIC} --num_epochs 5 -b 256 --use_larc --loss_scale 256. --clear_log"),
        (JobRequest(128, synthetic=True, epochs=2, arguments=("--nouse_larc",)), with_gpus(),
         f"{SYNTHETIC} --num_epochs 2 -b 256 --loss_scale 256. --clear_log --nouse_larc"),
        # On CPUs.
        (JobRequest(2, data_dir="~/small one"), facts(),
         f"--data_dir '/home/ubuntu/small one' --num_batches 40 {CPU} --lr_decay_mode poly"
         " --clear_log"),
        (JobRequest(2, data_dir="s3://bucket/imagenet", epochs=4, clears=False), facts(),
         f"--data_dir s3://bucket/imagenet --num_epochs 4 {CPU} --lr_decay_mode poly"
         " --warmup_epochs 1"),
        # The user's value replaces ours: a flag is not given twice.
        (JobRequest(2, data_dir="/d", arguments=("--num_batches", "7", "--fp16")), facts(),
         "--data_dir /d -b 8 --image_size 64 --display_every 10 --lr_decay_mode poly --clear_log"
         " --num_batches 7 --fp16"),
        (JobRequest(32, arguments=("--num_batches=7", "--noclear_log")), with_gpus(),
         "--data_dir /home/ubuntu/data/tf-imagenet/ -b 256 --lr_decay_mode poly"
         " --num_batches=7 --noclear_log"),
        (JobRequest(32, data_dir="data/small", clears=True, epochs=9), with_gpus(),
         "--data_dir /home/ubuntu/data/small --num_epochs 9 -b 256 --lr_decay_mode poly"
         " --warmup_epochs 3 --clear_log"),
    ],
)  # fmt: skip
def test_the_trainers_flags(request_, head, flags):
    hosts = parse_hosts_file("10.0.0.4 slots=256\n")
    assert flags_of(line(request_, head, hosts)) == flags


FAST = "--all_cpus --xla --fused_update --fp16_allreduce"
POLY = "--lr_decay_mode poly --warmup_epochs 10"
H100 = {"gpu_memory_mib": 81559}
FUSION = {"HOROVOD_FUSION_THRESHOLD": "67108864"}


@pytest.mark.parametrize(
    ("request_", "head", "flags", "variables", "batch"),
    [
        # Without EFA the fusion buffer is the tutorial's.
        (JobRequest(8), with_gpus(), f"-b 256 {POLY} {FAST}", {}, 256),
        (JobRequest(8), with_efa(4, **H100), f"-b 408 {POLY} {FAST}", FUSION, 408),
        # At most 32,768 images a step, in batches that are multiples of 8.
        (JobRequest(80), with_efa(4, **H100), f"-b 408 {POLY} {FAST}", FUSION, 408),
        (JobRequest(100), with_efa(4, **H100), f"-b 320 {POLY} {FAST}", FUSION, 320),
        (JobRequest(256), with_efa(4, **H100), f"-b 128 {POLY} {FAST}", FUSION, 128),
        # A run that is counted in steps measures speed, at one batch on all numbers of GPUs.
        (JobRequest(256, arguments=("--num_batches", "9")), with_efa(4, **H100),
         f"-b 408 --lr_decay_mode poly {FAST}", FUSION, 408),
        # What the user gives wins.
        (JobRequest(8, arguments=("--noxla", "-b", "512")), with_efa(4, **H100),
         f"-b 408 {POLY} {FAST.replace('--xla ', '')}", FUSION, None),
        (JobRequest(8, arguments=("--batch_size=64", "--nofp16")), with_gpus(),
         f"-b 256 {POLY} {FAST.replace(' --fp16_allreduce', '')}", {}, None),
        (JobRequest(8, tuning=HorovodTuning(fusion_threshold_bytes=1 << 20)), with_efa(4),
         f"-b 256 {POLY} {FAST}", {}, 256),
        (JobRequest(8, variables=(parse_variable("HOROVOD_FUSION_THRESHOLD=9", {}),)), with_efa(4),
         f"-b 256 {POLY} {FAST}", {}, 256),
        (JobRequest(8, tuning=HorovodTuning(autotune=True)), with_efa(4), f"-b 256 {POLY} {FAST}",
         {}, 256),
        # CPUs compile nothing: there the compiled update is slower.
        (JobRequest(8), facts(), f"{CPU} --lr_decay_mode poly --all_cpus", {}, None),
    ],
)  # fmt: skip
def test_the_recipe_fast(request_, head, flags, variables, batch):
    hosts = parse_hosts_file("10.0.0.4 slots=256\n")
    plan = plan_job(replace(request_, recipe="fast"), head, hosts, JOB)
    end = " ".join(["", "--clear_log", *request_.arguments])
    assert flags_of(plan.line).partition(" -b ")[2] == f"{flags}{end}"[3:]
    own = [word for word in flags.split() if word in FAST.split()]
    told = plan.recipe.as_data()
    assert told == {
        "name": "fast",
        "flags": own,
        "variables": variables,
        "batch": batch,
        "largest_step": 32_768,
    }
    # The line has what is recorded, and the job's record has it, too.
    assert all(f"{name}={value}" in plan.argv for name, value in variables.items())
    assert to_data(spec_of(plan).recipe) == told


def test_the_recipe_is_the_tutorials_unless_another_is_named():
    plain, named = (
        plan_job(JobRequest(32, recipe=name), with_efa(4, **H100), HOSTS, JOB)
        for name in (None, "tutorial")
    )
    assert plain == named
    assert str(plain.recipe) == "recipe tutorial: -b 256"
    fast = plan_job(JobRequest(32, recipe="fast"), with_efa(4, **H100), HOSTS, JOB)
    assert str(fast.recipe) == f"recipe fast: -b 408 {FAST}, HOROVOD_FUSION_THRESHOLD=67108864"
    assert plan_job(JobRequest(2, script="x.py"), facts(), HOSTS, JOB).recipe is None


@pytest.mark.parametrize("environment", [FOUR, FIVE])
def test_a_training_is_evaluated_on_the_head_node(environment):
    request = JobRequest(32, more_augmentation=True, arguments=("--model", "my net"))
    plan = plan_job(request, with_gpus(environment, addresses=("10.0.0.4",)), HOSTS, JOB)
    assert plan.lines == (plan.line, plan.evaluation_line)
    assert plan.evaluation_line.startswith(
        f"{environment.mpirun.path} -np 8 --host localhost:8 --stdin none --bind-to none"
        " --map-by slot -x HOROVOD_HIERARCHICAL_ALLREDUCE=1"
    )
    assert f"CLUSTERCTL_JOB={JOB}" in plan.evaluation
    assert flags_of(plan.evaluation_line) == f"{DATA} --eval --num_gpus 32 --model 'my net'"


@pytest.mark.parametrize(
    "request_",
    [
        JobRequest(2, synthetic=True),
        JobRequest(2, script="x.py"),
        JobRequest(2, evaluate=False),
        JobRequest(2, arguments=("--eval",)),
    ],
)
def test_what_is_not_evaluated(request_):
    plan = plan_job(request_, with_gpus(), HOSTS, JOB)
    assert (plan.evaluation, plan.evaluation_line, plan.lines) == ((), "", (plan.line,))
    assert ("--eval" in plan.argv) == ("--eval" in request_.arguments)
    assert not ("--eval" in plan.argv and "--clear_log" in plan.argv)


@pytest.mark.parametrize(
    ("text", "known", "slots"),
    [
        # The tutorial's hosts file: the leader is on the last line.
        ("172.100.1.200 slots=8\n172.48.3.124 slots=4\nlocalhost slots=2\n", {}, 2),
        ("10.0.0.5 slots=8\n10.0.0.4 slots=4\n", {"addresses": ("172.17.0.1", "10.0.0.4")}, 4),
        ("demo-1 slots=8\ndemo-0 slots=4\n", {"hostname": "demo-0"}, 4),
        ("10.0.0.5 slots=8\n", {"gpus": 3}, 3),
        ("10.0.0.5 slots=8\n", {}, 1),
    ],
)
def test_the_head_nodes_slots(text, known, slots):
    assert head_slots(facts(**known), parse_hosts_file(text)) == slots


# GPU memory as nvidia-smi prints it in public logs, with older and newer drivers.
MEMORIES_MIB = {
    "K80": (11441,),
    "V100 16 GB": (16160, 16384),
    "V100 32 GB": (32510, 32768),
    "T4": (15079, 15109, 15360),
    "A10G": (23028,),
    "L4": (23034,),
    "L40S": (46068,),
    "A100 40 GB": (40536, 40960),
    "A100 80 GB": (81251, 81920),
    "H100": (81559,),
    "unknown": (None,),
}


@pytest.mark.parametrize(("gpu", "memories"), MEMORIES_MIB.items())
def test_a_preset_is_named_or_follows_from_the_gpu_and_its_memory(gpu, memories):
    assert CPU in line(JobRequest(8, synthetic=True, preset="cpu"), with_gpus())
    for memory in memories:
        head = facts(nvidia_driver=True, gpu_memory_mib=memory)
        words = shlex.split(line(JobRequest(8, synthetic=True), head))
        assert words[words.index("-b") + 1] == ("128" if gpu in ("K80", "unknown") else "256")


@pytest.mark.parametrize(
    ("environment", "option"),
    [
        (FOUR, "--mca plm_rsh_no_tree_spawn 1 --mca plm_rsh_num_concurrent 64"),
        (FIVE, "--prtemca plm_ssh_no_tree_spawn 1 --prtemca plm_ssh_num_concurrent 64"),
    ],
)
def test_from_64_hosts_all_are_dialled_at_once(environment, option):
    def hosts(count):
        return parse_hosts_file("".join(f"10.0.0.{n} slots=8\n" for n in range(1, count + 1)))

    request = JobRequest(8, synthetic=True)
    assert option in line(request, facts(environment), hosts(64))
    assert "num_concurrent" not in line(request, facts(environment), hosts(63))


def test_a_script_of_the_users_own_gets_none_of_the_trainers_flags():
    request = JobRequest(2, script="~/it's mine.py", arguments=("-v",))
    words = shlex.split(line(request, facts()))
    assert words[-3:] == [FIVE.python, "/home/ubuntu/it's mine.py", "-v"]
    plan = plan_job(request, facts(), HOSTS, JOB)
    assert (plan.script_path, plan.home) == ("/home/ubuntu/it's mine.py", "/home/ubuntu")
    here = plan_job(JobRequest(2, script="../my proj/mine.py"), facts(), HOSTS, JOB)
    code = f"/home/ubuntu/.clusterctl/code/{JOB}"
    assert (here.argv[-1], here.script_path, here.code) == (*2 * [f"{code}/mine.py"], code)
    assert f" --map-by slot --wdir {code} " in here.line
    assert plan_job(JobRequest(2), facts(), HOSTS, JOB).script_path == ""


def test_a_program_of_the_users_own_is_started_on_its_share_of_the_processors():
    """mpirun binds nothing, so what starts the program binds it."""

    def program(**changes):
        request = JobRequest(4, script="~/mine.py", arguments=("-v",), **changes)
        plan = plan_job(request, with_gpus(torch_python="/usr/bin/python3"), HOSTS, JOB)
        return " ".join(plan.argv).partition("10.0.0.0/24 ")[2]

    mine = f"{FIVE.python} /home/ubuntu/mine.py -v"
    assert program().endswith(f" {FIVE.python} -IS /home/ubuntu/.clusterctl/start_rank.py {mine}")
    assert program(per_host=1) == program()
    # torchrun starts its ranks itself.
    assert program(torchrun=True).endswith("/usr/bin/python3 /home/ubuntu/mine.py -v")
    assert "start_rank.py" not in program(torchrun=True)


@pytest.mark.parametrize(
    "option",
    [
        *("--bind-to core", "-bind-to=none", "--bind-to none", "--bind-to-core"),
        *("--map-by ppr:8:node:PE=6", "--map-by=slot:pe=2", "--map-by pe-list=0,1"),
        *("--map-by rankfile:file=/r", "--rankfile /r", "-rf /r", "--cpu-set 0,1", "--cpu-list 0"),
        *("--mca hwloc_default_binding_policy core", "--prtemca hwloc_default_binding_policy core"),
        *("--mca rmaps_default_mapping_policy slot:PE=2", "--cpus-per-proc 2"),
    ],
)
@pytest.mark.parametrize("per_host", [None, 4])
def test_binding_options_of_the_users_own_bind_in_place_of_the_ranks(option, per_host):
    arguments = mpirun_arguments([option])
    request = JobRequest(8, script="/m.py", mpi_arguments=arguments, per_host=per_host)
    words = line(request, with_gpus())
    assert " -x RANK_BINDING=none " in words
    own = replace(request, variables=(parse_variable("RANK_BINDING=gpu", {}),))
    assert " -x RANK_BINDING=gpu " in line(own, with_gpus()), "the variable of the user's own wins"
    assert f" {option} " in words
    assert "--bind-to none" not in words.replace(option, "")


@pytest.mark.parametrize(
    ("option", "kept"),
    [
        ("--map-by node", "--bind-to none"),
        ("--map-by core:OVERSUBSCRIBE", "--bind-to none"),
        ("--npernode 4", "--bind-to none"),
        ("--report-bindings", "--bind-to none --map-by slot"),
        ("--rank-by slot", "--bind-to none --map-by slot"),
        # Open MPI 5 ignores this parameter of 4, and would bind all ranks to the first socket.
        ("--mca hwloc_base_binding_policy core", "--bind-to none --map-by slot"),
        # Open MPI refuses these beside --map-by.
        ("--rankfile /pe=1", ""),
        ("--cpu-set 0,1", ""),
        ("--cpus-per-proc 2", "--map-by slot"),
    ],
)
def test_only_what_the_users_options_replace_is_left_out(option, kept):
    request = JobRequest(8, script="/m.py", mpi_arguments=mpirun_arguments([option]))
    words = line(request, with_gpus()).replace(option, "")
    ours = [two for two in ("--bind-to none", "--map-by slot") if two in words]
    assert " ".join(ours) == kept
    assert ("RANK_BINDING=none" in words) == ("--bind-to" not in kept)


def test_more_ranks_on_a_node_than_gpus_are_no_matter_of_more_nodes():
    most = max(entry.slots for entry in HOSTS.entries)
    with pytest.raises(UsageError, match=f"a node has {most} GPU.*, and each rank takes one"):
        check_per_host(JobRequest(1, per_host=most + 1), HOSTS)
    with pytest.raises(UsageError, match="--processes-per-host 1 with .*: there are ") as raised:
        ranks_per_host(JobRequest(len(HOSTS.entries) + 1, per_host=1), HOSTS)
    assert raised.value.hint == f"with 1 on each node there are {len(HOSTS.entries)} at most"


def test_slots_of_nodes_without_gpus_are_not_called_gpus():
    hosts, more = parse_hosts_file("a\nb\n"), "write slots=2 for each node into FILE"
    with pytest.raises(UsageError) as raised:
        check_per_host(JobRequest(4, per_host=2), hosts, more)
    assert raised.value.message == (
        "2 processes on each node: a node has 1 slot, and no GPU, and each rank takes one slot"
    )
    assert raised.value.hint == more
    with pytest.raises(NotEnoughGpus, match="^wanted 4 slots, there are 2"):
        check_request(JobRequest(4), hosts.slots, more, "slots")


@pytest.mark.parametrize(
    ("ranks", "per_host", "hint"),
    [
        (6, None, "6 with --processes-per-host 3"),
        (5, None, "4"),
        (7, None, "6 with --processes-per-host 3"),
        (5, 3, "4 without --processes-per-host"),
        (4, 3, "4 without --processes-per-host"),
    ],
)
def test_torchrun_is_hinted_at_the_most_ranks_that_are_even(ranks, per_host, hint):
    hosts = parse_hosts_file("a slots=4\nb slots=4\n")
    request = JobRequest(ranks, script="~/d.py", torchrun=True, per_host=per_host)
    with pytest.raises(UsageError, match="as torchrun wants it") as raised:
        ranks_per_host(request, hosts)
    assert raised.value.hint == f"take {hint}, or say another number"
    words = hint.split()
    better = replace(
        request, ranks=int(words[0]), per_host=int(words[-1]) if "with" in words else None
    )
    assert sum(ranks_per_host(better, hosts)) == int(words[0])


def test_a_binding_policy_of_open_mpi_4():
    mpirun = MpiRun("/usr/bin/mpirun", "4.1.4")
    for parameter in ("hwloc_base_binding_policy core", "rmaps_base_mapping_policy slot:PE=2"):
        assert sets_binding(mpirun, ("--mca", *parameter.split()))
    assert not sets_binding(mpirun, ("--mca", "hwloc_default_binding_policy", "core"))


@pytest.mark.parametrize(
    ("slots", "changes", "expected"),
    [
        (1, {}, None),
        (1, {"tuning": HorovodTuning(hierarchical_allreduce=True)}, "1"),
        (8, {"per_host": 1}, None),
        (8, {"per_host": 2}, "1"),
        (8, {}, "1"),
        (8, {"tuning": HorovodTuning(hierarchical_allreduce=False)}, "0"),
    ],
)
def test_gradients_are_added_up_within_nodes_only_where_one_has_several_ranks(
    slots, changes, expected
):
    """One GPU on each node: g5.xlarge and the like."""
    hosts = parse_hosts_file("".join(f"10.0.0.{n} slots={slots}\n" for n in range(4, 12)))
    words = plan_job(JobRequest(8, synthetic=True, **changes), with_gpus(), hosts, JOB).argv
    values = dict(word.split("=", 1) for word in words if "=" in word)
    assert values.get("HOROVOD_HIERARCHICAL_ALLREDUCE") == expected
    assert values["HOROVOD_FUSION_THRESHOLD"] == "16777216"


def test_the_smoke_test_with_a_rank_on_each_node_adds_up_nothing_within_nodes():
    command = allreduce_command("/opt/t", "5.0.11", ["10.0.0.4", "10.0.0.5"], GPU, with_gpus())
    assert "HOROVOD_HIERARCHICAL_ALLREDUCE" not in command
    assert "-x HOROVOD_FUSION_THRESHOLD=16777216 " in command


def test_a_weird_home_stays_one_word():
    head = with_gpus(home="/home/we ird'\"é", library_path="/a b/lib:/c")
    plan = plan_job(JobRequest(8), head, HOSTS, JOB)
    assert "/home/we ird'\"é/data/tf-imagenet/" in plan.argv
    assert "LD_LIBRARY_PATH=/a b/lib:/c" in plan.argv
    assert shlex.split(plan.line) == list(plan.argv)
    assert plan.workdir == "/home/we ird'\"é/examples/horovod/tensorflow"


BARE = Environment(FOUR.mpirun, "/usr/bin/python3", False)


@pytest.mark.parametrize(
    ("ranks", "changes", "says"),
    [
        (33, {"synthetic": True}, "wanted 33 GPUs, there are 32"),
        (0, {"synthetic": True}, "0 GPUs make no sense"),
        (-4, {"synthetic": True}, "-4 GPUs make no sense"),
        (1, {"preset": "tpu"}, "no preset 'tpu'"),
        (
            1,
            {"synthetic": True, "data_dir": "/d"},
            "--data-dir cannot be combined with --synthetic: it reads",
        ),
        (1, {"script": "x", "epochs": 3}, "--epochs cannot be combined with --script"),
        (1, {"script": "x", "epochs": 3, "script_mode": True}, "--epochs cannot be combined"),
        (1, {"script": "x", "clears": True}, "--clear cannot be combined with --script"),
        (1, {"script": "x", "clears": False}, "--resume cannot be combined with --script"),
        (1, {"clears": False, "arguments": ("--clear_log",)}, "--clear_log does the opposite"),
        (1, {"synthetic": True, "clears": False}, "no checkpoints"),
        (1, {"arguments": ("--synthetic",)}, "comes before --"),
        (1, {"recipe": "slow"}, "there is no recipe 'slow'"),
        (1, {"script": "x", "recipe": "fast"}, "--recipe cannot be combined with --script"),
        (1, {"script": "x", "recipe": "tutorial"}, "--recipe cannot be combined with --script"),
    ],
)
def test_requests_that_are_refused(ranks, changes, says):
    with pytest.raises(NotEnoughGpus if ranks == 33 else UsageError, match=says) as raised:
        check_request(JobRequest(ranks, **changes), HOSTS.slots, "add nodes")
        plan_job(JobRequest(ranks, **changes), facts(), HOSTS, JOB)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("environments", "says"),
    [
        ((), "no Open MPI on demo-0"),
        ((BARE,), r"Horovod is not installed on demo-0 \(searched in /usr/bin/python3\)"),
    ],
)
def test_the_first_environment_with_horovod_is_taken(environments, says):
    with pytest.raises(MissingTool, match=says) as raised:
        line(JobRequest(1, synthetic=True), facts(environments=environments))
    assert raised.value.hint
    head = facts(environments=(*environments, FIVE))
    assert line(JobRequest(1, synthetic=True), head).startswith(FIVE.mpirun.path)
    # A user's own program may not need Horovod.
    assert line(JobRequest(1, script="/x.py"), facts(BARE)).endswith("/usr/bin/python3 /x.py")


@pytest.mark.parametrize(
    ("ranks", "per_host", "hosts", "each"), [(32, None, 4, 8), (8, 2, 4, 2), (3, None, 1, 3)]
)
def test_one_torchrun_on_each_node(ranks, per_host, hosts, each):
    request = JobRequest(
        ranks, script="~/d.py", torchrun=True, per_host=per_host, arguments=("a b",)
    )
    plan = plan_job(request, with_gpus(torch_python="/opt/pytorch/bin/python3"), HOSTS, JOB)
    start = f"/opt/clusterctl/training/bin/mpirun -np {hosts} --hostfile hosts "
    assert plan.line.startswith(start)
    assert " --bind-to none --map-by ppr:1:node " in plan.line
    sh, c, shell, *program = plan.argv[-6:]
    assert (sh, c, *program) == ("sh", "-c", plan.python, "/home/ubuntu/d.py", "a b")
    # A retry on fewer nodes changes only -np.
    assert shell.startswith(
        'exec "$0" -m torch.distributed.run --nnodes "$OMPI_COMM_WORLD_SIZE" '
        f'--node_rank "$OMPI_COMM_WORLD_RANK" --nproc_per_node {each} '
        "--master_addr 10.0.0.4 --master_port 28514 --no_python"
    )
    assert plan.per_host == each
    assert plan.python == "/opt/pytorch/bin/python3"
    # Debian's PyTorch 1.13 on Python 3.11 fails without them.
    assert " -x PET_REDIRECTS=9:0 -x PET_TEE=9:0 " in plan.line
    # By the names of PyTorch 2.8 and of 2.9.
    for name in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"):
        assert f" -x {name}=2000 " in plan.line
    for name in ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"):
        assert f" -x {name}=/tmp/clusterctl.{JOB}.flight. " in plan.line
    given = replace(request, variables=(Variable("PET_TEE", "3"),))
    plan = plan_job(given, with_gpus(torch_python="/p"), HOSTS, JOB)
    assert " -x PET_REDIRECTS=9:0 -x PET_TEE=3 " in plan.line
    given = replace(request, variables=(Variable("MASTER_PORT", "29500"),))
    shell = plan_job(given, with_gpus(torch_python="/p"), HOSTS, JOB).argv[-4]
    assert '--master_addr 10.0.0.4 --master_port "$MASTER_PORT" ' in shell
    by_mpirun = JobRequest(8, synthetic=True, per_host=2)
    assert "TORCH_" not in line(by_mpirun, facts())
    assert " -np 8 --hostfile hosts " in line(by_mpirun, facts())
    assert " --map-by ppr:2:node " in line(by_mpirun, facts())


# As a rank of PyTorch's sees them, by the shell that mpirun starts.
SEEN = """import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
print(json.dumps([os.environ[name] for name in names] + sys.argv[1:]))"""


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({}, ["5", "6", "2", "3", "10.0.0.4", "28514"]),
        ({"MASTER_PORT": "29500", "LOCAL_RANK": "0"}, ["5", "6", "0", "3", "10.0.0.4", "29500"]),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"},
            ["1", "2", "3", "4", "10.0.0.4", "28514"],
        ),
    ],
)
def test_pytorchs_variables_are_set_for_each_rank_of_a_script_and_users_own_win(given, seen):
    variables = tuple(parse_variable(f"{name}={value}", {}) for name, value in given.items())
    request = JobRequest(
        6, script="~/d.py", arguments=("a b", '$"'), per_host=3, variables=variables
    )
    argv = plan_job(request, facts(), HOSTS, JOB).argv
    exports = dict(argv[at + 1].split("=", 1) for at, word in enumerate(argv) if word == "-x")
    ranks = {"RANK": "5", "SIZE": "6", "LOCAL_RANK": "2", "LOCAL_SIZE": "3"}
    environ = {f"OMPI_COMM_WORLD_{name}": value for name, value in ranks.items()}
    # Variables that the nodes have already must not number the ranks.
    environ |= {"RANK": "0", "WORLD_SIZE": "1", **exports, "PATH": os.environ["PATH"]}
    program = ["a b", '$"']
    # What binds a rank comes in between. No node is here that has it.
    at = argv.index("-IS") - 1
    start = argv[argv.index("sh") if "sh" in argv else at : at]
    python, script = argv[at + 3 : -2]
    assert ((python, script), list(argv[-2:])) == ((FIVE.python, "/home/ubuntu/d.py"), program)
    done = completed([*start, sys.executable, "-c", SEEN, *program], env=environ, check=True)
    assert json.loads(done.stdout) == [*seen, *program]
    trained = line(JobRequest(6, synthetic=True, per_host=3), facts())
    assert "MASTER_" not in trained and "RANK" not in trained, "only users' programs need them"


def test_ranks_meet_where_all_nodes_reach_the_first():
    """`localhost` may be the head node's line in a user's hosts file."""
    several = parse_hosts_file("localhost slots=8\n10.0.0.5 slots=8\n")
    script = JobRequest(16, script="~/d.py")
    torchrun = replace(script, torchrun=True)
    head = facts(torch_python="/p")
    assert " -x MASTER_ADDR=10.0.0.4 " in line(script, head, several)
    assert " --master_addr 10.0.0.4 " in line(torchrun, head, several)
    alone = parse_hosts_file("localhost slots=8\n")
    assert " -x MASTER_ADDR=localhost " in line(replace(script, ranks=8), head, alone)


def test_the_port_is_one_that_nothing_has_on_the_head_node(tmp_path, monkeypatch):
    """Neither a process that listens, nor a job that has not ended: the real facts tell both.

    A job that was killed, or whose node was rebooted, has ended without a recorded end.
    """
    commands = {
        "ended": "mpirun -x MASTER_PORT=21000 sh",
        "queued": "mpirun -x MASTER_ADDR=h -x MASTER_PORT=21003 sh",
        "torchrun": "mpirun sh -c 'exec \"$0\" --master_port 21006 --no_python'",
        "lost": "mpirun -x MASTER_PORT=21009 sh",
    }
    jobs = {}
    for number, (name, command) in enumerate(commands.items()):
        path = tmp_path / f".clusterctl/jobs/20261120-154501-000{number}"
        path.mkdir(parents=True)
        (path / "command").write_text(command)
        (path / "lock").write_text(f"{os.getpid()} boot\n")
        jobs[name] = JobFolder(path)
    assert all(jobs[name].take() for name in ("queued", "torchrun"))

    def facts_of_node_in(folder):
        monkeypatch.chdir(folder)
        return facts_of_head(read_report(LocalNode(tmp_path), HEAD, facts_to_read(), "looking"))

    # A clone of their sources in the home folder is not the installed package.
    for name in ("torch", "horovod"):
        (tmp_path / name).mkdir()
    with socket.create_server(("127.0.0.1", 0)) as one, socket.socket() as connected:
        connected.connect(one.getsockname())
        found, usual = (facts_of_node_in(folder) for folder in (tmp_path, "/"))
        listening, outgoing = one.getsockname()[1], connected.getsockname()[1]
    jobs["queued"].release()
    jobs["torchrun"].release()
    assert (found.environments, found.torch_python) == (usual.environments, usual.torch_python)
    busy = found.busy_ports
    assert {listening, 21003, 21006} <= busy
    assert not {outgoing, 21000, 21009} & busy

    def port(*taken):
        request = JobRequest(2, script="~/d.py")
        return plan_job(request, facts(busy_ports=frozenset(taken)), HOSTS, JOB).port

    assert [port(), port(28514), port(28516), port(28513, 28517)] == [28514, 28517, 28517, 28514]
    assert port(*range(28514, 30000)) == 20000, "the search goes on at the first"
    with pytest.raises(ClusterctlError, match="no three ports are free on demo-0, 20000 to 29998"):
        port(*range(20000, 30000))


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"ranks": 12}, UsageError, "12 ranks are not as many on each node"),
        ({"per_host": 9}, UsageError, "a node has 8 GPUs, and each rank takes one"),
        ({"ranks": 12, "per_host": 2}, UsageError, "12 ranks: there are 4 nodes"),
        ({"script": None}, UsageError, "a program of PyTorch's"),
        (
            {"tuning": HorovodTuning(autotune=True)},
            UsageError,
            "a Horovod option cannot be combined with --launcher",
        ),
        ({}, MissingTool, "PyTorch is not installed on demo-0"),
    ],
)
def test_what_torchrun_refuses(changes, error, says):
    request = JobRequest(**{"ranks": 8, "script": "~/d.py", "torchrun": True, **changes})
    with pytest.raises(error, match=says) as raised:
        check_request(request, HOSTS.slots, "add nodes")
        plan_job(request, facts(torch_python="/p" if changes else ""), HOSTS, JOB)
    assert raised.value.hint


MINE = Environment(
    MpiRun("/home/ubuntu/mine/bin/mpirun", "5.0.11"), "/home/ubuntu/mine/bin/python", False
)


def test_an_environment_of_the_users_is_the_only_one_that_counts():
    both = facts(environments=(MINE, FIVE), torch_python="/home/ubuntu/mine/bin/python")
    request = JobRequest(1, script="/x.py", environment="~/mine")
    plan = plan_job(request, both, HOSTS, JOB)
    assert (plan.argv[0], plan.python) == (MINE.mpirun.path, MINE.python)
    assert plan_job(replace(request, torchrun=True), both, HOSTS, JOB).python == MINE.python
    # An environment with PyTorch needs no Open MPI of its own.
    torch = facts(torch_python="/opt/pytorch/bin/python")
    plan = plan_job(replace(request, environment="/opt/pytorch"), torch, HOSTS, JOB)
    assert (plan.argv[0], plan.python) == (FIVE.mpirun.path, "/opt/pytorch/bin/python")
    assert plan.argv[-2:] == ("/opt/pytorch/bin/python", "/x.py")
    for changes, says in (
        ({"environment": "~/other"}, "no Open MPI in /home/ubuntu/other on demo-0"),
        ({"environment": "/other", "torchrun": True}, "no PyTorch in /other on demo-0"),
        # The trainer needs Horovod; that of another environment does not count.
        ({"script": None, "synthetic": True}, "no Horovod in /home/ubuntu/mine on demo-0"),
    ):
        with pytest.raises(MissingTool, match=says) as raised:
            plan_job(replace(request, **changes), both, HOSTS, JOB)
        assert "/other/bin/pip" not in raised.value.hint, "the folder may be a wrong one"
    for folder in ("mine", "~", "~bob/mine", "", "/", "~/"):
        with pytest.raises(UsageError, match="--env is a folder of the nodes"):
            check_request(replace(request, environment=folder), HOSTS.slots, "add nodes")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/", "4.1.4"),
        ("mpirun (Open MPI) 5.0.8amzn1\n", "5.0.8amzn1"),
        ("mpirun (Open MPI) 4.1.0rc2", "4.1.0rc2"),
        ("HYDRA build details:\n    Version: 4.0.2", "not Open MPI"),
        ("", "not Open MPI"),
        ("mpirun (Open MPI) 3.1.3", "Open MPI 3.1.3 is too old"),
    ],
)
def test_versions(text, version):
    try:
        assert parse_mpirun_version(text) == version
    except MissingTool as refused:
        assert version in refused.message
