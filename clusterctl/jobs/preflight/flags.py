"""Whether the trainer takes its flags, asked of its own parser: mpirun would ask it in every rank.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from clusterctl.domain.findings import Finding, Severity
from clusterctl.jobs.plan import JobPlan
from clusterctl.jobs.presets import TRAINER

PARSE = "import flags, sys; flags.parse_args(sys.argv[1:])"
REFUSED = 2  # argparse's exit status for words that it does not take
HINT = f"its flags: {TRAINER} --help; if the nodes' trainer is one of your own: --force"


def flags_findings(plan: JobPlan, trainer: Path) -> list[Finding]:
    """What the parser of the trainer in this folder has against the flags of the job's lines."""
    if plan.work is None or not (trainer / "flags.py").is_file():
        return []
    lines = [argv for argv in (plan.argv, plan.evaluation) if TRAINER in argv]
    said = dict.fromkeys(_refusal(trainer, argv[argv.index(TRAINER) + 1 :]) for argv in lines)
    return [
        Finding("flags.refused", Severity.ERROR, f"the trainer: {message}", hint=HINT)
        for message in said
        if message
    ]


def _refusal(trainer: Path, words: tuple[str, ...]) -> str:
    """The parser's error. Empty where it has none, and where it is broken: the job tells that."""
    asked = subprocess.run(
        [sys.executable, "-B", "-c", PARSE, *words],
        cwd=str(trainer),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if asked.returncode != REFUSED:
        return ""
    lines = asked.stderr.decode(errors="replace").splitlines()
    told = (re.search("error: (.*)", line, re.IGNORECASE) for line in lines)
    return "; ".join(match[1] for match in told if match)
