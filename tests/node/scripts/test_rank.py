"""What a rank of a script-mode job reports of its preparation."""

from __future__ import annotations

import pytest

from clusterctl.node.scripts.rank import pip_error, with_requirements

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


# What a Python does of `-m venv`, `-c` and `-m pip`, where a folder pypi stands for the network.
PYTHON = """\
#!/bin/sh -e
case "$*" in
"-m venv "*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
"-m pip "*) ls "$(dirname "$0")/../../pypi" ;;
*) dirname "$0" ;;
esac
"""


def test_a_retry_needs_no_network_for_packages_that_the_job_has_installed(tmp_path):
    python, pypi = tmp_path / "python", tmp_path / "pypi"
    python.write_text(PYTHON)
    python.chmod(0o755)
    with pytest.raises(SystemExit, match="pip could not install"):
        with_requirements(tmp_path, str(python))
    pypi.mkdir()
    own = with_requirements(tmp_path, str(python))
    pypi.rmdir()
    assert with_requirements(tmp_path, str(python)) == own == f"{tmp_path}/venv/bin/python"
