from tests.moto_ec2 import client, faults, moto_client, moto_url

__all__ = ["client", "faults", "moto_client", "moto_url"]
