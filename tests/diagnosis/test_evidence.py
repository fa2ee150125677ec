"""What was seen, through JSON and back."""

import json

from clusterctl.diagnosis.evidence import (
    Evidence,
    Frame,
    HostEvidence,
    JobEvidence,
    ProcessEvidence,
    Sample,
    Socket,
    ThreadStack,
    decode,
)

SEEN = Evidence(
    cluster="demo",
    taken_at="2026-11-22T10:00:00+00:00",
    took_s=3.5,
    job=JobEvidence(job_id="20261122-100000-abcd", state="running", hosts={"10.0.0.1": 8}),
    hosts=(
        HostEvidence(index=1, host="demo-1", error="no answer", clock_offset_s=-0.25),
        HostEvidence(
            host="demo-0",
            facts={"disks": [{"path": "/", "free_bytes": 0}]},
            processes=(
                ProcessEvidence(
                    pid=7,
                    role="rank",
                    rank=0,
                    gpus=(0, 1),
                    samples=(
                        Sample(
                            state="S",
                            sockets=(Socket(peer="10.0.0.2:1024", send_queue_bytes=9),),
                            stacks=(ThreadStack(frames=(Frame("read", "data.py", 12),)),),
                        ),
                    ),
                ),
            ),
        ),
    ),
)


def test_what_was_seen_goes_through_json_unchanged():
    assert decode(Evidence, json.loads(json.dumps(SEEN.as_data()))) == SEEN


def test_what_a_later_version_or_a_strange_node_says_is_left_out():
    data = json.loads(json.dumps(SEEN.as_data()))
    data["weather"] = "rain"
    data["took_s"] = "long"
    data["hosts"][1]["processes"][0]["pid"] = True
    data["hosts"][1]["processes"][0]["gpus"] = [0, "one", 2]
    data["hosts"][0]["clock_offset_s"] = float("nan")
    data["hosts"].append(17)
    seen = decode(Evidence, data)
    assert (seen.took_s, seen.hosts[1].processes[0].pid) == (0.0, 0)
    assert seen.hosts[1].processes[0].gpus == (0, 2)
    assert (seen.hosts[0].clock_offset_s, len(seen.hosts)) == (None, 2)
    assert decode(Evidence, []) == Evidence()
