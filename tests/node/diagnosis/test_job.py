"""What `diagnose` reads of a job on its head node."""

from __future__ import annotations

from clusterctl.node.diagnosis import job as diagnosis
from clusterctl.node.jobs.folder import JobFolder
from clusterctl.node.jobs.spec import JobSpec

JOB_ID = "20261127-000000-abcd"


def test_the_hosts_are_those_of_the_job_and_not_those_of_today(tmp_path, monkeypatch):
    monkeypatch.setattr(diagnosis, "JOBS", tmp_path)
    (tmp_path / "hosts").write_text("10.0.0.4 slots=8\n10.0.0.9 slots=8\n")
    nodes = tuple(
        {"name": f"demo-{index}", "address": f"10.0.0.{index + 4}", "slots": 8} for index in (0, 1)
    )
    job = JobFolder(tmp_path / JOB_ID)
    job.create(JobSpec(JOB_ID, workdir=str(tmp_path), nodes=nodes), [])

    def hosts():
        return diagnosis._of_record(job.record(), 0)["hosts"]

    assert hosts() == "10.0.0.4 slots=8\n10.0.0.5 slots=8\n"
    (job.path / "hosts").write_text("10.0.0.5 slots=8\n")  # of a retry
    assert hosts() == "10.0.0.5 slots=8\n"
