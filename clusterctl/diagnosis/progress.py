"""Signs that a job makes steps: its log and its metrics."""

from __future__ import annotations

import functools
import re
import statistics
import textwrap
from collections.abc import Sized
from dataclasses import replace
from typing import Any

from clusterctl.diagnosis.evidence import JobEvidence
from clusterctl.diagnosis.repeats import Sign, count_up, signs, stopped, without_clock
from clusterctl.domain.units import count, format_duration
from clusterctl.explain.stalls import Stall, stalls

# A job is called stuck if it wrote no new step or line for this many seconds, and for this many of
# its usual intervals between steps. Before that it may be in a long step.
STUCK_AFTER_S = 10.0
STUCK_AFTER_STEPS = 4
# A step that was recorded this recently, or within the usual time of so many steps, shows that the
# job makes steps.
ADVANCED_WITHIN_S = 2.0
ADVANCED_WITHIN_STEPS = 1.5
LONGEST_OF_MEAN_S = 60.0
# So many lines about steps that the time of a job's start matters little in their mean.
MOST_OF_A_LOG = 20
# Python writes what is no terminal in blocks of this size, and C in smaller ones.
BUFFER_BYTES = 8 << 10
# So many times between lines about steps tell what is usual: nine of ten are not longer. Several
# ranks may print each step at once, and a hang that has passed is one long time among many.
FEW_TIMES, USUAL_PART = 5, 0.9
# A rank that works for longer than this, while all others wait, is not called healthy for that.
LONGEST_ALONE_S = 600.0
# A job that printed steps and has been silent for so many of them is never healthy.
SILENT_STEPS = 10
# A time or a speed beyond is none.
MOST = 1e12
# A step is surely repeated if it was printed so many times as often as each of so many before.
OFTEN, FEW_STEPS = 3, 3
# So many lines may follow a step though fewer did before.
MOST_AFTER = 4
# Of so many lines at a log's end it is asked which of their kinds go on.
MOST_LINES = 1000
_STEP = re.compile(
    r"(?i)\b(?:step|epoch|iter(?:ation)?|batch)s?\b\W*\d|(?:images?|img|samples?|it|tokens?)/s(?:ec)?\b"
    r"|\bs/(?:it|step)\b|^\s*\d+(?:/\d+)?\s+[\[\d.=>-]"
)
# Log lines that are no sign of progress.
_COMPLAINT = re.compile(
    r"(?i)error|exception|traceback|warn|fail|stall|cannot|can't|unable|missing ranks|\bready ranks"
    r"|\d+: \[|no space|retry|trying again|time(?:d)?[ -]?out|hang|hung"
)
# The same for lines that say that a program waits. A line of a step may say how long it waited.
_WAITS = re.compile(
    r"(?i)\bwait|heartbeat|\bmonitor\b|watchdog|\bstill\b|alive|polling|\battempt|\bsleep"
    r"|\bnot (?:ready|yet)|\bpending|\breconnect"
    r"|\bback(?:ing)?[ -]?off\b|\bretr(?:y|ies)\b|\btrying again"
)
_PROMPT = re.compile(r"[]):>?$#] $")
# What announces the first epoch is no step.
_BEGINS = re.compile(r"(?i)\bepoch\W*[01](?:\s*(?:/|of)\s*\d+)?[\s.:]*$")
_MEASURES = re.compile(r"(?i)loss|acc|/s\b")

# A number of a total, such as `1200/5000 files` or `7 of 9`. A date or a path is none.
_OF_TOTAL = re.compile(r"(?<![\w./:-])(\d{1,15})(?:/| of )(\d{1,15})(?![\w./:-])")


def _complains(line: str) -> bool:
    """Return whether a log line says that something is wrong, or that a program waits."""
    return waits(line) or bool(_COMPLAINT.search(line))


def waits(line: str) -> bool:
    """Return whether a log line says that a program waits, or tries again."""
    return bool(_WAITS.search(line)) and not _MEASURES.search(line)


# Several rules ask for each line of the log.
@functools.lru_cache(maxsize=8192)
def is_step(line: str) -> bool:
    """Return whether a log line is about a step of a training."""
    return bool(_STEP.search(line)) and not _complains(line) and not _BEGINS.search(line)


def number_in(row: dict[str, Any], name: str) -> float:
    """Return a number of a row; 0 for what is none, or no time and no speed either."""
    value = row.get(name)
    return float(value) if isinstance(value, (int, float)) and 0 < value < MOST else 0.0


def were(things: Sized) -> str:
    """Return `was` or `were`."""
    return "was" if len(things) == 1 else "were"


def with_own_log(job: JobEvidence) -> JobEvidence:
    """Return the job with what a rank has written into a log of its own as the end of the job's, if
    only that tells of steps. A log into which another job writes, too, tells nothing."""
    if job.log_is_shared:
        job = replace(job, log_first=(), log=(), log_added=(), log_writes=(), log_silent_s=None)
    if not any(map(is_step, job.own_added)) or any(map(is_step, job.log)):
        return job
    log = (*job.log, *job.own_added)
    return replace(job, log=log, log_added=job.own_added, log_is_older=True)


class StepSigns:
    """What log and metrics of a job tell of its steps."""

    job: JobEvidence
    is_running: bool

    @functools.cached_property
    def size(self) -> int:
        """The number of ranks that the job should have; 0 if unknown."""
        return self.job.size

    @functools.cached_property
    def signs(self) -> dict[int, Sign]:
        """What each line about a step in the log shows, by its place there."""
        at = [number for number, line in enumerate(self.job.log) if is_step(line)]
        first = filter(is_step, self.job.log_first)
        return dict(zip(at, signs([self.job.log[number] for number in at], first)))

    @functools.cached_property
    def since_new_step_s(self) -> float | None:
        """Seconds since the log's last line that is surely a step; None if that is not known."""
        return self.step_times[-1][0] if self.step_times else None

    @functools.cached_property
    def repeats(self) -> Sign:
        """What the last lines about steps show. They are REPEATED only if all are the same line,
        speeds aside, for ten measured times of a step, or if no time is known more often than steps
        and ranks explain."""
        if self.job.log_is_older and not count_up(self.job.log[at] for at in self.signs):
            return Sign.UNCLEAR
        runs = [0]  # how many lines that are no new step follow each one that is
        for sign in self.signs.values():
            if sign is Sign.STEP:
                runs.append(0)
            else:
                runs[-1] += 1
        *before, last = runs
        usual = sorted(before)[int(USUAL_PART * (len(before) - 1))] if before else 0
        # With nothing before it, the first line may be as old as those that repeat it.
        added = sum(map(is_step, self.job.log_added)) - (self.job.log_is_older and last > 0)
        since_s = self.since_new_step_s
        is_new = since_s is not None and since_s <= self._within_s
        if last <= usual or added > last or is_new:
            return Sign.STEP
        if {*[*self.signs.values()][-last:]} != {Sign.REPEATED}:
            return Sign.UNCLEAR
        if since_s is not None:
            long_s = max(STUCK_AFTER_S, SILENT_STEPS * self._measured_s)
            is_long = self._measured_s > 0.0 and since_s >= long_s
        else:
            whole = before[2:]  # the first lines may be cut off
            often = max(SILENT_STEPS, 2 * self.size, *(OFTEN * one for one in whole))
            is_long = len(whole) >= FEW_STEPS and last > often
        return Sign.REPEATED if is_long else Sign.UNCLEAR

    @functools.cached_property
    def stopped(self) -> str:
        """The last line of steps that have stopped while other lines go on; empty without one."""
        first = self.job.log_first
        first = () if first == self.job.log[: len(first)] else first
        early = [line for line in first if is_step(line)]
        late = [self.job.log[at] for at in self.signs]
        found = [*(Sign.STEP for _ in early), *self.signs.values()]
        return stopped([*early, *late][-MOST_LINES:], found[-MOST_LINES:])

    @functools.cached_property
    def lines_instead(self) -> tuple[str, ...]:
        """The log's lines since its last step, if they are far more than ever came between two."""
        gaps = [b - a - 1 for a, b in zip(self.signs, [*self.signs][1:])]
        lines = self.job.log[max(self.signs, default=0) + 1 :]
        return lines if gaps and len(lines) > 1.5 * max(gaps) + MOST_AFTER else ()

    @functools.cached_property
    def comes_late(self) -> bool:
        """Whether the last step and far more other lines came during the looks. What keeps lines
        back, as a buffer does, brings steps of long ago."""
        return 0 < len(self.lines_instead) < len(self.job.log_added)

    @functools.cached_property
    def only_tries(self) -> bool:
        """Whether the log has far more other lines since its last step than ever between two, and
        these only complain, or are the same: somebody tries something again and again."""
        lines = [one for one in self.lines_instead if one.strip()]
        same = {without_clock(one) for one in lines if not _complains(one)}
        return bool(lines) and len(same) <= max(1, self.size)

    @property
    def tries_for_long(self) -> bool:
        """Whether the tries go on, and the last step is known to be long past: some warnings after
        a step are no sign of trouble."""
        last = self.step_times[-1:]
        return self.only_tries and bool(last) and last[0][0] >= STUCK_AFTER_S

    @property
    def prompt(self) -> str:
        """The end of the log if that looks like a question to the user, as `(Pdb) `; else empty."""
        last = self.job.log[-1] if self.job.log else ""
        return last.strip()[-40:] if _PROMPT.search(last) else ""

    @functools.cached_property
    def counts_to_total(self) -> bool:
        """Whether a new line of the log counts on towards a total that the lines before have, too:
        that ends. What tries again and again without end has none."""
        highest: dict[tuple[str, str], int] = {}
        old = len(self.job.log) - len(self.job.log_added)
        for at, line in enumerate(self.job.log):
            for number, total in () if _complains(line) else _OF_TOTAL.findall(line):
                key = (re.sub(r"[\W\d_]+", " ", line), total)
                if at >= old and highest.get(key, int(total)) < int(number) <= int(total):
                    return True
                if at < old:
                    highest[key] = max(int(number), highest.get(key, 0))
        return False

    @functools.cached_property
    def doubt(self) -> str:
        """Why nothing follows from the lines that show progress, in words; empty if it does."""
        if self.job.went_on:
            return "a step was recorded after the samples of its ranks"
        if not self.advances or self._last_row:
            return ""
        if self.stopped:
            line = textwrap.shorten(self.stopped, 60, placeholder=" …")
            return f"lines such as `{line}` have stopped in its log, while others go on"
        if self.comes_late:
            return "what its log got may be of long ago: many other lines follow the last step"
        return "its log may repeat one step" if self.repeats is Sign.UNCLEAR else ""

    @functools.cached_property
    def stall(self) -> Stall | None:
        """Horovod's last stall report; None without one, or if the job went on after it."""
        reports = stalls(self.job.log)
        if not reports:
            return None
        after = self.job.log[reports[-1].last + 1 :]
        went_on = [line for line in after if line.strip() and not _complains(line)]
        return None if went_on and self.is_running else reports[-1]

    @functools.cached_property
    def stalled_s(self) -> float:
        """Seconds that the stall has lasted at least, from all reports since the job last went on.

        It is 0 without a stall.
        """
        first = last = self.stall
        for one in reversed(stalls(self.job.log)):
            after = self.job.log[one.last + 1 : first.at if first and one is not first else None]
            if any(line.strip() and not _complains(line) for line in after):
                break
            first = one
        if not first or not last:
            return 0.0
        return first.after_s + last.seconds_since(first) + (self.job.log_silent_s or 0.0)

    @functools.cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the last run in the trainer's metrics, the first of those that repeat a step;
        none if this job has written none yet: an earlier one may have left the file."""
        if 0.0 < self.job.age_s < (self.job.metrics_silent_s or 0.0):
            return []
        rows = [row for row in self.job.metrics if number_in(row, "time") and "step" in row]
        run = rows[-1].get("run") if rows else None
        steps: dict[str, list[Any]] = {}
        found = []
        for row in rows:
            of_kind = steps.setdefault(str(row.get("kind")), [])
            if row.get("run") == run and of_kind[-1:] != [row["step"]]:
                found.append(row)
            of_kind.append(row["step"])
        return found

    @functools.cached_property
    def since_row_s(self) -> float | None:
        """Seconds since the last of these rows; None without one. A monitor may write more: they
        are the least, if its last row has no time."""
        if not self.rows or self.job.metrics_silent_s is None:
            return None
        later_s = number_in(self.job.metrics[-1], "time") - number_in(self.rows[-1], "time")
        return self.job.metrics_silent_s + max(0.0, later_s)

    @functools.cached_property
    def gaps_s(self) -> list[float]:
        """The seconds between the rows of the trainer's metrics."""
        times = [number_in(row, "time") for row in self.rows]
        return [b - a for a, b in zip(times, times[1:]) if b > a]

    @functools.cached_property
    def step_times(self) -> list[tuple[float, str]]:
        """How many seconds ago the last lines that are surely steps were written, the oldest first,
        with the last of the lines that were written together. Empty if that is not known."""
        found, end = [], len(self.job.log)
        for at_s, lines in reversed(self.job.log_writes):
            steps = [
                at for at in range(max(0, end - lines), end) if self.signs.get(at) is Sign.STEP
            ]
            end -= lines
            if steps:
                found.append((at_s, self.job.log[steps[-1]]))
            if end <= 0:
                break
        return found[::-1]

    @functools.cached_property
    def _measured_s(self) -> float:
        """The time in seconds that most of the log's sure steps took lately; 0 if too few are
        known."""
        times = [at_s for at_s, _ in self.step_times]
        gaps = [a - b for a, b in zip(times, times[1:]) if a > b]
        if len(gaps) < FEW_TIMES:
            return 0.0
        most = sorted(gaps)[int(USUAL_PART * (len(gaps) - 1))]
        return max(most, statistics.median(gaps[-3:]))

    @functools.cached_property
    def rhythm_s(self) -> float:
        """The usual time in seconds from a step, or a row of several, to the next; 0 if unknown.

        It is the median of the metrics' rows. Without them it is what most lines about steps took
        lately; if their times are not known, the mean since the job's start, for which it takes
        many of them.
        """
        gaps = self.gaps_s
        if len(gaps) >= 2:
            # A job that has become slower has a new usual time.
            return max(statistics.median(gaps), statistics.median(gaps[-3:]))
        if self._measured_s:
            return self._measured_s
        steps = float(sum(is_step(line) for line in self.job.log))
        is_known = self.job.log_silent_s is not None and self.job.age_s
        if steps < MOST_OF_A_LOG or self.job.log_is_older or not is_known:
            return 0.0
        # The evidence has the end of a long log.
        steps *= max(1.0, self.job.log_bytes / self.job.log_kept_bytes)
        mean_s = max(0.0, self.job.age_s - (self.job.log_silent_s or 0.0)) / steps
        return mean_s * self._steps_at_once

    @property
    def _steps_at_once(self) -> float:
        """How many lines about steps a buffer holds, if the log comes in such blocks; else 1."""
        steps = sum(map(is_step, self.job.log))
        held = BUFFER_BYTES * steps / max(1, self.job.log_kept_bytes)
        return max(1.0, held) if self.job.log_is_cut else 1.0

    @functools.cached_property
    def quiet_s(self) -> float | None:
        """Seconds since the last sign of a step in metrics and log; None if neither can tell.

        A trainer that writes rows of metrics shows its steps there, whatever else its log says.
        """
        silences = [self.since_row_s]
        last = next((line for line in reversed(self.job.log) if line.strip()), "")
        counts = is_step(last) if self.rows else not (_complains(last) or self.only_tries)
        repeats = self.repeats is Sign.REPEATED
        silent_s = self.since_new_step_s if repeats else self.job.log_silent_s
        if silent_s is not None and counts and not self.stall:
            silences.append(silent_s)
        known = [one for one in silences if one is not None]
        return min(known) if known else None

    @property
    def overdue_after_s(self) -> float:
        """Seconds without a step after which the job is called stuck."""
        return max(STUCK_AFTER_S, STUCK_AFTER_STEPS * self.rhythm_s)

    @functools.cached_property
    def is_quiet(self) -> bool:
        """Whether the job has made no step for more than `overdue_after_s`, or none is known."""
        if self.stall or self.quiet_s is None:
            return True
        return self.quiet_s >= self.overdue_after_s

    @functools.cached_property
    def since_step_s(self) -> float:
        """Seconds since the last step that was shown, or since the job's start without one."""
        if not self.has_made_steps:
            return self.job.age_s
        last = self.since_row_s
        if last is None and self.step_times:
            last = self.step_times[-1][0]
        return self.job.log_silent_s or 0.0 if last is None else last

    @functools.cached_property
    def is_overdue(self) -> bool:
        """Whether the job has shown no step for far longer than one takes.

        Before, ranks that work may just be slow, on a busy machine for example. If the usual time
        of a step is not known, it is at most the mean since the job's start.
        """
        if not self.has_made_steps:
            return self.since_step_s >= LONGEST_ALONE_S
        return self._is_silent_for(STUCK_AFTER_STEPS) or self.stall is not None

    @property
    def stands_still(self) -> bool:
        """Whether the job is stuck, or shows no step for ten of its usual steps: if their time is
        not known, of the mean since the job's start."""
        is_silent = self.has_made_steps and self._is_silent_for(SILENT_STEPS)
        is_silent |= self.tries_for_long and not self.rows
        return bool(self.is_stuck) or (self.is_running and not self.advances and is_silent)

    def _is_silent_for(self, steps: int) -> bool:
        shown = len(self.rows) or sum(map(is_step, self.job.log))
        mean_s = max(0.0, self.job.age_s - self.since_step_s) / shown
        usual_s = self.rhythm_s or mean_s * (1.0 if self.rows else self._steps_at_once)
        return self.since_step_s >= max(STUCK_AFTER_S, steps * usual_s)

    @property
    def is_late(self) -> bool:
        """Whether the job has shown no step for several of its usual steps."""
        return 0.0 < STUCK_AFTER_STEPS * self.rhythm_s <= self.since_step_s

    @functools.cached_property
    def has_made_steps(self) -> bool:
        """Whether the job has made steps, as its rows and its log show."""
        return bool(self.rows) or any(map(is_step, self.job.log))

    @functools.cached_property
    def advances(self) -> str:
        """What shows that the job makes steps, in words; empty if nothing does."""
        if not self.is_running:
            return ""
        added = [line for line in self.job.log_added if is_step(line)]
        if added and self.repeats is not Sign.REPEATED:
            return f"{count(len(added), 'step')} {were(added)} printed during the diagnosis"
        if self._last_row:
            return self._last_row
        last_line = next((line for line in reversed(self.job.log) if line.strip()), "")
        silent_s = self.job.log_silent_s
        counts = is_step(last_line) and not self.stall and self.repeats is not Sign.REPEATED
        if silent_s is not None and silent_s <= self._within_s and counts:
            return f"a step was printed {format_duration(silent_s)} ago{self._often('lines')}"
        return "it went on" if self.job.went_on else ""

    @property
    def _within_s(self) -> float:
        # However slow its steps are, ten minutes without one are too long. A mean since the job's
        # start may be far longer than a step, and steps in a block older than that was written.
        is_mean = len(self.gaps_s) < 2 and not self._measured_s
        most_s = LONGEST_OF_MEAN_S * (not self.job.log_is_cut) if is_mean else LONGEST_ALONE_S
        return max(ADVANCED_WITHIN_S, min(ADVANCED_WITHIN_STEPS * self.rhythm_s, most_s))

    @property
    def _last_row(self) -> str:
        """The last row of metrics in words; empty if none came lately."""
        silent_s = self.since_row_s
        if (
            silent_s is None
            or silent_s > self._within_s
            or not number_in(self.job.metrics[-1], "time")
        ):
            return ""
        step = f"step {self.rows[-1]['step']}"
        return f"{step} was recorded {format_duration(silent_s)} ago{self._often('rows')}"

    def _often(self, what: str) -> str:
        return f", {what} come every {format_duration(self.rhythm_s)}" if self.rhythm_s else ""

    @property
    def is_stuck(self) -> bool | None:
        """Whether the job stands still, by its log and metrics alone; None if they cannot tell."""
        if not self.is_running:
            return None
        if self.advances:
            return None if self.doubt else False
        is_silent = self.silent_for_steps >= SILENT_STEPS and self.is_quiet
        return True if self.stall or (self.has_made_steps and is_silent) else None

    @property
    def silent_for_steps(self) -> float:
        """For how many of its usual steps the job has shown none; 0 if that is not known."""
        if self.quiet_s is None or not self.rhythm_s:
            return 0.0
        return self.quiet_s / self.rhythm_s

    @property
    def since(self) -> str:
        """How long the job has made no step, such as ` for 214 s`; empty if unknown."""
        if self.stall:
            return f" for {format_duration(self.stalled_s)}"
        if self.since_row_s is not None:
            return f" for {format_duration(self.since_row_s)}"
        return f" for {format_duration(self.quiet_s)}" if self.quiet_s and self.is_quiet else ""
