"""Which files have changed, as git sees it: some tests run only with --all and for those."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent


@functools.lru_cache(maxsize=1)
def changed_files() -> frozenset[str]:
    """Return the files that differ from the branch that this one follows.

    Without such a branch, those that differ from the last commit; without git, none.
    """
    base = "".join(_git("merge-base", "HEAD", "@{upstream}")).strip() or "HEAD"
    untracked = _git("ls-files", "--others", "--exclude-standard", "-z")
    return frozenset([*_git("diff", "--name-only", "-z", base), *untracked])


def _git(*words: str) -> list[str]:
    try:
        done = subprocess.run(
            ["git", *words], cwd=CHECKOUT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return []
    return done.stdout.split("\0") if done.returncode == 0 else []
