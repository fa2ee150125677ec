#!/usr/bin/env python3
"""Make the images of a TFRecord data set smaller, so that training reads and decodes less.

    python tensorflow_image_resizer.py -d imagenet -i ~/imagenet -o ~/data/tf-imagenet \\
        --subset_name train --num_preprocess_threads 60 --num_intra_threads 2 --num_inter_threads 2

Each shard of INPUT_DIR, numbered from 0 or from 1, gives one of OUTPUT_DIR, numbered from 0, with
the same records in the same order. Images whose shorter side is longer than SIZE shrink to it and
keep their shape (-R: all become squares). All are coded again as JPEG, except those of the right
size that would only grow. A run that was interrupted goes on with the shards that are not finished.
--verify checks the result.

Exit status: 0 done; 1 an error, or a shard of INPUT_DIR is damaged and has no result; 2 wrong
usage; 3 done, but images could not be decoded and are left out (--allow_corrupt N makes up to N
of them 0); 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import tool
from shards import SUBSETS, ShardError, find_shards, usable_cpus, write_list
from tool import are, folder, number

if TYPE_CHECKING:
    from shard_jobs import Job, Summary

DATASETS = {"imagenet": 1000, "flowers": 5}  # labels are 1 to this; 0 is the background


def main() -> int:
    flags = parse()
    return verify(flags) if flags.verify else resize(flags)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-i", "--input_dir", type=folder, help="folder with the shards to read")
    add("-o", "--output_dir", type=folder, required=True, help="folder to write to, not the same")
    add("-s", "--subset_name", choices=SUBSETS, default="train", help="which shards (train)")
    add(
        *("-d", "--dataset_name"),
        choices=sorted(DATASETS),
        help="which labels --verify expects (guessed from the path of INPUT_DIR)",
    )
    add("-r", "--size", type=number(1), default=480, help="pixels of the shorter side (480)")
    add("-R", "--stretch", action="store_true", help="make squares of SIZE, whatever the shape")
    add("-Q", "--quality", type=number(1, 100), default=85, help="JPEG quality, 1 to 100 (85)")
    add("-f", "--force", action="store_true", help="replace shards that were made differently")
    add(
        "--start_offset",
        type=number(0),
        default=0,
        help="leave out that many shards at the beginning (0)",
    )
    add(
        "--num_preprocess_threads",
        type=number(0),
        default=0,
        help="processes, each with a shard of its own (0: one per CPU)",
    )
    add(
        "--num_inter_threads",
        type=number(0),
        default=0,
        help="images that a process resizes at a time (0: more than one where CPUs would idle)",
    )
    add(
        "--num_intra_threads",
        type=number(0),
        default=0,
        help="threads that scale one image together; the pixels are the same (0: one)",
    )
    add(
        "--allow_corrupt",
        type=number(0),
        default=0,
        metavar="N",
        help="up to N images that cannot be decoded are no error (0)",
    )
    add("--verify", action="store_true", help="check OUTPUT_DIR against INPUT_DIR, make nothing")
    flags = parser.parse_args(argv)
    if flags.input_dir is None and not flags.verify:
        parser.error("the following arguments are required: -i/--input_dir")
    if flags.input_dir and flags.input_dir.resolve() == flags.output_dir.resolve():
        parser.error("OUTPUT_DIR is INPUT_DIR: choose another folder to write to")
    guess = guess_dataset(flags.input_dir or flags.output_dir)
    flags.dataset_name = flags.dataset_name or guess
    if flags.dataset_name is None:
        parser.error(f"cannot tell the data set from the path: say -d {' or -d '.join(DATASETS)}")
    return flags


def guess_dataset(path: Path) -> str | None:
    """Return the name of the data set that is in the path, or None."""
    return next((name for name in DATASETS if name in str(path).lower()), None)


def resize(flags: argparse.Namespace) -> int:
    """Resize the shards, and return the exit status."""
    from resize_shards import resize_shard
    from shard_jobs import make_shards

    jobs, processes = jobs_of(flags)
    title = f"resizing {flags.subset_name}"
    done = make_shards(jobs, resize_shard, processes=processes, force=flags.force, title=title)
    report(done, flags)
    return corrupt_status(done, flags)


def report(done: Summary, flags: argparse.Namespace) -> None:
    kept = [line for line in done.lines if line.size]
    made = len(kept) - done.skipped
    speed = f", {done.images_per_s:,.0f} images/s" if made else ""
    print(
        f"{flags.subset_name}: {done.records:,} images in {len(kept)} of {len(done.lines)} shards,"
        f" {sum(line.size for line in kept) / 1e6:,.1f} MB in {flags.output_dir}"
        f" ({made} made, {done.skipped} there before{speed})"
    )


def corrupt_status(done: Summary, flags: argparse.Namespace) -> int:
    """Write the list of corrupt images, report them, and return the exit status."""
    listing = flags.output_dir / f"corrupt-images-{flags.subset_name}.txt"
    write_list(listing, [f"{name}\t{why}" for name, why in done.left_out])
    lost = [line.shard for line in done.lines if not line.size]
    corrupt = len(done.left_out) - len(lost)
    if corrupt:
        print(f"{flags.subset_name}: {are(corrupt, 'image')} corrupt and left out: {listing}")
    if lost:
        print(f"error: {are(len(lost), 'input file')} damaged: {listing}", file=sys.stderr)
        return 1
    return tool.status_of(corrupt, flags.allow_corrupt)


def verify(flags: argparse.Namespace) -> int:
    """Check all records of the output and return the exit status.

    With an input, also check by the journal that the output was made of it with these settings.
    """
    from resize_shards import unlike
    from verify import verify as check

    processes = flags.num_preprocess_threads or usable_cpus()
    jobs = jobs_of(flags)[0] if flags.input_dir else []
    checked = check(flags.output_dir, flags.subset_name, processes)
    checked.problems += unlike(jobs)
    highest, most = max(checked.labels, default=0), DATASETS[flags.dataset_name]
    if highest > most:
        checked.problems.append(
            f"labels go up to {highest}, those of {flags.dataset_name} to {most}"
        )
    print(f"{flags.subset_name}: {checked}", file=sys.stderr if checked.problems else sys.stdout)
    return 1 if checked.problems else 0


def jobs_of(flags: argparse.Namespace) -> tuple[list[Job], int]:
    """Return a job for each shard to make, and the number of processes."""
    from resize_record import Settings
    from resize_shards import choose_threads, plan

    sources = find_shards(flags.input_dir, flags.subset_name)
    left = len(sources) - flags.start_offset
    if left <= 0:
        raise ShardError(f"--start_offset leaves out all of the {len(sources)} shards")
    numbers = flags.num_preprocess_threads, flags.num_inter_threads, flags.num_intra_threads
    threads = choose_threads(*numbers, shards=left, cpus=usable_cpus())
    settings = Settings(flags.size, flags.quality, flags.stretch)
    jobs = plan(sources, flags.output_dir, flags.subset_name, settings, threads)
    return jobs[flags.start_offset :], threads.processes


if __name__ == "__main__":
    tool.run(main)
