"""A ~ that the user's shell has replaced by the home folder of this machine."""

from __future__ import annotations

import pytest

from clusterctl.domain.errors import unquoted_home, with_tilde


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("/home/alice", "~"),
        ("/home/alice/", "~/"),
        ("train=/home/alice/d", "train=~/d"),
        ("cp '/home/alice/a b' /home/alice", "cp '~/a b' ~"),
        # Other folders whose path has the same letters.
        ("/home/alice2", "/home/alice2"),
        ("/home/alice.old/x", "/home/alice.old/x"),
        ("/mnt/home/alice/x", "/mnt/home/alice/x"),
        ("~/home/alice", "~/home/alice"),
        ("s3://home/alice", "s3://home/alice"),
    ],
)
def test_where_a_path_begins_with_the_home_folder(text, meant):
    assert with_tilde(text, "/home/alice/") == meant
    assert bool(unquoted_home(text, "/home/alice")) == (text != meant)


@pytest.mark.parametrize("home", ["", "/"])
def test_a_home_folder_that_holds_everything_says_nothing(home):
    assert unquoted_home("/data", home) == ""
