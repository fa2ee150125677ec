from tests.moto_ec2 import client, moto_client, moto_url

__all__ = ["client", "moto_client", "moto_url"]
