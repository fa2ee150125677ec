"""A run whose first shard is done at once and whose others never end: hanging_run.py OUT A B."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "utils"))

import shard_work
import tool
from shard_jobs import Job, make_shards
from shards import shard_name


def main() -> int:
    folder, *tasks = sys.argv[1:]
    jobs = [
        Job(Path(folder) / shard_name("train", index, 3), 1, "with", "from", task)
        for index, task in enumerate(["quick", *tasks])
    ]
    make_shards(jobs, shard_work.hang, processes=2 + (len(tasks) > 2))
    return 0


if __name__ == "__main__":
    tool.run(main)
