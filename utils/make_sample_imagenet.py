"""Make a small stand-in for raw ImageNet, laid out as the real one, for trials without it.

    python make_sample_imagenet.py --output_dir raw --classes 10 --images 500

Every class has its own shape and colour, drawn at a random place and size on a noisy background,
so that a network learns them in minutes. As in the real data set, classes differ in their number of
images, and among the JPEGs are a CMYK one, a grey one and a PNG. One file is cut short.
The same flags make the same files.
"""

from __future__ import annotations

import argparse

import tool
from tool import number


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--output_dir",
        required=True,
        type=tool.folder,
        metavar="DIR",
        help="folder to make train/, validation/ and synset_labels.txt in",
    )
    add("--classes", type=number(2, 1000), default=10, metavar="N", help="synsets (10)")
    add(
        "--images",
        type=number(8, 2_000_000),
        default=500,
        metavar="N",
        help="training images, shared out unevenly (500)",
    )
    add("--validation_images", type=number(1, 50_000), default=100, metavar="N", help="(100)")
    add(
        "--size",
        type=number(16, 4096),
        default=96,
        metavar="PIXELS",
        help="shorter side; the longer one is up to half as much again (96)",
    )
    add("--seed", type=number(0, 2**32), default=0, metavar="N", help="(0)")
    add("--as_tars", action="store_true", help="pack them as image-net.org does")
    args = parser.parse_args(argv)
    if args.images < 4 * args.classes:
        parser.error(f"--images: {args.classes} classes need {4 * args.classes} or more")
    return args


def main() -> int:
    args = parse_args()
    import sample_images
    import sample_layout

    drawn = sample_images.Sample(
        args.classes, args.images, args.validation_images, args.size, args.seed
    )
    sample_layout.write(drawn, args.output_dir, args.as_tars)
    kind = "tar files" if args.as_tars else "folders"
    print(
        f"{args.images:,} training and {args.validation_images:,} validation images of "
        f"{args.classes} classes in {args.output_dir} ({kind}; one image is corrupt)"
    )
    return 0


if __name__ == "__main__":
    tool.run(main, "remove the unfinished folder before you run it again")
