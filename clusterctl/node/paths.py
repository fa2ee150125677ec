"""Paths on nodes that several programs know."""

from __future__ import annotations

import re

EXAMPLES_FOLDER = "examples/horovod/tensorflow"  # of the shipped trainer, below the home folder
LOG_FOLDER = "imagenet_resnet"  # of the trainer, where none is named
CONTRACT, PREPARED = "contract.json", ".prepared"  # in the folder of a script-mode program
STAGING = ".clusterctl-copy"  # has a copy's files until they are whole

_CHECKPOINT = re.compile(r"model\.ckpt-(\d+)\..*")


def step_of(name: str) -> int:
    """Return the step of a checkpoint's file; -1 for any other file."""
    found = _CHECKPOINT.fullmatch(name)
    return int(found[1]) if found else -1
