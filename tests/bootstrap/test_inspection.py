"""The inspection script, run by a real shell, and the findings from its answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.bootstrap.inspection import (
    Inspection,
    check_inspection,
    inspection_script,
    parse_inspection,
)
from clusterctl.bootstrap.training import FOLDER
from clusterctl.domain.errors import CommandFailed

GPU = "GPU {}: NVIDIA A100-SXM4-40GB (UUID: GPU-{})"
GPUS = "; ".join(f"echo '{GPU.format(index, index)}'" for index in range(8))


def inspect(node, head=False):
    done = node.run(inspection_script(head))
    assert done.stderr == ""
    assert done.returncode == 0
    return parse_inspection("demo-0", done.stdout)


@pytest.mark.parametrize("status", [0, 2])
def test_a_node_with_gpus(node, status):
    assert (inspect(node).cloud_init, inspect(node).gpus) == (None, None), "a plain one"
    node.program("cloud-init", f"exit {status}")
    node.program("nvidia-smi", GPUS)
    node.program("hostname", "echo ip-10-0-0-4")
    found = inspect(node)
    assert (found.hostname, found.cloud_init, found.gpus) == ("ip-10-0-0-4", status, 8)
    assert found.mpi_key == ""
    check_inspection("demo-0", found, 8)
    assert list(node.home.iterdir()) == []
    said = node.run(inspection_script(False)).stdout.splitlines()
    assert [line for line in said if "stage" in line] == ["stage cloud-init", "stage gpus"]
    # More GPUs than the instance type has, and an image without cloud-init.
    check_inspection("demo-3", Inspection("h", None, 9), 8)


def test_an_environment_to_train_in(node):
    """It is in the folder that `env install` received."""
    for path, content in (("env/bin/mpirun", ""), (".clusterctl/training-env", f"{node.home}/env")):
        assert not inspect(node).training or Path(FOLDER).exists()
        (node.home / path).parent.mkdir(parents=True)
        (node.home / path).write_text(content)
        (node.home / path).chmod(0o755)
    assert inspect(node).training


def test_cloud_init_has_failed(node):
    node.program("cloud-init", "exit 1")
    log = "\n".join(f"log E: step {number} \N{SNOWMAN}" for number in range(3))
    node.program("tail", f"[ $3 = /var/log/cloud-init-output.log ] && printf '%s\\n' '{log}'")
    found = inspect(node)
    with pytest.raises(CommandFailed) as caught:
        check_inspection("demo-0", found, 0)
    assert "exit status 1" in caught.value.message
    assert "log E: step 2 \N{SNOWMAN}" in caught.value.message
    assert "--user-data" in caught.value.hint


def test_a_log_that_only_root_may_read(node):
    node.program("cloud-init", "exit 1")
    node.program("tail", "echo no permission >&2; exit 1")
    node.program("sudo", '[ "$1 $2" = "-n tail" ] && echo from the log')
    assert inspect(node).log == "from the log"


def test_nothing_eats_the_rest_of_the_script(node):
    for name in ("cloud-init", "nvidia-smi"):
        node.program(name, "cat >/dev/null")
    assert inspect(node).cloud_init == 0


def test_a_driver_that_comes_up_late(node):
    node.program("sleep", "true")
    node.program(
        "nvidia-smi", f'[ -e "$HOME/ready" ] || {{ touch "$HOME/ready"; exit 9; }}; {GPUS}'
    )
    assert inspect(node).gpus == 8


def test_a_driver_that_does_not_come_up(node):
    node.program("sleep", "true")
    node.program("nvidia-smi", "echo 'NVIDIA-SMI has failed because ...'; exit 9")
    found = inspect(node)
    with pytest.raises(CommandFailed) as caught:
        check_inspection("demo-0", found, 8)
    assert "NVIDIA-SMI has failed" in caught.value.message
    assert "--image" in caught.value.hint


@pytest.mark.parametrize(
    ("found", "gpus", "message"),
    [
        (Inspection("h", 0, 7), 8, "nvidia-smi sees 7 GPUs, its type has 8"),
        (Inspection("h", 0, None), 8, "no nvidia-smi"),
        (Inspection("h", 0, 0), 8, "sees no GPU, its type has 8"),
        (Inspection("h", 1, 8), 8, "cloud-init failed"),
        (Inspection("h", 127, 8), 8, "exit status 127"),
    ],
)
def test_not_what_its_type_promises(found, gpus, message):
    with pytest.raises(CommandFailed) as caught:
        check_inspection("demo-3", found, gpus)
    assert message in caught.value.message
    assert caught.value.host == "demo-3"
    assert caught.value.exit_status == 1
    replaced = "clusterctl replace demo 3" in caught.value.hint
    assert replaced == message.startswith(("nvidia-smi sees", "sees no GPU"))


def test_the_key_of_mpirun_is_made_once_and_stays_there(node):
    first = inspect(node, head=True)
    second = inspect(node, head=True)
    assert first.mpi_key == second.mpi_key
    kind, body, comment = first.mpi_key.split()
    assert (kind, comment) == ("ssh-ed25519", "clusterctl-mpi")
    key = node.home / ".ssh" / "clusterctl_mpi"
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.parent.stat().st_mode & 0o777 == 0o700
    assert body in key.with_suffix(".pub").read_text()
    assert "PRIVATE" not in first.mpi_key


def test_a_login_shell_that_prints_things_does_not_confuse(node):
    node.program("hostname", "echo h")
    text = node.run(inspection_script(False)).stdout
    noisy = f"Welcome to Ubuntu\ngpus 99\n\n{text}\x1b[0m bye"
    assert parse_inspection("demo-0", noisy) == parse_inspection("demo-0", text)


@pytest.mark.parametrize("text", ["", "This account is not available.\n", "stage cloud-init\n"])
def test_an_answer_that_is_not_complete(text):
    with pytest.raises(CommandFailed):
        parse_inspection("demo-0", text)
