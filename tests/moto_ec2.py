"""The lab's EC2 API at a real endpoint, for tests that need no hosts."""

from __future__ import annotations

import contextlib
import copy
import functools
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any
from unittest import mock

import pytest

from clusterctl.ec2.session import Account, Clients
from tests import direct
from tests.hostless import clear_faults, complete_moto

REGION = "us-east-1"
KEY = {"access_key": "test", "secret_key": "test"}
# Credentials of another account.
OTHER_KEY = {"access_key": "other", "secret_key": "other"}
DLAMI = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) {}"
OLD_IMAGE, NEW_IMAGE = "ami-0aaaaaaaaaaaaaaa1", "ami-0aaaaaaaaaaaaaaa2"
ARM_IMAGE = "ami-0aaaaaaaaaaaaaaa3"
NEW_DATE = "20261101"


def _image(ami_id: str, name: str, date: str, architecture: str = "x86_64") -> dict[str, object]:
    return {
        "ami_id": ami_id,
        "name": name,
        "description": name,
        "owner_id": "898082745236",
        "owner_alias": "amazon",
        "public": True,
        "virtualization_type": "hvm",
        "architecture": architecture,
        "state": "available",
        "platform": None,
        "image_type": "machine",
        "image_location": f"amazon/{name}",
        "hypervisor": "xen",
        "root_device_type": "ebs",
        "root_device_name": "/dev/sda1",
        "creation_date": datetime.fromisoformat(date),
    }


IMAGES = [
    _image(NEW_IMAGE, DLAMI.format(NEW_DATE), "2026-11-01T00:00:00+00:00"),
    _image(OLD_IMAGE, DLAMI.format("20260703"), "2026-07-03T00:00:00+00:00"),
    _image(ARM_IMAGE, "An ARM64 image", "2026-11-02T00:00:00+00:00", "arm64"),
]


# The application behind each endpoint of this process.
SERVED: dict[str, direct.App] = {}


class DirectClients(Clients):
    """Clients that call the server of this process directly. In other processes they use HTTP.

    Each is made once: to make one takes as long as ten calls.
    """

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._made: dict[str, Any] = {}

    def in_region(self, region: str) -> DirectClients:
        elsewhere = DirectClients(replace(self.account, region=region))
        elsewhere._origin = self
        return elsewhere

    def _make(self, service: str, *arguments: Any, **named: Any) -> Any:
        key = repr((service, arguments, named))
        if key in self._made:
            return self._made[key]
        client = self._made[key] = super()._make(service, *arguments, **named)
        app = SERVED.get(client.meta.endpoint_url)
        # Requests to S3 have bodies that are streams.
        if app and service != "s3":
            direct.connect(client, app)
        return client


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """Yield the endpoint of a server in this process."""
    from moto.ec2.models.amis import Ami, AmiBackend

    from clusterctl.lab.accounts import KEYS
    from clusterctl.lab.app import make_api
    from clusterctl.lab.record import ACCOUNTS, AccessKey

    def load_images(backend: AmiBackend) -> None:
        for image in IMAGES:
            backend.amis[image["ami_id"]] = Ami(backend, **image)

    complete_moto()
    for account, key in zip(ACCOUNTS, (KEY, OTHER_KEY)):
        KEYS.add(AccessKey(account, key["access_key"], key["secret_key"]))
    with mock.patch.object(AmiBackend, "_load_amis", load_images):
        listening = socket.create_server(("127.0.0.1", 0))
        server = make_api(listening, "no secret")
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        SERVED[url] = server.app
        try:
            yield url
        finally:
            del SERVED[url]
            server.shutdown()
            serving.join()
            # Each client holds EC2's whole API description, and no later server has this address.
            clients_of.cache_clear()


def reset() -> None:
    """Delete all resources of the server, and clear its faults."""
    from moto.ec2.models import ec2_backends
    from moto.moto_api._internal.models import moto_api_backend

    for account in [*ec2_backends]:
        # moto resets what was used, and not an EC2 that the reset of another service has made.
        ec2_backends[account]
    moto_api_backend.reset()
    clear_faults()


def forget_terminated() -> None:
    """Forget instances that are terminated, as EC2 does an hour later."""
    from moto.ec2.models import ec2_backends

    for regions in ec2_backends.values():
        for backend in regions.values():
            for id, reservation in list(backend.reservations.items()):
                there = [one for one in reservation.instances if one.state != "terminated"]
                reservation.instances = there
                if not there:
                    del backend.reservations[id]


@functools.lru_cache
def clients_of(endpoint_url: str) -> Clients:
    """Return cached clients: to make one takes longer than most tests."""
    return DirectClients(Account(region=REGION, endpoint_url=endpoint_url, **KEY))


def client_of(endpoint_url: str):
    return clients_of(endpoint_url).ec2


def clients_with(client) -> Clients:
    """Return the clients of the endpoint of `client`, with `client` (perhaps wrapped) for EC2."""
    clients = copy.copy(clients_of(client.meta.endpoint_url))
    vars(clients)["ec2"] = client
    return clients


@pytest.fixture(scope="session")
def moto_url():
    with moto_server() as url:
        yield url


@pytest.fixture(scope="session")
def moto_client(moto_url):
    return client_of(moto_url)


@pytest.fixture
def client(moto_url, moto_client):
    """Return a client of an EC2 without any resources."""
    reset()
    return moto_client


@pytest.fixture
def faults(moto_url):
    """Return a function that sets faults. At the end there are none."""
    from clusterctl.lab.faults.store import FAULTS

    yield lambda *wanted: [FAULTS.add(one) for one in wanted]
    clear_faults()
