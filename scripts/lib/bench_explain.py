"""CPU seconds of `clusterctl explain` for a log of 100 MB, and of grep for the same texts.

There are four kinds of logs: a training's rows, one known error in every line, an unknown one in
every line, and text in which no two lines are alike. `grep -F` only counts the lines that contain a
signature's plain text.

    ./scripts/bench explain
    ./scripts/bench explain --corpus [FOLDER...]     how often it is right, over a corpus of logs
    ./scripts/bench explain --unseen                 what it says of logs without their signatures
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from explain_corpus import CORPUS, FOLDERS, count_corpus, count_unseen

from clusterctl.explain.catalogue import catalogue
from clusterctl.explain.signature import literals

SIZE = 100 << 20
DOCS = Path(__file__).parents[2] / "docs" / "copy.md"


def bench_explain(words: list[str]) -> None:
    if words[:1] == ["--corpus"]:
        count_corpus([Path(one) for one in words[1:]] or [CORPUS / one for one in FOLDERS])
        return
    if words == ["--unseen"]:
        count_unseen()
        return
    if words:
        sys.exit(f"error: explain takes --corpus, --unseen or nothing, not {' '.join(words)}")
    chance = random.Random(1)  # noqa: S311 - no secret
    prose = DOCS.read_text().split()
    error = "Horovod has been shut down. This was caused by an exception"
    kinds = {
        "rows of a training": lambda n: f"{n:6} {n / 5004:5.1f} {20_000 + n % 99:7.1f}  6.9  7.8",
        "the same error": lambda n: f"[1,{n % 8}]<stderr>:[10:07:44.{n:06}: E x.cc] {error}",
        "unknown failures": lambda n: f"[10:07:44.{n:06}] item {n:x} of the list has failed",
        "no line like another": lambda n: f"{' '.join(chance.choices(prose, k=12))} {n:x}",
    }
    with tempfile.TemporaryDirectory(prefix="bench-explain-") as name:
        texts, log = Path(name, "texts"), Path(name, "log")
        texts.write_text("\n".join(text for one in catalogue() for text in literals(one.pattern)))
        print(f"{SIZE >> 20} MiB of log, seconds of processor")
        for title, line in kinds.items():
            with log.open("w") as file:
                number = 0
                while file.tell() < SIZE:
                    file.writelines(f"{line(number + one)}\n" for one in range(10_000))
                    number += 10_000
            ours = cpu_s(["clusterctl", "explain", log])
            grep = cpu_s(["grep", "-c", "-a", "-F", "-f", texts, log])
            print(f"  {title:22} explain {ours:5.2f}   grep -c -F {grep:5.2f}")


def cpu_s(argv: list[str | Path]) -> float:
    """Return the user and system time of a command and its children, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # If stdout is /dev/null, grep stops at the first match.
    subprocess.run(argv, stdout=subprocess.PIPE, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
