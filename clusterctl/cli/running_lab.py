"""The lab of this home, for the commands that need it to run."""

from __future__ import annotations

from clusterctl.config import load_settings
from clusterctl.domain.errors import LabError
from clusterctl.lab.record import LabRecord, read_record


def running_lab() -> LabRecord:
    """Raises LabError if it does not run."""
    running = read_record(load_settings().home)
    if running is None:
        raise LabError("the lab is not running", "start it with `clusterctl lab start`")
    return running
