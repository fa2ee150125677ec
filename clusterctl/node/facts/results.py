"""The fact about the folder of `train --output`, which few jobs have."""

from __future__ import annotations

import stat
from pathlib import Path

from clusterctl.node.facts.report import deadline
from clusterctl.node.jobs.written import why_no_results

READ_S = 60.0  # for a folder on a file system of the network


@deadline(READ_S)
def output_error(path: str, job: str) -> str:
    """Return why results of a job cannot be fetched from a folder, which need not exist; empty if
    they can."""
    try:
        if not stat.S_ISDIR(Path(path).stat().st_mode):
            return f"{path} is no folder"
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"{path}: {error.strerror}"
    return why_no_results(path, job)
