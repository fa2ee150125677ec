"""Lines beside those of the GPU signatures: alike, and of another cause or of none."""

from __future__ import annotations

from clusterctl.domain.findings import Severity
from clusterctl.explain.engine import explain


def test_a_name_without_an_ipv6_address_is_no_error():
    """PyTorch prints this on every host without IPv6, and goes on with IPv4."""
    log = (
        "[W socket.cpp:697] [c10d] The IPv6 network addresses of (demo-0, 29500) cannot be "
        "retrieved (gai error: -2 - Name or service not known).\nepoch 1: loss 0.4\n"
    )
    assert explain([log]).severity is not Severity.ERROR


def test_the_values_of_the_line_are_in_the_answer():
    lead = explain(
        [
            "AssertionError: train_batch_size is not equal to micro_batch_per_gpu * "
            "gradient_acc_step * world_size 16 != 5 * 1 * 3\n"
        ]
    ).lead
    assert lead.values["batch"] == "16" and "times 3 ranks" in lead.cause
    lead = explain(
        [
            "Barrier timed out. Barrier_id: x. Timed out task names:\n"
            "/job:jax_worker/replica:0/task:3\n"
        ]
    ).lead
    assert "task:3" in lead.cause
    lead = explain(["_pickle.UnpicklingError: invalid load key, 'v'.\n"]).lead
    assert "Git LFS" in lead.cause
