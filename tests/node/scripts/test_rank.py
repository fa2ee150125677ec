"""What a rank of a script-mode job reports of its preparation."""

from __future__ import annotations

import pytest

from clusterctl.node.scripts.rank import pip_error

# Recorded with pip 23.2.
NO_FILE = """\
WARNING: Requirement './vendor/none.whl' looks like a filename, but the file does not exist
ERROR: Could not install packages due to an OSError: [Errno 2] No such file or directory: '/x/a.whl'

"""
NO_PACKAGE = """\
ERROR: Could not find a version that satisfies the requirement nosuch (from versions: none)
ERROR: No matching distribution found for nosuch
"""


@pytest.mark.parametrize(
    ("printed", "error"),
    [
        (NO_FILE, NO_FILE.splitlines()[1].partition(" ")[2]),
        (NO_PACKAGE, NO_PACKAGE.splitlines()[0].partition(" ")[2]),
        ("\n", ""),
    ],
)
def test_the_first_error_of_pip_is_the_reason(printed, error):
    assert pip_error(printed) == error
