"""The process's limit on open files: a connection takes three."""

from __future__ import annotations

import contextlib
import resource


def raise_open_files() -> None:
    """Lift the soft limit to the hard one: 1,024 is too few for some hundred hosts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
