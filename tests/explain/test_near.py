"""Lines close to those of a signature, of another cause or of a healthy run."""

from __future__ import annotations

from pathlib import Path

from clusterctl.explain.catalogue import catalogue
from clusterctl.explain.engine import explain


def test_a_line_close_to_a_signature_is_not_taken_for_it():
    ids = {one.id for one in catalogue()}
    for text in Path(__file__).with_name("near.txt").read_text().splitlines():
        signature, _, line = text.partition(" ")
        if signature != "#":
            assert signature in ids, text
            line = line.replace(r"\n", "\n").replace(r"\t", "\t")
            found = explain([f"{line}\n"]).findings
            assert signature not in {one.signature.id for one in found}, text
