"""Slips of a newcomer, and the hints that lead on."""

from __future__ import annotations

import os
import shlex
import sys

import pytest

from clusterctl.domain.files import ClusterFolder
from clusterctl.ec2.machines import retired_finding
from clusterctl.operations.site import Site, keep_site
from tests.programs import completed


def here(clusterctl, name):
    """Make the folder of a cluster that was launched in the local EC2."""
    folder = ClusterFolder(clusterctl.home / name)
    keep_site(folder, Site("us-east-1 at a local EC2", "123456789012"))
    folder.launch.write_text("[]")


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("up demo --nodes 1 --instance-type ml.p3.2xlarge", "leave out `ml.`"),
        ("attach demo", "Did you mean 'logs -f'?"),
        ("stat demo", "Did you mean 'status'?"),
        ("terminate demo", "Did you mean 'down'?"),
        ("train demo --script x.py -- --lr 1", "GPUS is missing, which comes before"),
    ],
)
def test_a_slip_leads_to_what_was_meant(clusterctl, command, hint):
    ran = clusterctl.anywhere()(*command.split())
    assert (ran.status, hint in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("demo 2 --script x.py --lr 0.3", "demo 2 --script x.py -- --lr 0.3"),
        ("demo 2 --synthetic --batch_size 64 --lab", "demo 2 --synthetic --lab -- --batch_size 64"),
        ("demo --beta -0.5 2 -v", "demo 2 -v -- --beta -0.5"),
        ("demo --nofp16", "demo GPUS -- --nofp16"),
        ("demo 2 --lr=0.1 -x A=1 -- --seed 3", "demo 2 -x A=1 -- --lr=0.1 --seed 3"),
        ("demo 2 proj/train.py", "demo 2 --script proj/train.py"),
        ("2 proj/train.py --lr 'a b'", "2 --script proj/train.py -- --lr 'a b'"),
        ("demo 2 python3 train.py 5", "demo 2 --script train.py -- 5"),
        ("demo 2 -- train.py --lr 3", "demo 2 --script train.py -- --lr 3"),
        ("demo --gpu 2 --synthetic", "demo 2 --synthetic"),
        ("-np 2 demo train.py", "demo 2 --script train.py"),
        ("demo 2 --script x.py --channel a=b --lr 3", "--hyperparameter lr=VALUE"),
    ],
)
def test_the_programs_arguments_go_after_two_dashes(clusterctl, typed, meant):
    ran = clusterctl.anywhere()("train", *shlex.split(typed))
    assert (ran.status, ran.err.splitlines()[-1].endswith(f" {meant}")) == (2, True), ran.err


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        ("--epochs 3", "--epochs cannot be combined with --job-file", "the file's hyperparameters"),
        ("--synthetic", "--synthetic cannot be combined", "leave it out"),
        ("--trace-steps 1:2", "--trace-steps cannot be combined", "leave it out"),
        ("--input-mode File", "--input-mode cannot be combined", "the job file it is input_mode"),
        ("2", "GPUS cannot be combined with --job-file: the file has it", "instance_count"),
        ("--script a.py", "--script cannot be combined with --job-file", "it is entry_point"),
        ("--processes-per-host 2", "--processes-per-host cannot", "it is processes_per_host"),
        ("--credentials mine", "--credentials is for channels from s3://", "leave it out"),
        ("-- --epochs 3", "--epochs: the program's arguments are hyperparameters", ""),
    ],
)
def test_what_a_job_file_does_not_use_is_refused(
    clusterctl, tmp_path, monkeypatch, typed, message, hint
):
    """Also an option with its default, which would look as if it had an effect."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    (tmp_path / "job.yaml").write_text("entry_point: a.py\nchannels: {train: data}\n")
    ran = clusterctl("train", "demo", "--job-file", "job.yaml", *shlex.split(typed))
    assert (ran.status, message in ran.err, hint in ran.err) == (2, True, True), ran.err


@pytest.mark.parametrize(
    ("typed", "option"),
    [
        ("--synthetic", "--input-mode Pipe"),
        ("--script a.py", "--input-mode File"),
        ("--synthetic", "--credentials mine"),
        ("--script a.py --hyperparameter a=1", "--credentials profile"),
        ("--script a.py --channel a=data", "--credentials none"),
    ],
)
def test_what_is_for_channels_is_refused_without_one(clusterctl, typed, option):
    ran = clusterctl("train", "demo", "2", *shlex.split(f"{typed} {option}"))
    message = f"{option.partition(' ')[0]} is for channels"
    assert (ran.status, message in ran.err) == (2, True), ran.err


def test_an_option_is_misspelt_or_the_programs(clusterctl):
    clusterctl = clusterctl.anywhere()
    ran = clusterctl("train", "demo", "2", "--epoch", "3")
    assert "did you mean --epochs?" in ran.err
    ran = clusterctl("bench", "demo", "--gpus", "1,2", "--batch_size", "4")
    assert ran.err.endswith("bench demo --gpus 1,2 -- --batch_size 4\n")
    ran = clusterctl("bench", "demo", "--gpus", "1,2", "--", "--num_batches", "4")
    assert (ran.status, ran.err.endswith("--steps and --warmup\n")) == (2, True), ran.err
    ran = clusterctl("train", "demo", "train.py")
    assert "did you mean GPUS --script train.py?" in ran.err


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        ("demo d --from 0", "DST is missing, where d goes", "copy demo d '~/' --from 0"),
        ("demo", "SRC or DST is missing", "copy demo SRC '~/'"),
    ],
)
def test_a_copy_without_a_destination(clusterctl, typed, message, hint):
    here(clusterctl, "demo")
    ran = clusterctl.anywhere()("copy", *typed.split())
    assert (ran.status, message in ran.err) == (2, True), ran.err
    assert ran.err.endswith(f" {hint}\n"), ran.err


@pytest.mark.parametrize(
    ("place", "refusal"),
    [("runs", "runs holds job 20261120-154501-3f2a"), ("file/below", "cannot write to")],
)
def test_a_model_folder_that_cannot_be_used_is_refused_before_the_start(
    clusterctl, tmp_path, monkeypatch, place, refusal
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/record.json").write_text('{"job_id": "20261120-154501-3f2a"}')
    (tmp_path / "file").write_text("")
    clusterctl.ends(2, refusal, "train", "demo", "2", "--script", "a.py", "--model-dir", place)


def test_a_cluster_in_place_of_a_log_leads_to_its_log(clusterctl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here(clusterctl, "demo")
    ran = clusterctl.anywhere()("explain", "demo")
    assert (ran.status, "clusterctl logs demo | clusterctl explain" in ran.err) == (3, True)
    assert "name a log file" in clusterctl.anywhere()("explain", "train.log").err
    ran = clusterctl.anywhere()("explain", "demo", "20261120-154501-3f2a")
    assert (ran.status, "demo is a cluster" in ran.err) == (3, True)
    assert "clusterctl logs demo 20261120-154501-3f2a | clusterctl explain" in ran.err


def test_a_misspelt_cluster_is_proposed(clusterctl):
    here(clusterctl, "demo")
    assert "did you mean demo?" in clusterctl("status", "dmeo").err
    assert "did you mean" not in clusterctl("status", "training").err


def test_down_with_a_misspelt_name_does_not_look_done(clusterctl):
    here(clusterctl, "demo")
    clusterctl.ends(0, "nothing of a cluster dmeo; did you mean demo?\n", "down", "dmeo", "--yes")


def test_ssh_without_the_clusters_folder_launches_nothing(clusterctl):
    ran = clusterctl.anywhere()("ssh", "demo")
    assert (ran.status, "see whether there is one: clusterctl status demo" in ran.err) == (1, True)
    assert "clusterctl up" not in ran.err


def test_hints_of_python_m_can_be_typed_as_they_are(tmp_path):
    words = ("-m", "clusterctl", "status")
    environ = {**os.environ, "CLUSTERCTL_HOME": str(tmp_path)}
    ran = completed([sys.executable, *words], env=environ)
    assert ran.returncode == 2
    assert "say its name: python -m clusterctl status NAME\n" in ran.stderr
    words = ("-m", "clusterctl", "ssh", "demo")
    ran = completed([sys.executable, *words], env=environ)
    assert "there is one: python -m clusterctl status demo;" in ran.stderr


def test_a_cluster_of_the_local_ec2_is_found_there(clusterctl, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    here(clusterctl, "demo")
    ran = clusterctl.anywhere()("status", "demo")
    assert (ran.status != 0, ran.out) == (True, "")
    assert "hint: cluster demo is on the local EC2: add --lab" in ran.err
    ran = clusterctl.anywhere()("status")
    assert ran.status == 2
    assert "on the local EC2, with --lab: demo" in ran.err


def test_a_hint_stays_where_lab_env_leads_to_the_local_ec2(clusterctl, monkeypatch, moto_url):
    here(clusterctl, "demo")
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    ran = clusterctl.anywhere()(
        *("quarantine", "demo", "1", "--region", "us-east-1", "--reason", "bad\x1b[31m")
    )
    assert ran.status == 2
    assert "a reason has up to 200 characters, all of them printable" in ran.err
    assert "hint: a tag of EC2 keeps it" in ran.err


@pytest.mark.parametrize("command", ["df -h", "df -h /", "df --help", "sh -c 'a  b' -h"])
def test_the_help_of_a_command_is_not_that_of_run(clusterctl, command):
    ran = clusterctl("run", "demo", *command.split())
    # It is run on the cluster, which does not exist.
    assert (ran.status, "there is no cluster demo" in ran.err) == (1, True), ran.err
    assert clusterctl("run", "--help").status == 0
    assert "NAME COMMAND" in clusterctl("run", "demo", "-h").out


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("p3.2xlagre", "there is no type p3.2xlagre", "did you mean p3.2xlarge?"),
        ("p3.99xlarge", "there is no type p3.99xlarge", "did you mean p3."),
        ("p3.2xlarge", "the family p3 is retired", "--instance-type g5.xlarge"),
    ],
)
def test_a_misspelt_type_is_not_called_retired(name, message, hint):
    found = retired_finding(name, False, "us-east-1")
    assert message in found.message
    assert hint in found.hint
