"""A bundle is written to a file and read back, without secrets. An invalid file is one error."""

from __future__ import annotations

import gzip
import json
import os
import stat
import subprocess
import sys

import pytest

from clusterctl.cli.copyclust import copyclust
from clusterctl.cli.diagnose import screen
from clusterctl.cli.main import cli, run_command
from clusterctl.diagnosis import bundle
from clusterctl.diagnosis.evidence import Evidence, JobEvidence, evidence_in
from clusterctl.diagnosis.verdict import diagnose
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.node.jobs.spec import JobState
from clusterctl.node.record import to_data, to_json
from tests.diagnosis.made_up import job_of, with_job, with_rank

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
TEXTS = {
    "mpirun -np 2 -x HOROVOD_FUSION_THRESHOLD=0 python t.py": None,
    "max key: 3 keys/s, 512 tokens: 3, monkey=1, tokenizer=bert": None,
    "grad/conv1 key=12 NCCL_DEBUG=INFO https://host:80/a?b=c": None,
    f"AWS_SECRET_ACCESS_KEY={SECRET}": "AWS_SECRET_ACCESS_KEY=[redacted]",
    f"python t.py --api-key {SECRET} --steps 3": "python t.py --api-key [redacted] --steps 3",
    f"at x.y-z.token={SECRET} and on": "at x.y-z.token=[redacted] and on",
    f"--wandb_token={SECRET} -b 2": "--wandb_token=[redacted] -b 2",
    f'{{"password": "{SECRET} x", "a": 1}}': '{"password": [redacted], "a": 1}',
    "key AKIAIOSFODNN7EXAMPLE here": "key [redacted] here",
    f"git clone https://me:{SECRET[:9]}@x.org/r": "git clone https://[redacted]@x.org/r",
    "GET /o?X-Amz-Signature=ab12&n=1": "GET /o?X-Amz-Signature=[redacted]&n=1",
    f"Authorization: Bearer {SECRET}": None,
    f"mpirun -x DB_PASS={SECRET} -x MY_KEY={SECRET} x": (
        "mpirun -x DB_PASS=[redacted] -x MY_KEY=[redacted] x"
    ),
    "x hf_abcdefghijklmnopqrst y": "x [redacted] y",
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_without_its_secrets(text):
    said = bundle.redacted_text(text)
    assert SECRET[:9] not in said
    if "Bearer" not in text:
        assert said == (TEXTS[text] or text)


def test_a_secret_of_several_values_is_none_of_them():
    said = {"password": [SECRET], "token": {"a": SECRET}, "tokens": 3, "secret": None}
    gone = "[redacted]"
    assert bundle.redacted(said) == {"password": gone, "token": gone, "tokens": 3, "secret": None}


def test_there_and_back(tmp_path):
    key = ("-----BEGIN OPENSSH PRIVATE KEY-----", SECRET, "-----END OPENSSH PRIVATE KEY-----")
    evidence = with_rank(
        job_of(log=("Step 1", *key, "Step 2"), line=f"mpirun -x A_TOKEN={SECRET} x"),
        0,
        argv=("python", "--token", SECRET, "-b", "2"),
        variables={"HOROVOD_SECRET_KEY": SECRET, "NCCL_DEBUG": "INFO"},
    )
    path = tmp_path / "b.json.gz"
    bundle.save(evidence, path)
    assert [one.name for one in tmp_path.iterdir()] == ["b.json.gz"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SECRET.encode() not in gzip.decompress(path.read_bytes())
    gone = "[redacted]"
    clean = with_job(evidence, log=("Step 1", gone, gone, gone, "Step 2"))
    assert bundle.load(path) == with_rank(
        with_job(clean, line=f"mpirun -x A_TOKEN={gone} x"),
        0,
        argv=("python", "--token", gone, "-b", "2"),
        variables={"HOROVOD_SECRET_KEY": gone, "NCCL_DEBUG": "INFO"},
    )
    with pytest.raises(ClusterctlError, match="cannot write the bundle"):
        bundle.save(evidence, tmp_path / "none" / "b")


def test_what_a_later_version_or_a_strange_node_says_is_left_out_and_told():
    seen = with_rank(job_of(hosts=2, per_host=1), 1, gpus=(0, 1))
    data = json.loads(to_json(seen))
    assert evidence_in(data) == seen
    data["weather"] = "rain"
    data["took_s"] = "long"
    process = data["hosts"][1]["processes"][1]
    process["pid"] = True
    process["gpus"] = [0, "one", 2]
    data["hosts"][0]["clock_offset_s"] = float("nan")
    data["hosts"].append(17)
    data["hosts"][0]["facts"]["filesystems"][1]["free_bytes"] = "many"
    seen = evidence_in(data)
    [process] = seen.hosts[1].ranks
    assert (seen.took_s, process.pid, process.gpus) == (0.0, 0, (0, 2))
    assert (seen.hosts[0].clock_offset_s, len(seen.hosts)) == (None, 2)
    assert seen.problems == (
        "took_s: expected a finite number, got 'long'",
        "hosts[0].clock_offset_s: expected a finite number, got nan",
        "hosts[1].processes[1].pid: expected an integer, got True",
        "hosts[1].processes[1].gpus[1]: expected an integer, got 'one'",
        "hosts[2]: expected an object, got 17",
    )
    [unseen] = seen.hosts[0].unseen
    expected = "filesystems[1].free_bytes: expected an integer, got 'many'"
    assert unseen == f"unexpected value: {expected}"
    assert [one.path for one in seen.hosts[0].known.filesystems] == ["/", "/dev/shm"]
    shown = screen(seen, diagnose(seen))
    assert f"not observed: {seen.problems[0]}" in shown
    assert evidence_in([]).problems == ("expected an object, got []",)


def test_a_page_has_no_secrets_either(tmp_path):
    log = (f"AWS_SECRET_ACCESS_KEY={SECRET}", "Step 2")
    evidence = Evidence(cluster="demo", job=JobEvidence(log=log, state=JobState.RUNNING))
    seen, page = tmp_path / "seen", tmp_path / "page.html"
    seen.write_text(json.dumps({"kind": bundle.KIND, "format": 1, "evidence": to_data(evidence)}))
    command = [sys.executable, "-m", "clusterctl", "diagnose", "--from", seen, "--html", page]
    subprocess.run(command, check=False)
    text = page.read_text()
    assert ("AWS_SECRET_ACCESS_KEY" in text, SECRET in text) == (True, False)


def test_what_is_no_bundle_is_told(tmp_path, monkeypatch):
    good = tmp_path / "good"
    bundle.save(Evidence(cluster="demo"), good)
    packed = good.read_bytes()
    later = {"kind": bundle.KIND, "format": 99, "version": "9.0", "evidence": {}}
    cases = {
        "cut short": packed[: len(packed) // 2],
        "damaged": packed[:20] + b"\xff\xff\xff\xff" + packed[24:],
        "no bundle": b"hello",
        "is no bundle": gzip.compress(b'{"a": 1}'),
        "by clusterctl 9.0": json.dumps(later).encode(),
        "no  bundle": b"[" * 100_000,
        "no   bundle": b"",
    }
    for said, content in cases.items():
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(UsageError) as caught:
            bundle.load(tmp_path / "x")
        assert " ".join(said.split()) in caught.value.message, said
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="cannot read"):
            bundle.load(path)
    monkeypatch.setattr(bundle, "MOST_BYTES", 10)
    with pytest.raises(UsageError, match="holds more"):
        bundle.load(good)
    later["format"] = 1
    later["evidence"] = {"cluster": "demo", "news": {"a": 1}}
    (tmp_path / "x").write_text(json.dumps(later))
    monkeypatch.undo()
    assert bundle.load(tmp_path / "x") == Evidence(cluster="demo")


@pytest.mark.parametrize("evidence", [None, {}, [], {"took_s": 3.0}])
def test_a_bundle_without_evidence_is_damaged(tmp_path, capsys, evidence):
    seen = tmp_path / "seen"
    seen.write_text(json.dumps({"kind": bundle.KIND, "format": 1, "evidence": evidence}))
    assert run_command(cli, ["diagnose", "--from", str(seen)]) == 3
    said = capsys.readouterr()
    assert "is damaged" in said.err and "NAME" not in said.out


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data["hosts"][0].update(processes={}),
        lambda data: data["hosts"][1].update(processes={}),
        lambda data: data["hosts"][1]["processes"][1].update(rank="one"),
        lambda data: data["hosts"][1]["processes"].append(3),
        lambda data: data.update(hosts={}),
        lambda data: data.update(job=[]),
        lambda data: data["job"].update(state=7),
    ],
)
def test_nothing_is_inferred_from_what_damage_has_taken(damage):
    data = json.loads(to_json(job_of(hosts=2, per_host=1)))
    damage(data)
    found = diagnose(evidence_in(data))
    assert found.exit_status == 3 and "damaged" in found.verdict, found
    assert "cancel" not in " ".join(one.hint for one in found.findings)
    # What a node sends may be damaged, too.
    data = json.loads(to_json(job_of(hosts=2, per_host=1)))
    data["hosts"][1].update(processes=[], problems=["unexpected value: processes: expected …"])
    assert "damaged" in diagnose(evidence_in(data)).verdict


def test_only_a_regular_file_is_written_and_never_what_is_read(tmp_path, capsys):
    seen, pipe, link = tmp_path / "seen", tmp_path / "pipe", tmp_path / "link"
    bundle.save(Evidence(cluster="demo"), seen)
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    before = seen.read_bytes()
    for words in (
        ["--save", str(pipe)],
        ["--save", str(link)],
        ["--html", str(pipe)],
        ["--html", str(seen)],
        ["--save", str(seen)],
        ["--html", str(tmp_path / "new"), "--save", str(tmp_path / "." / "new")],
    ):
        assert run_command(cli, ["diagnose", "--from", str(seen), *words]) == 3, words
        said = capsys.readouterr()
        assert "is a device or a pipe" in said.err or "overwritten" in said.err
    assert pipe.is_fifo() and seen.read_bytes() == before and not (tmp_path / "new").exists()
    # A link to a file stays a link.
    link.unlink()
    link.symlink_to(tmp_path / "packed")
    assert run_command(cli, ["diagnose", "--from", str(seen), "--save", str(link)]) == 3
    assert link.is_symlink() and (tmp_path / "packed").read_bytes()
    commands = {cli: ["selftest", "--file"], copyclust: ["hosts", "a", "b", "--state-file"]}
    for command, words in commands.items():
        assert run_command(command, [*words, str(pipe)]) == 2, words
        assert "is a device or a pipe" in capsys.readouterr().err
        assert run_command(command, [*words, "s3://bucket/x"]) == 2, words
        assert "s3://bucket/x is a URL, not a path on this machine" in capsys.readouterr().err
    assert pipe.is_fifo()


def test_a_bundle_that_cannot_be_written_keeps_nobody_from_the_verdict(tmp_path, capsys):
    there = tmp_path / "b.json.gz"
    bundle.save(Evidence(cluster="demo"), there)
    words = ["diagnose", "--from", str(there), "--save", str(tmp_path / "none" / "c.json.gz")]
    assert run_command(cli, words) == 3
    said = capsys.readouterr()
    assert said.out.startswith("no job with ranks runs on demo")
    assert "cannot write the bundle" in said.err
