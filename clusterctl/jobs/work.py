"""What the trainer will do, read from the flags that it is given: its own names and defaults.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.domain.errors import UsageError

# The trainer's, as far as a preset sets them.
SWITCHES = ("clear_log", "fp16", "increased_aug", "use_larc")
CLEAR, KEEP = "--clear_log", "--noclear_log"
IMAGENET_IMAGES = 1_281_167  # what an epoch of synthetic data is as long as


class Contradiction(UsageError):
    """Options that cannot both be meant."""


@dataclass(frozen=True)
class Work:
    """A run of the trainer. `data_dir` is None for synthetic images; `log_dir` is as it was given.

    `batch_size` is per rank. `clears`: the log folder is emptied first. `save_every` is in steps,
    0 for once an epoch.
    """

    ranks: int
    data_dir: str | None
    log_dir: str = "imagenet_resnet"
    model: str = "resnet50"
    batch_size: int = 256
    epochs: int | None = None
    batches: int | None = None
    save_every: int = 1000
    local_ckpt: bool = False
    clears: bool = False
    evaluates_only: bool = False
    uses_larc: bool = False

    @property
    def global_batch(self) -> int:
        return max(1, self.ranks * self.batch_size)

    def steps(self, records: int | None) -> int | None:
        """How many steps it trains for: records x epochs // global batch. None: not known."""
        if self.epochs is None:
            return self.batches
        records = IMAGENET_IMAGES if self.data_dir is None else records
        return None if records is None else records * self.epochs // self.global_batch

    def checkpoints(self, records: int | None) -> int:
        """How many checkpoints it will keep, the one at its end included; 0 for synthetic data."""
        if self.data_dir is None or self.evaluates_only:
            return 0
        steps = self.steps(records)
        every = self.save_every or max(1, (records or 0) // self.global_batch)
        return 1 if steps is None else -(-steps // every)


def read_work(arguments: Sequence[str], ranks: int) -> Work:
    """The work of a trainer with these arguments, of which the last of a kind counts."""
    synthetic = switch(arguments, "synthetic")
    return Work(
        ranks=ranks,
        data_dir=None if synthetic else value(arguments, "--data_dir"),
        log_dir=value(arguments, "--log_dir") or Work.log_dir,
        model=value(arguments, "--model", "-m") or Work.model,
        batch_size=_number(value(arguments, "--batch_size", "-b")) or Work.batch_size,
        epochs=_number(value(arguments, "--num_epochs")),
        batches=_number(value(arguments, "--num_batches")),
        save_every=_number_or(value(arguments, "--save_checkpoints_steps"), Work.save_every),
        local_ckpt=bool(switch(arguments, "local_ckpt")),
        clears=bool(clearing(arguments)),
        evaluates_only=bool(switch(arguments, "eval")),
        uses_larc=bool(switch(arguments, "use_larc")),
    )


def value(arguments: Sequence[str], *names: str) -> str | None:
    """The value of an option: `--name V`, `--name=V`, `-n V`, `-nV`. None when it is not there."""
    found = None
    following = [*arguments[1:], None]
    for word, after in zip(arguments, following):
        for name in names:
            if word == name and after is not None:
                found = after
            elif name.startswith("--") and word.startswith(name + "="):
                found = word[len(name) + 1 :]
            elif not name.startswith("--") and word.startswith(name) and len(word) > len(name):
                found = word[len(name) :].lstrip("=")
    return found


def switch(arguments: Sequence[str], name: str) -> bool | None:
    """What the last of `--name` and `--noname` says; None when neither is there."""
    said = None
    for word in arguments:
        if word in (f"--{name}", f"--no{name}"):
            said = word == f"--{name}"
    return said


def clearing(arguments: Sequence[str]) -> bool | None:
    """What the last word about the log folder says: True empties it. None: there is no word."""
    said = None
    for word in arguments:
        if _means(word, CLEAR) or _means(word, KEEP):
            said = _means(word, CLEAR)
    return said


def _means(word: str, switch_name: str) -> bool:
    # The trainer takes --clear, or any other beginning that no flag shares, for the whole of it.
    return len(word) >= len("--cl") and word != "--no" and switch_name.startswith(word)


def clears_or_resumes(clear: bool, resume: bool) -> bool | None:
    """True for --clear, False for --resume, None for neither. Raises Contradiction for both."""
    if clear and resume:
        raise Contradiction(
            "--clear and --resume contradict each other: the one deletes what the other goes on "
            "from",
            "leave one of them out",
        )
    return clear if clear or resume else None


def check_clearing(clears: bool | None, arguments: Sequence[str]) -> None:
    """Raises Contradiction when the trainer's flags say other than --clear or --resume did."""
    if clears is None:
        return
    own, other = ("--clear", KEEP) if clears else ("--resume", CLEAR)
    for word in arguments:
        if _means(word, other):
            does = "deletes the checkpoints" if clears else "goes on from the checkpoints"
            raise Contradiction(
                f"{own} {does}, and the trainer's {word} says the opposite",
                "leave one of them out",
            )


def twins(word: str) -> tuple[str, ...]:
    """Both forms of a switch: of `--nofp16` they are `--fp16` and `--nofp16`. Of no switch: none.

    >>> twins("--nofp16")
    ('--fp16', '--nofp16')
    """
    name = word[2:]
    name = name[2:] if name.startswith("no") else name
    return (f"--{name}", f"--no{name}") if word.startswith("--") and name in SWITCHES else ()


def _number(text: str | None) -> int | None:
    # What the trainer will refuse is the trainer's to refuse.
    return int(text) if text is not None and text.isdigit() else None


def _number_or(text: str | None, default: int) -> int:
    number = _number(text)
    return default if number is None else number
