"""Turn raw ImageNet into TFRecord files: train-00000-of-01024 ..., validation-00000-of-00128 ...

From tar files or folders that are there already:

    python preprocess_imagenet.py --raw_data_dir ~/imagenet --output_dir ~/data/tf-imagenet

Download first, which takes 155 GB of disk (and the records 155 GB more):

    python preprocess_imagenet.py --local_scratch_dir /data \
        --imagenet_username NAME --imagenet_access_key KEY

After an interruption, the same command goes on where it stopped. Exit status: 0 done; 1 an error;
2 wrong usage; 3 done, but images could not be decoded and are left out (--allow_corrupt N makes up
to N of them 0); 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import tool
from shards import SUBSETS, DataError, share_out, usable_cpus
from tool import are, folder, number


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--local_scratch_dir",
        type=folder,
        metavar="DIR",
        help="where raw_data/ is downloaded to and, without --output_dir, tf-imagenet/ is made",
    )
    add(
        "--raw_data_dir",
        type=folder,
        metavar="DIR",
        help="raw ImageNet that is there: ILSVRC2012_img_{train,val}.tar, or train/SYNSET/ and "
        "validation/, and synset_labels.txt; nothing is downloaded",
    )
    add("--output_dir", type=folder, metavar="DIR", help="folder of the TFRecord files")
    flag(add, "subfolders", False, "write to train/ and validation/, not all into one folder")
    add(
        "--imagenet_username",
        default=os.environ.get("IMAGENET_USERNAME", ""),
        metavar="NAME",
        help="account at image-net.org; or the variable IMAGENET_USERNAME",
    )
    add(
        "--imagenet_access_key",
        default=os.environ.get("IMAGENET_ACCESS_KEY", ""),
        metavar="KEY",
        help="its access key; or the variable IMAGENET_ACCESS_KEY, which other users of the "
        "machine cannot see as they can a command line",
    )
    add("--imagenet_url", metavar="URL", help="folder of the tar files, if not image-net.org's")
    add("--labels_url", metavar="URL", help="address of the validation images' synsets")
    add(
        "--labels_file",
        type=folder,
        metavar="FILE",
        help="the validation images' synsets, a line each; else synset_labels.txt of the raw data",
    )
    flag(add, "check_download", True, "compare size and MD5 of downloaded tar files")
    add("--train_shards", type=number(1), default=1024, metavar="N", help="(1024)")
    add("--validation_shards", type=number(1), default=128, metavar="N", help="(128)")
    add(
        "--num_processes",
        type=number(1),
        default=usable_cpus(),
        metavar="N",
        help="(one for every core)",
    )
    add(
        "--allow_corrupt",
        type=number(0),
        default=0,
        metavar="N",
        help="up to N images that cannot be decoded are no error (0)",
    )
    add(
        "-f",
        "--force",
        action="store_true",
        help="replace shards that this program did not make, and look at corrupt images again",
    )
    add(
        "--verify",
        action="store_true",
        help="make nothing: check every record's CRCs, labels and image header, and the counts",
    )
    args = parser.parse_args(argv)
    if not (args.local_scratch_dir or args.output_dir):
        parser.error("pass --output_dir, or --local_scratch_dir to download to and work in")
    if not (args.verify or args.raw_data_dir or args.local_scratch_dir):
        parser.error("pass --raw_data_dir, or --local_scratch_dir to download to")
    return args


def flag(add, name: str, default: bool, text: str) -> None:  # type: ignore[no-untyped-def]
    """Add a boolean option --name and its opposite --noname, which --help does not list."""
    add(f"--{name}", action="store_true", default=default, help=text)
    add(f"--no{name}", dest=name, action="store_false", help=argparse.SUPPRESS)


def output_folder(args: argparse.Namespace, subset: str) -> Path:
    """Return the folder for a subset: one for both, as trainers expect, unless --subfolders."""
    base = args.output_dir
    if not base:
        base = args.local_scratch_dir / ("" if args.subfolders else "tf-imagenet")
    return base / subset if args.subfolders else base


def main() -> int:
    args = parse_args()
    return verify_all(args) if args.verify else make_all(args)


def make_all(args: argparse.Namespace) -> int:
    """Make the shards of both subsets, and return the exit status."""
    from imagenet_shards import build, refuse_full_disk
    from raw_images import labels_of, train_images, unlike_imagenet, validation_images

    raw = args.raw_data_dir or download(args)
    images = {"train": train_images(raw), "validation": validation_images(raw, args.labels_file)}
    labels = labels_of(image.synset for image in images["train"])
    unknown = sorted({image.synset for image in images["validation"]} - set(labels))
    if unknown:
        raise DataError(
            f"{args.labels_file or raw}: {len(unknown)} synsets of validation images are none of "
            f"the training images': {', '.join(unknown[:3])}"
        )
    other = unlike_imagenet(images, len(labels))
    if other:
        print(other)
    wanted = {"train": args.train_shards, "validation": args.validation_shards}
    for subset in SUBSETS:
        share_out(len(images[subset]), wanted[subset])  # raises ShardError, before hours of work
    refuse_full_disk(images, [output_folder(args, subset) for subset in images])
    corrupt = 0
    for subset in SUBSETS:
        print(f"{subset}: {len(images[subset]):,} images of {len(labels):,} classes in {raw}")
        built = build(
            images[subset],
            labels,
            output_folder(args, subset),
            subset,
            wanted[subset],
            processes=args.num_processes,
            force=args.force,
        )
        report(built, subset, output_folder(args, subset))
        corrupt += len(built.corrupt)
    return tool.status_of(corrupt, args.allow_corrupt)


def report(built, subset: str, where: Path) -> None:  # type: ignore[no-untyped-def]
    """Print what was made of a subset, and where its corrupt images are listed."""
    first, last = built.first, built.last
    before = f" ({first.skipped} of them were there)" if first.skipped else ""
    speed = f", {first.images_per_s:,.0f} images/s" if first.made else ""
    print(f"{subset}: {last.records:,} images in {len(last.lines)} files in {where}{before}{speed}")
    if built.corrupt:
        corrupt = are(len(built.corrupt), "image")
        print(f"{subset}: {corrupt} corrupt and left out: {built.listed}")


def download(args: argparse.Namespace) -> Path:
    """Download the missing files of the raw data and return its folder."""
    from imagenet_download import BASE_URL, LABELS_URL, Login, fetch_all, imagenet_files

    raw: Path = args.local_scratch_dir / "raw_data"
    user, key = args.imagenet_username, args.imagenet_access_key
    if bool(user) != bool(key):
        raise DataError("--imagenet_username and --imagenet_access_key go together")
    files = imagenet_files(
        args.imagenet_url or BASE_URL, args.labels_url or LABELS_URL, args.check_download
    )
    fetch_all(files, raw, Login(user, key) if user else None)
    return raw


def verify_all(args: argparse.Namespace) -> int:
    """Check the shards of both subsets, and return the exit status."""
    from verify import verify

    status = 0
    for subset in SUBSETS:
        found = verify(output_folder(args, subset), subset, args.num_processes)
        print(f"{subset}: {found}")
        status = 1 if found.problems else status
    return status


if __name__ == "__main__":
    tool.run(main)
