"""Deployment to nodes: the files, the program that unpacks them, and the installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.domain.errors import ClusterctlError, CommandFailed, UsageError
from clusterctl.domain.results import CommandResult
from clusterctl.jobs import deploy
from clusterctl.jobs.deploy import (
    HOSTS_PATH,
    LAUNCHER_PATH,
    UNPACK,
    Code,
    DeployedFiles,
    archive,
    deploy_files,
    deployed_files,
    example_files,
    first_archive,
    first_command,
    program_to_ship,
    ship_code,
)
from clusterctl.jobs.plan import JobPlan
from clusterctl.operations.train import _on_all, code_findings
from tests.local_node import HEAD, LocalNode
from tests.pythons import python_or_skip
from tests.variants import usual

CHECKOUT = Path(__file__).parents[2]
TRAINER = "examples/horovod/tensorflow/train_imagenet_resnet_hvd.py"
UTIL = "examples/horovod/tensorflow/utils/preprocess_imagenet.py"
SCRIPT = "examples/horovod/tensorflow/train_synthetic.sh"


def unpack(home, files, **environ):
    command = UNPACK.command(HOSTS_PATH, LAUNCHER_PATH)
    done = subprocess.run(
        ["sh", "-c", command],
        input=UNPACK.stdin(archive(files)),
        env={**os.environ, "HOME": str(home), **environ},
        capture_output=True,
        check=False,
    )
    return CommandResult(
        "demo-0", command, done.returncode, done.stdout.decode(), done.stderr.decode(), 0.1
    )


@pytest.mark.parametrize("version", [None, "3.8"])
def test_the_tutorials_folder_is_there_once_and_its_scripts_can_be_run(
    weird_home, tmp_path, version
):
    files = {**example_files(), HOSTS_PATH: b"10.0.0.4 slots=8\n"}
    (tmp_path / "python3").symlink_to(python_or_skip(version) if version else sys.executable)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    report = deployed_files(unpack(weird_home, files, **path))
    assert set(report.written) == set(files) >= {TRAINER, UTIL, SCRIPT, HOSTS_PATH, LAUNCHER_PATH}
    assert os.access(weird_home / SCRIPT, os.X_OK)
    assert (weird_home / HOSTS_PATH).read_text() == "10.0.0.4 slots=8\n"
    assert (weird_home / TRAINER).read_bytes() == (CHECKOUT / TRAINER).read_bytes()
    before = {path: path.stat().st_mtime_ns for path in weird_home.rglob("*")}
    assert deployed_files(unpack(weird_home, files, **path)) == DeployedFiles((), tuple(files), ())
    assert {path: path.stat().st_mtime_ns for path in weird_home.rglob("*")} == before


def test_logs_and_checkpoints_of_runs_in_a_checkout_stay_there(tmp_path, monkeypatch):
    examples = tmp_path / "horovod"
    for name in ("mnist/mnist_hvd.py", "tensorflow/imagenet_resnet/model.ckpt-200.index"):
        (examples / name).parent.mkdir(parents=True)
        (examples / name).touch()
    monkeypatch.setattr(deploy, "EXAMPLES", examples)
    names = {Path(name).name for name in example_files.__wrapped__()}
    assert "mnist_hvd.py" in names
    assert "model.ckpt-200.index" not in names


def first(home, files, script=""):
    done = subprocess.run(
        ["bash", "-c", first_command(len(script.encode()))],
        input=script.encode() + first_archive(files),
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        check=False,
    )
    return done.stdout.decode()


def test_a_script_comes_before_the_files_and_keeps_its_options_to_itself(weird_home):
    # For 512 nodes the head node's script has 500 kB of host keys: too long for an argument.
    script = f"set -eu\numask 077\ncd /\nkeys='{'k' * 500_000}'\necho ${{#keys}}\necho complete\n"
    assert first(weird_home, {TRAINER: b"ours"}, script) == "500000\ncomplete\nfirst\n"
    assert (weird_home / TRAINER).read_bytes() == b"ours"
    assert (weird_home / TRAINER).parent.stat().st_mode & 0o777 != 0o700


def test_nodes_that_have_the_files_get_one_command_and_only_one_archive(weird_home):
    node = LocalNode(weird_home)
    for _ in range(2):
        [result] = deploy_files(node, [HEAD], "10.0.0.4 slots=8\n").values
        assert HOSTS_PATH in (*deployed_files(result).written, *deployed_files(result).same)
    assert len(node.commands) == 2
    deploy_files(node, [HEAD], "10.0.0.4 slots=8\n", lambda target: "echo complete")
    assert len(node.commands) == 4


def test_where_the_script_fails_nothing_is_put_there(weird_home):
    assert first(weird_home, {TRAINER: b"ours"}, "set -e\nfalse\necho complete\n") == ""
    assert not (weird_home / TRAINER).exists()


def test_the_first_time_and_the_update_agree_and_the_first_overwrites_nothing(weird_home):
    files = {**example_files(), HOSTS_PATH: b"10.0.0.4 slots=8\n"}
    assert first(weird_home, files) == "first\n"
    assert os.access(weird_home / SCRIPT, os.X_OK)
    assert deployed_files(unpack(weird_home, files)) == DeployedFiles((), tuple(files), ())
    (weird_home / TRAINER).write_bytes(b"the image's own")
    assert first(weird_home, files) == ""
    assert (weird_home / TRAINER).read_bytes() == b"the image's own"


def test_a_file_the_user_changed_there_stays_but_the_hosts_file_follows_the_cluster(weird_home):
    def deployed(trainer, hosts):
        return deployed_files(unpack(weird_home, {TRAINER: trainer, HOSTS_PATH: hosts}))

    deployed(b"ours", b"a\n")
    assert deployed(b"ours 2", b"a\n") == DeployedFiles((TRAINER,), (HOSTS_PATH,), ())
    (weird_home / TRAINER).write_bytes(b"theirs")
    (weird_home / UTIL).parent.mkdir()
    (weird_home / UTIL).write_bytes(b"theirs, by a name that a later version ships")
    assert deployed_files(unpack(weird_home, {UTIL: b"ours"})).kept == (UTIL,)
    (weird_home / HOSTS_PATH).write_bytes(b"by hand\n")
    for _ in range(2):
        assert deployed(b"ours 3", b"b\n").kept == (TRAINER,)
    assert (weird_home / TRAINER).read_bytes() == b"theirs"
    assert (weird_home / HOSTS_PATH).read_bytes() == b"b\n"


@pytest.mark.parametrize("record", usual(2, [b"{", b"[]", b"", b'{"a": 1}', b"\xff"]))
def test_a_damaged_record_of_what_was_written_overwrites_nothing_of_the_user(weird_home, record):
    unpack(weird_home, {TRAINER: b"ours", UTIL: b"ours"})
    (weird_home / TRAINER).write_bytes(b"theirs")
    (weird_home / ".clusterctl/shipped.json").write_bytes(record)
    update = {TRAINER: b"ours 2", UTIL: b"ours", HOSTS_PATH: b"a\n"}
    for _ in range(2):
        assert deployed_files(unpack(weird_home, update)).kept == (TRAINER,)
    assert (weird_home / TRAINER).read_bytes() == b"theirs"


def test_a_lost_execute_permission_is_put_right(weird_home):
    unpack(weird_home, {SCRIPT: b"#!/bin/sh\n"})
    (weird_home / SCRIPT).chmod(0o644)
    assert deployed_files(unpack(weird_home, {SCRIPT: b"#!/bin/sh\n"})).written == (SCRIPT,)
    assert os.access(weird_home / SCRIPT, os.X_OK)


def test_what_cannot_be_written_is_one_sentence(weird_home):
    (weird_home / "examples").write_text("a file where the folder should be")
    with pytest.raises(CommandFailed, match="putting the examples there failed: .*examples"):
        deployed_files(unpack(weird_home, {TRAINER: b"x"}))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a user's folder, which is the current one. The content of each file is its name."""
    folder = tmp_path / "proj ect"
    own = ("mine.py", "lib/model.py", "runs/big.bin", "é.txt")
    for name in (*own, "lib/__pycache__/x.pyc", ".env", "env39/pyvenv.cfg", "env39/bin/python"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "link").symlink_to("lib/model.py")
    monkeypatch.chdir(folder)
    return folder


def git(*arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *identity, *arguments], check=True, stdout=subprocess.DEVNULL)


def test_a_programs_folder_goes_with_it(project, weird_home):
    whole = ("mine.py", "lib/model.py", "link", "runs/big.bin", "é.txt")
    plain = program_to_ship("mine.py")
    assert (plain.files, plain.commit, str(plain)) == (
        whole, "", "mine.py and 4 other files from here (49 B)"
    )  # fmt: skip
    node = LocalNode(weird_home)
    assert not ship_code(node, [HEAD], plain, "20261120-154501-3f2a").failures
    there = weird_home / ".clusterctl/code/20261120-154501-3f2a"
    assert (there / "runs/big.bin").read_text() == "runs/big.bin"
    assert (there / "link").readlink() == Path("lib/model.py")
    assert there.stat().st_mode & 0o777 == 0o700
    (weird_home / ".clusterctl/code/full").write_text("")
    [failed] = ship_code(node, [HEAD], plain, "full").failures
    assert "cannot put mine.py there: " in str(failed.error)
    # tar names the reason first, and ends with a line that has none.
    (weird_home / ".clusterctl/code/taken/mine.py/x").mkdir(parents=True)
    [failed] = ship_code(node, [HEAD], plain, "taken").failures
    assert "cannot put mine.py there: tar: mine.py: Cannot open: " in str(failed.error)

    # What tar writes on a full disk.
    stderr = (
        "tar: lib/model.py: Cannot write: No space left on device\n"
        "tar: lib/model.py: Wrote only 4096 of 10240 bytes\n"
        "tar: Exiting with failure status due to previous errors\n"
    )
    full = SimpleNamespace(run=lambda *_, **__: CommandResult("demo-0", "tar", 2, "", stderr, 0.1))
    with pytest.raises(ClusterctlError, match="Cannot write: No space left on device") as error:
        _on_all(
            SimpleNamespace(cluster=SimpleNamespace(name="demo")),
            ship_code(full, [HEAD], plain, "full"),
        )
    assert "clusterctl disk demo" in error.value.hint

    (project.parent / "shared.py").write_text("shared")
    # A channel's folder that the nodes lack, with a program beside it that makes such data.
    (project / "make_sample_x.py").touch()
    channels = {"train": {"mode": "File", "source": "~/da ta"}}
    contract = {"channels": channels, "hosts": []}
    [failed] = ship_code(node, [HEAD], program_to_ship("mine.py"), "none", contract).failures
    assert failed.error.message == "channel train: there is no folder ~/da ta on this node"
    assert "clusterctl copy NAME FOLDER/ '~/da ta/'; or make some" in failed.error.hint
    assert "make_sample_x.py" in failed.error.hint
    (project / "make_sample_x.py").unlink()

    (project / "lib/shared.py").symlink_to("../../shared.py")
    linked = program_to_ship("mine.py")
    assert linked.size_bytes == plain.size_bytes + len("shared")
    assert not ship_code(node, [HEAD], linked, "linked").failures
    there = weird_home / ".clusterctl/code/linked/lib"
    assert ((there / "shared.py").is_symlink(), (there / "shared.py").read_text()) == (
        False,
        "shared",
    )
    (project / "lib/shared.py").unlink()

    git("init", "-q")
    (project / ".gitignore").write_text("runs\nenv*\n*.pyc\n.env\n")
    git("add", "mine.py", "lib/model.py")
    git("commit", "-qm", "first")
    (project / "lib/model.py").unlink()
    of_git = program_to_ship("../proj ect/mine.py")
    assert of_git.files == ("mine.py", ".gitignore", "link", "é.txt")
    assert len(of_git.commit) == 40
    assert "D lib/model.py" in of_git.changed
    assert program_to_ship("runs/big.bin").files == ("big.bin",), "one that git ignores"


@pytest.mark.parametrize(
    ("script", "says", "hint"),
    [
        ("none.py", "there is no such file here", "'~/none.py', quoted"),
        ("lib", "is a folder", "one next to it that starts a module"),
        ("-m lib.it", "there is no such file here", "one next to it that starts a module"),
        ("{home}/p/it.py", "is the program here meant", "--script '~/p/it.py' runs"),
        ("it's.py", "there is no such file here", """'~/it'"'"'s.py', quoted"""),
        ("../atop.py", "its folder is ", "a folder of its own"),
        ("hello", "it is a compiled program, not one in Python", "os.execv"),
        ("hello.c", "it is not in Python: line 2: ", "os.execv"),
        ("train.sh", "it is not in Python: line 2: ", "os.execv"),
        ("mine.py", "in all. The largest: runs (64.0 MiB), ", ".gitignore"),
    ],
)
def test_what_is_not_shipped(project, monkeypatch, script, says, hint):
    (project.parent / "atop.py").touch()
    (project / "hello").write_bytes(b"\x7fELF\2\1\1\0")
    (project / "hello.c").write_text("#include <mpi.h>\nint main(int n, char **a) { return 0; }\n")
    (project / "train.sh").write_text('#!/bin/sh\nexec python3 train.py "$@"\n')
    home = project.parent / "user"
    monkeypatch.setenv("HOME", str(home))
    (home / "p").mkdir(parents=True)
    (home / "p/it.py").touch()
    with (project / "runs/big.bin").open("wb") as file:
        file.truncate(64 << 20)
    with pytest.raises(UsageError) as raised:
        program_to_ship(script.format(home=home))
    assert says in raised.value.message
    assert hint in raised.value.hint
    assert program_to_ship(str(project / "mine.py")) is None, "that of the nodes has such a path"
    if "no such file" in says:  # as a job file has named it: no option was given
        with pytest.raises(UsageError, match=f"^entry_point {script}: {says}$"):
            program_to_ship(script, ".")


@pytest.mark.parametrize(
    ("program", "versions", "changes", "found"),
    [
        ("import torch\n", {"python": "3.11"}, {}, ["script.torch", "script.requirements"]),
        ("import torch\n", {"python": "3.11"}, {"torchrun": True}, ["script.requirements"]),
        ("from torch import nn\n", {"torch": "2.3"}, {}, ["script.requirements"]),
        # It may do without; and of a node that did not answer nothing is known.
        ("try:\n import torch\nexcept: 0\n", {"python": "3.11"}, {}, ["script.requirements"]),
        ("import torch\n", {}, {}, ["script.requirements"]),
        ("import torchness\n", {"python": "3.11"}, {"mode": True}, []),
    ],
)
def test_what_a_program_needs_beyond_its_files(tmp_path, program, versions, changes, found):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/mine.py").write_text(program)
    code = Code(tmp_path, "lib/mine.py", ("lib/mine.py", "lib/requirements.txt"), 1)
    in_script_mode = changes.pop("mode", False)
    job = JobPlan("j", 1, "cpu", False, "/w", ("mpirun",), **changes)
    told = [*code_findings(code, job, versions, in_script_mode)]
    assert [one.check for one in told] == found
    assert all(one.hint and one.severity.value != "error" for one in told)


def test_script_mode_ships_a_shell_script(project):
    (project / "train.sh").write_text('#!/bin/sh\nexec python3 mine.py "$@"\n')
    assert program_to_ship("train.sh", in_script_mode=True).script == "train.sh"
    assert program_to_ship("train.sh", ".", in_script_mode=True).script == "train.sh"


@pytest.mark.parametrize("script", ["~/mine.py", "/opt/none/mine.py"])
def test_a_program_of_the_nodes_is_not_shipped(project, script):
    assert program_to_ship(script) is None
