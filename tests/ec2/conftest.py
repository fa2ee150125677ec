from tests.ec2.launching import launches
from tests.moto_ec2 import client, faults, moto_client, moto_url

__all__ = ["client", "faults", "launches", "moto_client", "moto_url"]
