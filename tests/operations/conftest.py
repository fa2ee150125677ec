import pytest

from tests.moto_ec2 import client, moto_client, moto_url
from tests.operations.killed import slayer as slayer_of
from tests.operations.world import World

__all__ = ["client", "moto_client", "moto_url"]


@pytest.fixture(scope="module")
def world(moto_url, tmp_path_factory):
    """An EC2 for commands that fail; what one case has left may serve the next."""
    return World(moto_url, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def slayer(moto_url):
    with slayer_of(moto_url) as started:
        yield started
