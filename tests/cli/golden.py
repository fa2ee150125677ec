"""Records of what commands print, compared with those of the last change."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

from syrupy.extensions.amber import AmberSnapshotExtension

from tests.bootstrap.wheels import TRAINING
from tests.cli.forks import run_one
from tests.cli.masks import LAB, NOTHING, VARIES, masked, masked_json
from tests.jobs.test_horovod import TRACE
from tests.jobs.training_logs import HEADER, banner, rows

# A trainer that prints rows as the real one does, without TensorFlow. With `stay` it does not end.
TRAINER = f"""\
import os, sys, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    print({banner(2) + HEADER + rows(range(4)) + "Finished in 12.5"!r}, flush=True)
    if "HOROVOD_TIMELINE" in os.environ:
        open(os.environ["HOROVOD_TIMELINE"], "w").write({json.dumps(TRACE)!r})
if "stay" in sys.argv:
    print("here", flush=True)
    time.sleep(1000)
"""


class Golden:
    """Runs commands, and compares what they print with the records, which bear their words."""

    def __init__(self, snapshot, folder: Path, environ: dict[str, str], masks=LAB) -> None:
        self._snapshot = snapshot(extension_class=AmberSnapshotExtension)
        self._folder = folder
        self._masks = masks
        self._shown: dict[str, str] = {}
        inherited = {name: value for name, value in os.environ.items() if "CLUSTERCTL" not in name}
        self._environ = {**inherited, "HOME": str(folder), "COLUMNS": "100", **environ}

    def __call__(self, line: str, *, sort=False, lines=slice(None), masks=(), **more) -> str:
        """Record `clusterctl LINE`. Return its stdout.

        `sort`: its lines have no order. `lines`: only these lines of its output are recorded.
        """
        program = more.get("program", "clusterctl")
        status, out, err = run_one(shlex.split(line), self._environ, self._folder, **more)
        whole = out
        out = "".join(out.splitlines(True)[lines])
        if "--json" in line:
            out = masked_json(out, VARIES if self._masks else NOTHING, sort)
        elif sort:
            out, err = ("".join(sorted(text.splitlines(True))) for text in (out, err))
        self.compare(f"{program} {line}", status, out, err, masks)
        return whole

    def both(self, line: str, **more) -> None:
        """Record a command that can be repeated, without and with --json."""
        self(line, **more)
        self(f"{line} --json", **more)

    def compare(self, line: str, status: int, out: str, err: str, masks=()) -> None:
        assert "Traceback" not in err, err
        line, text = (
            one.replace(str(self._folder), "HERE").replace(TRAINING, "ENVIRONMENT")
            for one in (line, f"$ {line}\n{out}--\n{err}exit {status}\n")
        )
        name = masked(line, self._masks).removeprefix("clusterctl ")
        text = masked(text, (*self._masks, *masks))
        assert self._shown.setdefault(name, text) == text, f"one record cannot be both: {name}"
        assert text == self._snapshot(name=name)
