"""The README's first command, from beginning to end."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent


@pytest.mark.lab
@pytest.mark.train
@pytest.mark.timeout(1200)
@pytest.mark.all
def test_the_demo():
    done = subprocess.run(
        ["./scripts/demo"],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for words in (
        "$ clusterctl up demo --nodes 2 --instance-type p3.2xlarge",
        "demo-1: GPU 0: Tesla V100-SXM2-16GB (simulated)",
        "Horovod size: 2",
        "Step Epoch Speed",
        "Finished in",
        "Nothing is left: no process, no network link, no mount.",
    ):
        assert words in done.stdout, done.stdout
