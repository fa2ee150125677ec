"""The fate of launched instances, as EC2 shows it over time."""

from __future__ import annotations

import pytest

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2.launch import attempt
from clusterctl.ec2.launch.attempt import Attempt, read_launches
from clusterctl.ec2.launch.request import Step
from clusterctl.ec2.tags import tag_list
from tests.clock import FakeClock
from tests.ec2.observed import instance

P, R, D = NodeState.PENDING, NodeState.RUNNING, NodeState.SHUTTING_DOWN
STATES = {"p": P, "r": R, "d": D}


class Once:
    """A RunInstances that makes i-0, i-1, ..."""

    def run_instances(self, **request):
        return {"Instances": [{"InstanceId": f"i-{n}"} for n in range(request["MaxCount"])]}


def step(nodes, least):
    labels = {"clusterctl:first-index": "0", "clusterctl:nodes": f"0-{nodes - 1}"}
    request = {
        "ClientToken": "t",
        "MinCount": least,
        "MaxCount": nodes,
        "TagSpecifications": [{"ResourceType": "instance", "Tags": tag_list(labels)}],
    }
    return Step("run_instances", request, "nodes")


@pytest.fixture
def launch(monkeypatch, tmp_path):
    """Launch where each poll shows the next string: a letter for each node, a blank for none.

    Return the indices of nodes taken as alive, the terminated
    instances, and the messages.
    """

    def run(*looks, least=None):
        left, ended, told = list(looks), [], []
        shown = [""]

        def find_states(_, ids):
            shown[0] = left.pop(0) if len(left) > 1 else left[0]
            return {ids[n]: STATES[letter] for n, letter in enumerate(shown[0]) if letter != " "}

        def find(*_, **__):
            return tuple(
                instance(index, STATES[letter], state_reason="Server.InternalError: no")
                for index, letter in enumerate(shown[0])
                if letter != " "
            )

        monkeypatch.setattr(attempt, "find_states", find_states)
        monkeypatch.setattr(attempt, "find_instances", find)
        monkeypatch.setattr(attempt, "name_each", lambda *_: None)
        monkeypatch.setattr(attempt, "terminate", lambda *given, **_: ended.extend(given[2]))
        nodes = len(looks[0])
        record, timeouts = tmp_path / "launch.json", Timeouts(FakeClock())
        made = Attempt(None, Once(), "demo", record, told.append, timeouts=timeouts)
        try:
            alive = made.launch(step(nodes, least or nodes), {})
            return [one.node.index for one in alive], ended, told
        except AwsError as failure:
            return failure.code, ended, told

    return run


@pytest.mark.parametrize(
    ("looks", "least", "alive"),
    [
        (["rr"], None, [0, 1]),
        (["  ", "p ", "pp", "pr", "rr"], None, [0, 1]),
        # EC2 does not show an instance for a moment, early or late.
        (["pp", " p", "  ", "rr"], None, [0, 1]),
        (["pp"] * 60 + [" p", "rr"], None, [0, 1]),
        # One takes long to start: the launcher waits for it later, with the checks for readiness.
        (["pr"], None, [0, 1]),
        # Two nodes are enough; the launcher still waits for the third.
        (["pdp", "rdp", "rdr"], 2, [0, 2]),
        (["rdp", "rdd"], 1, [0]),
    ],
)
def test_which_launched_nodes_count_as_alive(launch, looks, least, alive):
    assert launch(*looks, least=least)[:2] == (alive, [])


@pytest.mark.parametrize(
    ("looks", "least", "said"),
    [
        # The launch has failed, so the launcher does not wait for pending nodes.
        (["pd"], None, "demo-1 died while starting: Server.InternalError: no; terminating"),
        (["ppd", "rdd"], 2, "demo-[1-2] died while starting"),
        (["dd"], None, "demo-[0-1] died while starting: Server.InternalError: no"),
        (["drr"], 1, "demo-0 died while starting"),
    ],
)
def test_failed(launch, looks, least, said):
    code, ended, told = launch(*looks, least=least)
    assert code == "Server.InternalError"
    assert ended == [f"i-{index}" for index in range(len(looks[0]))]
    assert told[0].startswith(said)
    assert told[0].endswith("terminating the others") is ("d" * len(looks[0]) not in looks)


def test_one_that_is_never_shown_stays_written_down(launch, tmp_path):
    with pytest.raises(ClusterctlError) as caught:
        launch("r ")
    assert caught.value.message == "EC2 launched i-1 and does not show them"
    assert [one.token for one in read_launches(tmp_path / "launch.json")] == ["t"]
