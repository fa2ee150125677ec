"""Verifies damaged shards of 15 records each, and prints facts: verify_facts.py SHARDS SCRATCH."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "utils"))

from records import decode_example, encode_example, read_records, write_record
from verify import verify

FIRST, SECOND, THIRD, LAST = (f"train-{index:05d}-of-00004" for index in range(4))


def main() -> None:
    shards, scratch = map(Path, sys.argv[1:])
    facts = {}
    for damage in DAMAGES:
        folder = Path(shutil.copytree(shards, scratch / damage.__name__))
        damage(folder)
        facts[damage.__name__] = verify(folder, "train").problems
        shutil.rmtree(folder)
    whole = verify(shards, "train")
    facts["whole"] = [whole.records, len(whole.labels), str(whole)]
    print("FACTS " + json.dumps(facts))


def bit(folder: Path) -> None:
    data = bytearray((folder / SECOND).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / SECOND).write_bytes(data)


def two_records(folder: Path) -> None:
    data = bytearray((folder / SECOND).read_bytes())
    data[20] ^= 1
    data[-20] ^= 1
    (folder / SECOND).write_bytes(data)


def length(folder: Path) -> None:
    data = bytearray((folder / SECOND).read_bytes())
    data[3] ^= 64
    (folder / SECOND).write_bytes(data)


def truncated(folder: Path) -> None:
    (folder / SECOND).write_bytes((folder / SECOND).read_bytes()[:-5])


def within_a_length(folder: Path) -> None:
    with (folder / SECOND).open("ab") as file:
        file.write(b"12345")


def empty(folder: Path) -> None:
    (folder / SECOND).write_bytes(b"")


def missing(folder: Path) -> None:
    (folder / LAST).unlink()


def missing_and_one_less(folder: Path) -> None:
    missing(folder)
    rewrite(folder / THIRD, lambda records: records[:-1])


def twice(folder: Path) -> None:
    shutil.copy(folder / FIRST, folder / SECOND)


def one_less(folder: Path) -> None:
    rewrite(folder / SECOND, lambda records: records[:-1])


def label_of_0(folder: Path) -> None:
    rewrite(folder / FIRST, lambda records: [changed(records[0], label=[0]), *records[1:]])


def label_of_1001(folder: Path) -> None:
    rewrite(folder / FIRST, lambda records: [changed(records[0], label=[1001]), *records[1:]])


def no_label(folder: Path) -> None:
    rewrite(folder / FIRST, lambda records: [changed(records[0], label=[]), *records[1:]])


def no_image(folder: Path) -> None:
    rewrite(folder / FIRST, lambda records: [changed(records[0], encoded=[b"GIF"]), *records[1:]])


def old_width(folder: Path) -> None:
    rewrite(folder / FIRST, lambda records: [changed(records[0], width=[7]), *records[1:]])


def no_example(folder: Path) -> None:
    rewrite(folder / FIRST, lambda records: [b"\xff\xff\xff", b"", *records[2:]])


def rewrite(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    records = change(list(read_records(path)))
    with path.open("wb") as file:
        for record in records:
            write_record(file, record)


def changed(record: bytes, **values: list) -> bytes:
    features = decode_example(record)
    for name, value in values.items():
        features[f"image/{'class/' if name == 'label' else ''}{name}"] = value
    return encode_example(features)  # type: ignore[arg-type]


DAMAGES = [
    bit, two_records, length, truncated, within_a_length, empty, missing, missing_and_one_less,
    twice, one_less, label_of_0, label_of_1001, no_label, no_image, old_width, no_example,
]  # fmt: skip

if __name__ == "__main__":
    main()
