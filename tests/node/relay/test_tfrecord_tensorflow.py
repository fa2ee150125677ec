"""Our reading of TFRecords against TensorFlow's."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from clusterctl.node.relay.contents import read_content
from clusterctl.node.relay.crc32c import crc32c
from tests.node.relay.records import tfrecord

pytestmark = [pytest.mark.train]

PROGRAM = """\
import json, sys, tensorflow as tf
ours, theirs = sys.argv[1:]
print(json.dumps([len(r.numpy()) for r in tf.data.TFRecordDataset(ours)]))
with tf.io.TFRecordWriter(theirs) as writer:
    for size in (0, 1, 500, 70000):
        writer.write(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
"""


def test_each_reads_what_the_other_wrote(tmp_path):
    env = Path(os.environ.get("CLUSTERCTL_TRAINING_ENV", "/opt/clusterctl/training"))
    if not (env / ".clusterctl-training").exists():
        pytest.skip(f"no training environment at {env}: run scripts/training-env")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_bytes(tfrecord([b"a" * 300, b"", b"b"]))
    argv = [env / "bin" / "python", "-c", PROGRAM, ours, theirs]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [300, 0, 1]
    found = read_content(os.fsencode(theirs), False, crc32c, lambda _: None)
    assert found.records is not None
    assert (found.records.number, found.records.problem) == (4, "")
