"""The store of faults: the faults that it accepts, and its queries."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.domain.errors import UsageError
from clusterctl.lab.faults.answers import Call, error_answer, throttled_answer
from clusterctl.lab.faults.hosts import Frozen, Shape
from clusterctl.lab.faults.kinds import (
    ApiError,
    Boot,
    Capacity,
    Delay,
    Lag,
    LostAnswer,
    Throttle,
    read_fault,
)
from clusterctl.lab.faults.store import USUAL_VISIBILITY_S, Faults
from clusterctl.lab.hosts.daemon.host_faults import NO_FAULTS, shape_of


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


ERROR = {"kind": "error", "action": "RunInstances", "code": "InternalError"}
CAPACITY = {"kind": "capacity", "instance_type": "p3.2xlarge", "zone": "us-east-1a", "left": 0}
ID = "i-0123456789abcdef0"
GOOD = (
    CAPACITY,
    {**ERROR, "after": True, "times": 2, "skip": 1, "status": 503, "message": "over"},
    {"kind": "throttle", "action": "*", "rate": 0.5, "burst": 2},
    {"kind": "lost", "action": "*", "times": 1},
    {"kind": "delay", "action": "*", "seconds": 1},
    {"kind": "boot", "dies": "A.b", "nodes": [1]},
    {"kind": "lag", "visible_s": 1, "console_s": 1},
    {"kind": "quota", "code": "L-417A185B", "value": 96},
    {"kind": "shape", "instance_id": ID, "up": 10**7, "down": 10**7},
    {"kind": "fill", "instance_id": ID, "left": 1},
    {"kind": "freeze", "instance_id": ID},
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=300))
JSON = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.text(), SCALARS))


@pytest.mark.parametrize(
    "value",
    [
        {"kind": "nonsense"},
        {**CAPACITY, "left": -1},
        {**CAPACITY, "instance_type": "p3.2xlarge\n"},
        {**CAPACITY, "colour": "blue"},
        {"kind": "throttle", "action": "*", "rate": float("nan"), "burst": 1},
        {"kind": "throttle", "action": "**", "rate": 1, "burst": 1},
        {**ERROR, "action": "<script>"},
        {**ERROR, "code": "No Such Code"},
        {**ERROR, "status": 200},
        {**ERROR, "message": "two\nlines"},
        {"kind": "delay", "action": "*", "seconds": 10**7},
        {"kind": "boot", "slow_s": 1, "silent": True},
        {"kind": "boot", "silent": True, "nodes": [-1]},
        {"kind": "freeze", "instance_id": f"{ID}; reboot"},
        {"kind": "cut", "instance_id": "all"},
        {"kind": "shape", "instance_id": ID, "down": 1000},
        {"kind": "readonly", "instance_id": "/data"},
        {"kind": "gpu", "instance_id": ID, "gpu": 1},
        {"kind": "gpu", "instance_id": ID, "remap": "soon"},
    ],
)
def test_what_makes_no_sense_is_refused(value):
    with pytest.raises(UsageError):
        read_fault(value)


@given(st.sampled_from(GOOD), st.data())
@pytest.mark.all
def test_any_request_is_a_fault_or_one_line_of_refusal(good, data):
    """One field of the fault is changed, missing or added."""
    field = data.draw(st.sampled_from([*good, "more"]))
    value = data.draw(st.one_of(JSON, st.just(...)))
    changed = {**good, field: value}
    asked = {key: value for key, value in changed.items() if value is not ...}
    try:
        said = read_fault(data.draw(st.sampled_from([asked, value]))).words
    except UsageError as refused:
        said = refused.message
    assert said and "\n" not in said
    assert len(said) < 250


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (ERROR, "RunInstances: answered with InternalError"),
        ({"kind": "boot", "slow_s": 90}, "the next host: 90 s late"),
        ({"kind": "boot", "silent": True, "nodes": [1, 3]}, "node 1,3: never starts sshd"),
        ({"kind": "boot", "dies": "A.b"}, "the next host: dies with A.b"),
        ({"kind": "lag", "visible_s": 0}, "instances 0 s late"),
        ({"kind": "lag", "places_s": 2, "reordered": True},
         "free places 2 s late, half of the reads in time"),
        ({"kind": "shape", "instance_id": ID, "up": 10**7}, f"{ID}: 10 Mbit/s up"),
        ({"kind": "fill", "instance_id": ID}, f"{ID}: /data is full but for 0 B"),
        ({"kind": "gpu", "instance_id": ID, "gpu": 1, "lost": True, "memory": 9, "xid": 79},
         f"{ID}: GPU 1: is lost, holds 9 MiB, Xid 79"),
    ],
)  # fmt: skip
def test_each_fault_is_described_in_words(value, words):
    """The tests of the command have the texts of the other kinds."""
    assert read_fault(value).words == words


def test_a_bucket_of_each_action_fills_with_time_and_no_further_than_its_brim():
    clock = Clock()
    faults = Faults(clock)
    take = lambda *actions: [faults.take_token(one) for one in actions]  # noqa: E731
    faults.add(Throttle("RunInstances", rate=0.5, burst=2))
    assert take(*["RunInstances"] * 3, "Describe") == [True, True, False, True]
    clock.now += 1.9
    assert take("RunInstances") == [False]
    clock.now += 0.2
    assert take(*["RunInstances"] * 2) == [True, False]
    clock.now += 1000
    assert take(*["RunInstances"] * 3) == [True, True, False]
    # Setting the fault again fills the bucket.
    for _ in range(2):
        faults.add(Throttle("*", rate=0, burst=1))
        assert take("A", "B", "A", "B") == [True, True, False, False]
    assert len(faults.standing()) == 2
    # A request that one bucket refuses takes no token from another bucket.
    faults.add(Throttle("*", rate=0, burst=2))
    faults.add(Throttle("A", rate=1, burst=1))
    assert take("A", "A", "A") == [True, False, False]
    clock.now += 1
    assert take("A") == [True]


def test_errors_strike_in_order_after_those_they_let_pass():
    faults = Faults()
    faults.add(ApiError("Run", "First", skip=1, times=2))
    faults.add(LostAnswer("*"))
    struck = [faults.take_answer("Run") for _ in range(4)]
    assert struck == [LostAnswer("*"), *[ApiError("Run", "First", skip=1, times=2)] * 2, None]
    assert faults.standing() == []


def test_one_strike_for_many_threads_and_zero_times_is_for_ever():
    faults = Faults()
    faults.add(ApiError("*", "Sorry", times=7))
    with ThreadPoolExecutor(50) as pool:
        struck = list(pool.map(lambda _: faults.take_answer("Run"), range(50)))
    assert sum(one is not None for one in struck) == 7
    faults.add(ApiError("*", "Sorry", times=0))
    assert all(faults.take_answer("Run") for _ in range(50))
    assert faults.standing()[0].left is None


def test_capacity_counts_what_ran_before():
    faults = Faults()
    assert faults.capacity_left("p3.2xlarge", "us-east-1a", 5) is None
    faults.add(Capacity("p3.2xlarge", "us-east-1a", left=2, used=3))
    left = [faults.capacity_left("p3.2xlarge", "us-east-1a", used) for used in (0, 3, 4, 5, 9)]
    assert left == [5, 2, 1, 0, 0]
    assert faults.capacity_left("p3.2xlarge", "us-east-1b", 0) is None
    faults.add(Capacity("p3.2xlarge", "us-east-1a", left=0, used=5))
    assert faults.capacity_left("p3.2xlarge", "us-east-1a", 5) == 0
    assert len(faults.standing()) == 1


def test_boots_are_for_their_nodes_and_silence_for_new_hosts():
    faults = Faults()
    faults.add(Boot(silent=True))
    faults.add(Boot(dies="A.b", nodes=(2,)))
    assert faults.take_boot(1, first=False) is None
    assert faults.take_boot(2, first=False) == Boot(dies="A.b", nodes=(2,))
    assert faults.take_boot(2) == Boot(silent=True)
    assert faults.take_boot(2) is None


def test_lags_delays_and_quotas():
    faults = Faults()
    assert (faults.visibility_s, faults.console_delay_s) == (USUAL_VISIBILITY_S, 0)
    for fault in (Lag(visible_s=5), Lag(console_s=7), Delay("*", 1), Delay("Run", 3)):
        faults.add(fault)
    assert (faults.visibility_s, faults.console_delay_s) == (5, 7)
    assert (faults.delay_s("Run"), faults.delay_s("Other")) == (3, 1)
    faults.clear()
    assert faults.visibility_s == USUAL_VISIBILITY_S


def test_clear_one_or_all():
    faults = Faults()
    ids = [faults.add(LostAnswer("*")).id for _ in range(3)]
    assert [one.id for one in faults.clear(ids[1])] == [ids[1]]
    for unknown in (ids[1], "", "f99", "é"):
        with pytest.raises(UsageError):
            faults.clear(unknown)
    assert [one.id for one in faults.clear()] == [ids[0], ids[2]]
    assert faults.clear() == []


@pytest.mark.parametrize(
    ("call", "status", "code"),
    [
        (Call("ec2", "RunInstances"), 503, b"<Code>RequestLimitExceeded</Code>"),
        (Call("cloudformation", "CreateStack"), 400, b"<Code>Throttling</Code>"),
        (Call("ssm", "GetParameter", json=True), 400, b'"ThrottlingException"'),
        (Call("servicequotas", "GetServiceQuota", json=True), 400, b'"TooManyRequestsException"'),
    ],
)
def test_every_service_throttles_in_its_own_words(call, status, code):
    answer = throttled_answer(call)
    assert (answer.status, code in answer.body) == (status, True)


def test_a_message_cannot_break_out_of_its_answer():
    hostile = "</Message><x> & \"quotes\" 'too' ü"
    answer = error_answer(Call("ec2", "Run"), "Code", hostile)
    assert b"<x>" not in answer.body
    assert answer.body.count(b"</Message>") == 1


def test_the_faults_of_a_host():
    faults = Faults()
    assert faults.host_faults(ID) == NO_FAULTS
    faults.add(Shape("all", down=10**7, up=10**8))
    assert faults.host_faults(ID) == {**NO_FAULTS, "shape": [10**7, 10**8]}
    own = faults.add(Shape(ID, up=10**9))
    faults.add(Shape("all", down=10**8))
    faults.add(Frozen(ID))
    assert faults.host_faults(ID) == {**NO_FAULTS, "frozen": True, "shape": [0, 10**9]}
    faults.clear(own.id)
    assert faults.host_faults(ID)["shape"] == [10**8, 0]
    faults.forget_host(ID)
    assert [one.fault for one in faults.standing()] == [Shape("all", down=10**8)]


@pytest.mark.parametrize(
    ("rate_bit", "queue"),
    [
        (1_000_000, "tbf rate 1000000bit burst 10240b limit 141312b"),
        (10**11, f"tbf rate 100000000000bit burst 50000000b limit {50_000_000 + 2**26}b"),
    ],
)
def test_the_queue_of_a_rate(rate_bit, queue):
    assert shape_of(rate_bit) == queue


def test_a_lag_keeps_the_times_that_it_does_not_name():
    faults = Faults()
    faults.add(Lag(tags_s=4.0, states_s=3.0, reordered=True))
    faults.add(Lag(tags_s=5.0))
    assert (faults.lag_s("tags"), faults.lag_s("states"), faults.lag_s("groups")) == (5.0, 3.0, 0.0)
    assert faults.reordered
    faults.add(Lag(reordered=False))
    assert not faults.reordered
