"""What `cancel` reports of processes that only the sessions of its first list can find."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from clusterctl.domain.errors import HostUnreachable
from clusterctl.domain.results import FanoutResult, HostOutcome
from clusterctl.node.jobs.processes import NodeProcess
from clusterctl.node.jobs.spec import JobStatus
from clusterctl.operations import kill

JOB = "20260101-000000-abcd"
HOSTS = ["demo-0", "demo-1", "demo-2"]


class World:
    """Three nodes, the last in quarantine. On each, a process leads the job's session, until the
    job is ended, and has an orphan that only the session tells of. `deaf` do not answer the first
    list."""

    def __init__(self, deaf=()):
        self.deaf, self.has_ended = set(deaf), False
        self.orphans = {host: f"{host}:5:77" for host in HOSTS}
        nodes = [SimpleNamespace(index=index) for index in range(3)]
        targets = [SimpleNamespace(host=host) for host in HOSTS]
        self.access = SimpleNamespace(
            connections=self,
            head=targets[0],
            head_name=targets[0].host,
            targets=targets[:2],
            cluster=SimpleNamespace(name="demo", nodes=nodes, in_service=nodes[:2]),
            select=lambda which: targets[:2] if which is None else [targets[one] for one in which],
        )

    def record(self, *_):
        return SimpleNamespace(job_id=JOB, is_active=not self.has_ended, status=JobStatus())

    def end(self, *_):
        self.has_ended = True

    def processes(self, host, query):
        session = self.orphans.get(host, "")
        led = [] if self.has_ended else [NodeProcess(host, 5, 0, "rank", JOB, 1.0, (), "", session)]
        is_found = led or (host, session) in query.sessions
        orphan = [NodeProcess(host, 9, None, "child", None, 1.0, (), "", session)]
        return tuple(led + (orphan if session and is_found else []))

    def list(self, _, targets, query, *timeout_s):
        found = []
        for one in targets:
            silent = HostUnreachable(one.host, "no answer") if one.host in self.deaf else None
            value = None if silent else self.processes(one.host, query)
            found.append(HostOutcome(one.host, value, silent))
        self.deaf = set()
        return FanoutResult(tuple(found))

    def stop(self, _, targets, query):
        ended = [HostOutcome(one.host, self.processes(one.host, query)) for one in targets]
        for one in ended:
            if one.value:
                del self.orphans[one.host]
        return FanoutResult(tuple(ended))


@pytest.fixture
def world(request, monkeypatch):
    made = World(getattr(request, "param", ()))
    for name, work in (
        ("find_job", made.record),
        ("end_job", made.end),
        ("running_jobs", lambda access: [made.record()]),
        ("list_processes", made.list),
        ("end_processes", made.stop),
        ("read_fact", lambda *_: FanoutResult(())),  # no node has a GPU
    ):
        monkeypatch.setattr(kill, name, work)
    return made


@pytest.mark.parametrize("job_id", [JOB, None])
def test_each_node_ends_what_is_in_its_sessions_in_quarantine_too(world, job_id):
    others = kill.cancel(world.access, job_id).others
    assert world.orphans == {}
    assert ([one.host for one in others.ended], others.exit_status) == (HOSTS, 0)


@pytest.mark.parametrize(
    ("world", "failed"), [(["demo-1"], ["demo-1"]), (["demo-2"], [])], indirect=["world"]
)
def test_a_node_that_was_not_listed_in_time_gets_no_all_clear(world, failed):
    others = kill.cancel(world.access, JOB).others
    assert [one.host for one in others.failures] == failed
    assert set(others.answered).isdisjoint(failed)
    assert others.exit_status == (255 if failed else 0)
    for one in others.failures:
        assert "not listed before the job was ended: no answer" in one.error.message
