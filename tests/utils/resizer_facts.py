"""Facts about resized images and records, printed as JSON: `resizer_facts.py UTILS ASKED`."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import numpy as np
from PIL import Image
from resizer_pictures import coded, decoded, features, luma, pixels, psnr, record, reference

sys.path.insert(0, sys.argv[1])
import resize_record as ours  # noqa: E402
from resize_shards import choose_threads  # noqa: E402

BOXES = [f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax")]
ASKED = json.loads(sys.argv[2])
SMALL = ours.Settings(size=48)


def main() -> None:
    parts = (sizes, threads, scaling, bands, decoder_scale, jpeg, modes, kept, records, corrupt)
    print("FACTS", json.dumps({part.__name__: part() for part in parts}))


def sizes() -> list[Any]:
    return [
        ours.target_size(width, height, ours.Settings(size=size, stretch=stretch))
        for width, height, size, stretch in ASKED["sizes"]
    ]


def threads() -> list[Any]:
    return [list(vars(choose_threads(*row)).values()) for row in ASKED["threads"]]


def scaling() -> float:
    """Return the largest difference from the float64 reference, in levels of 255."""
    worst = 0.0
    for source, target in (((160, 121), (63, 48)), ((97, 301), (48, 149)), ((33, 40), (48, 48))):
        image = pixels(*source)
        got = np.asarray(ours.shrink(Image.fromarray(image), target)).astype(float)
        worst = max(worst, float(np.abs(got - reference(image, target)).max()))
    return worst


def bands() -> bool:
    """Return whether several threads shrink an image to the same bits."""
    same = True
    for source, target in (((161, 121), (63, 48)), ((3, 2), (2, 1)), ((20, 30), (48, 48))):
        image = Image.fromarray(pixels(*source))
        whole = ours.shrink(image, target).tobytes()
        for threads in (1, 2, 3, 7, 64):
            with ours.shrinking(threads) as shrink:
                same = same and shrink(image, target).tobytes() == whole
    return same


def decoder_scale() -> list[float]:
    """Return the PSNR of images that the decoder scales partly, to full decoding and reference."""
    found = []
    for side in (130, 200, 400):
        encoded = coded(pixels(side + 30, side, cell=side // 8), quality=92)
        resized = ours.resize_image(encoded, ours.Settings(size=48, quality=100))
        ideal = reference(decoded(encoded), (resized.width, resized.height))
        found.append(psnr(luma(decoded(resized.encoded)), luma(ideal)))
    return found


def jpeg() -> dict[str, Any]:
    noted = {"quality": 95, "comment": b"a comment", "icc_profile": b"x" * 100}
    source = coded(pixels(120, 90), exif=Image.Exif().tobytes(), **noted)
    resized = ours.resize_image(source, SMALL)
    image = Image.open(io.BytesIO(resized.encoded))
    plain = coded(decoded(resized.encoded), quality=85, subsampling=2, optimize=False)
    low = ours.resize_image(source, ours.Settings(size=48, quality=40))
    return {
        "size": [resized.width, resized.height, *image.size],
        "mode": [image.format, image.mode],
        "sampling": image.layer[0][1:3],
        "progressive": "progressive" in image.info,
        "left": sorted(key for key in image.info if not key.startswith("jfif")),
        "own_tables": len(resized.encoded) < len(plain),
        "quality": len(low.encoded) < len(resized.encoded),
        "again": ours.resize_image(source, SMALL).encoded == resized.encoded,
    }


def modes() -> dict[str, Any]:
    """Return each unusual source's result, and its middle's distance to (200, 40, 90)."""
    plain = Image.new("RGB", (120, 90), (200, 40, 90))
    inverted = Image.merge("CMYK", [*(b.point(lambda v: 255 - v) for b in plain.split()), zero()])
    grey = plain.convert("L")
    sources = {
        "cmyk": (coded(inverted), 3),
        "png": (coded(plain, "PNG"), 3),
        "alpha": (coded(plain.convert("RGBA"), "PNG"), 3),
        "palette": (coded(plain.convert("P", palette=Image.Palette.ADAPTIVE), "PNG"), 3),
        "gif": (coded(plain, "GIF"), 3),
        "grey": (coded(grey), 1),
        "progressive": (coded(plain, progressive=True), 3),
    }
    found = {}
    for name, (source, channels) in sources.items():
        for settings in (SMALL, ours.Settings(size=480)):
            resized = ours.resize_image(source, settings)
            image = Image.open(io.BytesIO(resized.encoded))
            middle = np.asarray(image)[resized.height // 2, resized.width // 2].astype(int)
            wanted = [200, 40, 90] if channels == 3 else [grey.getpixel((0, 0))] * 3
            off = int(np.abs(middle - wanted).max())
            found.setdefault(name, []).append([image.format, image.mode, *image.size, off])
    return found


def zero() -> Image.Image:
    return Image.new("L", (120, 90), 0)


def kept() -> dict[str, bool]:
    """Return whether images that need no shrinking keep their bytes."""
    image = pixels(60, 40)
    coarse, fine = coded(image, quality=10, optimize=True), coded(image, quality=98)
    grey, png = coded(Image.fromarray(image).convert("L"), quality=5), coded(image, "PNG")
    sources = {"coarse": coarse, "fine": fine, "grey": grey, "png": png}
    return {key: ours.resize_image(it, SMALL).encoded == it for key, it in sources.items()}


def records() -> dict[str, Any]:
    boxes = {f"image__object__bbox__{side}": [0.25, 0.5] for side in ("xmin", "ymin")}
    odd = {"image__filename": "Bär '1'.JPEG".encode(), "custom__numbers": [3, 4], **boxes}
    source = record(coded(pixels(120, 90), quality=95), **odd)
    before, after = features(source), features(ours.resize_record(source, SMALL))
    changed = [key for key in before if before[key] != after[key]]
    plain = features(ours.resize_record(record(coded(pixels(30, 20), "PNG")), SMALL))
    return {
        "changed": sorted(changed),
        "added": sorted(set(after) - set(before)),
        "size": [after["image/width"], after["image/height"]],
        "boxes": [len(after[box]) for box in BOXES],
        "no_boxes": [len(plain[box]) for box in BOXES],
        "text": plain["image/class/text"] == [b""],
        "small": [plain["image/width"], plain["image/height"]],
        "again": ours.resize_record(source, SMALL) == ours.resize_record(source, SMALL),
    }


def corrupt() -> dict[str, Any]:
    """Return the results of broken bytes. A changed image that decodes must be a whole JPEG."""
    good = coded(pixels(120, 90))
    hopeless = [b"", b"\0" * 500, b"<html>404</html>", good[:20], good[: len(good) // 2], good[9:]]
    hopeless += [coded(pixels(60, 40), "PNG")[:200]]
    refused = sum(outcome(ours.resize_image, it) == "corrupt" for it in hopeless)
    random = np.random.default_rng(1)
    ends: dict[str, int] = {}
    for _ in range(300):
        broken = bytearray(good if random.random() < 0.7 else coded(pixels(20, 20), "PNG"))
        for place in random.integers(0, len(broken), 5):
            broken[place] = random.integers(0, 256)
        end = outcome(ours.resize_image, bytes(broken))
        ends[end] = ends.get(end, 0) + 1
    no_records = [
        record(None),
        b"\xff\xff\xff",
        record(None, image__encoded=b""),
        record(None, image__encoded=5),
    ]
    bad = [outcome(ours.resize_record, it) for it in no_records]
    return {"refused": refused, "of": len(hopeless), "ends": ends, "records": bad}


def outcome(resize: Any, source: bytes) -> str:
    try:
        result = resize(source, SMALL)
    except ours.CorruptImage as error:
        return "corrupt" if str(error) else "corrupt, and no word why"
    except Exception as error:
        return type(error).__name__
    if isinstance(result, ours.Resized):
        decoded(result.encoded)
    return "resized"


if __name__ == "__main__":
    main()
