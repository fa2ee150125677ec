"""Where ranks are, compared with the maps that Open MPI itself prints."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clusterctl.diagnosis.mapping import displayed, placed
from clusterctl.jobs.mpirun import MpiLaunch, MpiRun, mpirun_argv

OURS = "/opt/clusterctl/training/bin/mpirun"
DEBIANS = "/usr/bin/mpirun"
AS_ROOT = {
    f"{kind}_ALLOW_RUN_AS_ROOT{more}": "1" for kind in ("OMPI", "PRTE") for more in ("", "_CONFIRM")
}


def real_map(mpirun, words, folder):
    """Return the map of a real mpirun, which launches nothing, by rank."""
    only = ["--display", "map", "--rtos", "donotlaunch"]
    if mpirun == DEBIANS:
        only = ["--display-map", "--do-not-launch"]
    argv = [mpirun, *words, *only, "hostname"]
    env = {**os.environ, **AS_ROOT, "TMPDIR": str(folder)}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False, timeout=60)
    return displayed(f"{done.stdout}\n{done.stderr}".splitlines())


def case_of(rng):
    """Return options of mpirun and the hosts file, None without one."""
    hosts = [(f"10.0.0.{n}", rng.randint(1, 4)) for n in range(1, rng.randint(2, 5))]
    words, file = [], hosts
    if rng.random() < 0.3:
        words = ["-H", ",".join(f"{host}:{slots}" for host, slots in hosts)]
        file = None
    policy = rng.choice(["", "slot", "node", "core", "node:oversubscribe", "ppr", "N", "seq"])
    room = sum(slots for _, slots in hosts)
    if policy == "ppr":
        per = rng.randint(1, 3)
        words += ["--map-by", f"ppr:{per}:node"]
        room = sum(min(slots, per) for _, slots in hosts)
    elif policy == "N":
        per = rng.randint(1, 3)
        words += ["-N", str(per)]
        room = sum(min(slots, per) for _, slots in hosts)
    elif policy:
        words += ["--map-by", policy]
    if rng.random() < 0.8:
        words += ["-np", str(rng.randint(1, room))]
    return words, file


@pytest.mark.all
@pytest.mark.parametrize("seed", range(4, 20))
@pytest.mark.parametrize("mpirun", [OURS, DEBIANS])
def test_ranks_are_where_mpirun_maps_them(mpirun, seed, tmp_path):
    """Right, or not known: never another host."""
    check_case(mpirun, seed, tmp_path)


@pytest.mark.parametrize("mpirun", [OURS, DEBIANS])
def test_some_ranks_are_where_mpirun_maps_them(mpirun, tmp_path):
    for seed in (1, 2, 3):
        check_case(mpirun, seed, tmp_path)


def check_case(mpirun, seed, folder):
    if not shutil.which(mpirun):
        pytest.skip(f"{mpirun} is not installed")
    words, file = case_of(random.Random(seed))
    line = list(words)
    if file is not None:
        path = folder / "hosts"
        path.write_text("".join(f"{host} slots={slots}\n" for host, slots in file))
        line += ["--hostfile", str(path)]
    # With binding, mpirun counts this machine's processors.
    line += ["--bind-to", "none"]
    real = real_map(mpirun, line, folder)
    found = placed(shlex.join([mpirun, *line, "train.py"]), dict(file or []), (), {})
    if not real:
        return  # mpirun refuses the line: there are no ranks
    if found.hosts:
        assert found.hosts == real, line
    elif "seq" not in words and "node:oversubscribe" not in words:
        raise AssertionError(f"not known: {line}")


@given(st.lists(st.sampled_from(["-np", "4", "--wat", "-H", "a:2,b", "--map-by", "x", ":", "'"])))
@example(["-H", "'", "'"])
@example(["-H", "'", "-np", "'"])
@settings(max_examples=50)
def test_what_is_not_understood_is_not_known(words):
    found = placed(" ".join(["mpirun", *words]), {}, (), {})
    assert set(found.hosts.values()) <= {"a", "b", "x", "4"}


def test_what_mpirun_names_wins():
    log = ["prterun noticed that process rank 1 with PID 7 on node c exited on signal 9"]
    assert placed("mpirun -np 2 -H a,b x", {}, log, {}).hosts == {0: "a", 1: "c"}
    assert placed("mpirun -np 2 -H a,b --rankfile r x", {}, log, {}).hosts == {1: "c"}
    mapped = {"PRTE_MCA_rmaps_default_mapping_policy": "node"}
    assert placed("mpirun -np 2 -H a,b x", {}, (), mapped).hosts == {}
    assert placed("mpirun -np 2 -H a,b x : -np 1 y", {}, (), {}).hosts == {}


def test_a_line_of_ours_is_understood():
    launch = MpiLaunch(
        mpirun=MpiRun(OURS, "5.0.11"),
        hosts=2,
        ranks=3,
        settings=(("pml", "ob1"),),
        exports=(("A", "b c"), ("SECRET", None)),
        program=("sh", "-c", "export RANK=1; exec python train.py -N 3"),
        per_host=2,
    )
    found = placed(shlex.join(mpirun_argv(launch)), {"a": 4, "b": 4}, (), {})
    assert found.hosts == {0: "a", 1: "a", 2: "b"}


def test_a_torchrun_has_several_ranks():
    line = "mpirun -np 2 --map-by ppr:1:node python -m torch.distributed.run --nproc_per_node {} x"
    slots = {"a": 4, "b": 4}
    assert placed(line.format(2), slots, (), {}).hosts == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert placed(line.format("gpu"), slots, (), {}).hosts == {}
