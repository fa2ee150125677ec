"""Runs example programs unchanged under mpirun, and compares their ranks at the end.

    keras_facts.py PROGRAM EVALUATION DATA_FOLDER MODEL_FOLDER FLAGS... [-- PROGRAM ...]...

Rank 0 runs the evaluation after its program in the same process, so TensorFlow is imported once.
Then it prints FACTS and a list in JSON. For each program, this has checksums of each rank's weights
and training images, and the messages of ranks with unequal data. At last, the last program trains
once more, from the streams that SageMaker's variables name.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def facts_of(path: str, evaluation: str, data: str, models: str, *flags: str) -> dict[str, Any]:
    sys.path.insert(0, str(Path(path).parent))
    program = importlib.import_module(Path(path).stem)
    build, seen = program.build_model, []
    program.build_model = lambda: seen.append(build()) or seen[0]
    folders = ["--data_dir", data, "--model_dir", models]
    program.main([*folders, *flags])
    from horovod.tensorflow import allgather_object, rank

    if rank() == 0:
        importlib.import_module(Path(evaluation).stem).main(folders)
    return {
        "weights": allgather_object(checksum(seen[0].get_weights())),
        "images": allgather_object([checksum([row]) for row in rows(program, data)]),
        "uneven": allgather_object(uneven(program, rank())),
        "folder": str(program.parse_args([]).model_dir),
        "rates": [rate_of_all(program, size) for size in (1, 2, 4, 8, 256)],
    }


def rate_of_all(program: Any, size: int) -> float:
    args = program.parse_args([])
    return float(program.rate_of_all(args if hasattr(args, "learning_rate") else args.lr, size))


def rows(program: Any, data: str) -> Iterable[Any]:
    """Return this rank's training data: images, or records."""
    if hasattr(program, "own_records"):
        file = Path(data) / "train" / "train.tfrecords"
        return program.own_records(file).as_numpy_iterator()
    return program.own_part(*program.load(data, "train"), "training")[0]


def uneven(program: Any, rank: int) -> str:
    """Return the message of a rank whose data differs from the others'."""
    program.same_everywhere(training=7)
    try:
        program.same_everywhere(training=7 + rank)
    except SystemExit as error:
        return str(error)
    return "nothing"


def checksum(arrays: list[Any]) -> str:
    return hashlib.sha256(b"".join(bytes(array) for array in arrays)).hexdigest()


def main() -> None:
    variables = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith("SM_")}
    groups = itertools.groupby(sys.argv[1:], key=lambda word: word == "--")
    given = [[*words] for is_mark, words in groups if not is_mark]
    facts = [facts_of(*words) for words in given]
    from horovod.tensorflow import rank

    if rank() == 0:
        print("FACTS " + json.dumps(facts), flush=True)
    os.environ.update(variables)
    path, _, _, models, *flags = given[-1]
    importlib.import_module(Path(path).stem).main(
        [*flags, "--model_dir", f"{models} streamed", "--epochs", "2"]
    )


if __name__ == "__main__":
    main()
