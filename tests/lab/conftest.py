from __future__ import annotations

import pytest

from clusterctl.lab import lifecycle
from tests.lab.refusals import service
from tests.lab.running import client, make_key, newest_image, shown, ssh, wait_until


@pytest.fixture(scope="session")
def key(tmp_path_factory):
    return make_key(tmp_path_factory.mktemp("key"), "id_ed25519")


@pytest.fixture(scope="session")
def ec2(lab, key):
    """Return the lab's EC2 in its default region, with the key pair `tests`."""
    return with_key(lab, key).ec2


@pytest.fixture(scope="session")
def once(lab):
    """Return an EC2 client without retries."""
    return service(lab, "ec2")


class Instances:
    """Launches instances for a test, and waits for them."""

    def __init__(self, lab, ec2, key) -> None:
        self.lab, self.ec2, self.key = lab, ec2, key
        self.ids: list[str] = []

    def wanted(self, **changes):
        """Return the parameters of RunInstances."""
        usual = {
            "ImageId": newest_image(self.ec2),
            "InstanceType": "p3.2xlarge",
            "MinCount": 1,
            "MaxCount": 1,
            "KeyName": "tests",
        }
        return {name: value for name, value in {**usual, **changes}.items() if value is not None}

    def request(self, **changes):
        launched = self.ec2.run_instances(**self.wanted(**changes))["Instances"]
        ids = [one["InstanceId"] for one in launched]
        self.ids += ids
        # EC2 does not find a new instance by its id at once.
        wait_until(lambda: shown(self.ec2, ids), f"{ids} shown")
        return launched

    def up(self, **changes):
        """Return the launched instances, once sshd answers on all."""
        ids = [one["InstanceId"] for one in self.request(**changes)]
        for id in ids:
            self.reachable(id)
        return [self.see(id) for id in ids]

    def shown(self, *ids):
        return shown(self.ec2, list(ids))

    def see(self, id):
        return self.ec2.describe_instances(InstanceIds=[id])["Reservations"][0]["Instances"][0]

    def state(self, id):
        return self.see(id)["State"]["Name"]

    def in_state(self, id, state):
        wait_until(lambda: self.state(id) == state, f"{id} {state}, is {self.state(id)}")

    def status(self, id):
        found = self.ec2.describe_instance_status(InstanceIds=[id])["InstanceStatuses"]
        return found[0]["InstanceStatus"]["Status"] if found else ""

    def reachable(self, id):
        wait_until(lambda: self.status(id) == "ok", f"status ok of {id}: {self.see(id)}")

    def console(self, id):
        """Return the console output, once the first boot is complete."""
        read = lambda: self.ec2.get_console_output(InstanceId=id).get("Output", "")  # noqa: E731
        return wait_until(lambda: "END SSH HOST KEY KEYS" in read() and read(), f"console of {id}")

    def run(self, instance, command):
        """Return the output of a command. It has to succeed."""
        done = ssh(self.lab, self.key, instance["PrivateIpAddress"], command)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def with_key(lab, key, **account):
    """Return Instances for a lab or another account of it, where it imports the key."""
    ec2 = client(lab, **account)
    ec2.import_key_pair(KeyName="tests", PublicKeyMaterial=key.with_suffix(".pub").read_bytes())
    return Instances(lab, ec2, key)


@pytest.fixture
def instances(lab, ec2, key):
    made = Instances(lab, ec2, key)
    yield made
    if made.ids:
        ec2.terminate_instances(InstanceIds=made.ids)


class LabFaults:
    """Sets faults through the lab's own page."""

    def __init__(self, lab) -> None:
        self.lab = lab

    def __call__(self, kind, **fields):
        return lifecycle.request_page(self.lab, "/_lab/faults", "POST", {"kind": kind, **fields})

    def clear(self, id=None):
        return lifecycle.request_page(
            self.lab, f"/_lab/faults?id={id}" if id else "/_lab/faults", "DELETE"
        )

    def standing(self):
        return lifecycle.request_page(self.lab, "/_lab/faults")["faults"]


@pytest.fixture
def faults(lab, instances):
    # This fixture uses `instances`, so faults are cleared before the instances are terminated.
    set_here = LabFaults(lab)
    yield set_here
    set_here.clear()


@pytest.fixture(scope="module")
def host(lab, ec2, key):
    """Return a p3.16xlarge with user data. Tests of a module share it and do not change it."""
    made = Instances(lab, ec2, key)
    script = "#!/bin/sh\necho user data ran as $(id -un)\necho ran >>/home/ubuntu/user-data\n"
    one = made.up(InstanceType="p3.16xlarge", UserData=script)[0]
    made.console(one["InstanceId"])
    made.host = one
    yield made
    ec2.terminate_instances(InstanceIds=made.ids)
