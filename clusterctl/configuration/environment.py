"""Variables of the environment that look like settings and are none."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from clusterctl.configuration.options import OPTIONS

PREFIX = "CLUSTERCTL_"
_OTHERS = ("CLUSTERCTL_HOME", "CLUSTERCTL_CONFIG")
# A letter too many, too few or swapped; not what merely has a part in common.
_NEAR = 0.8


def misspelt(environ: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence on each variable that is nearly one of ours, and so is not heeded."""
    known = [*_OTHERS, *(option.variable for option in OPTIONS.values())]
    short = [name[len(PREFIX) :] for name in known]
    said = []
    for name in sorted(environ):
        # Others may have theirs, such as a shell's completion.
        if name in known or not re.fullmatch(PREFIX + r"\w{1,40}", name, re.ASCII):
            continue
        near = difflib.get_close_matches(name[len(PREFIX) :].upper(), short, 1, _NEAR)
        if near:
            said.append(f"{name} is no setting; did you mean {PREFIX}{near[0]}?")
    return tuple(said)
