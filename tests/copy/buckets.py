"""S3 as moto has it, on a real socket: buckets of one test's own."""

from __future__ import annotations

import base64
import contextlib
import itertools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

KEYS = {"access": "AKIATEST", "secret": "not so secret"}
_numbers = itertools.count()


class S3Server:
    """`bucket` makes one; `config` is what a node is told to read it."""

    def __init__(self, endpoint: str) -> None:
        import boto3

        self.endpoint = endpoint
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEYS["access"],
            aws_secret_access_key=KEYS["secret"],
        )

    def bucket(self, objects: Mapping[str, bytes]) -> str:
        name = f"bucket-{next(_numbers)}"
        self.client.create_bucket(Bucket=name)
        for key, body in objects.items():
            self.client.put_object(Bucket=name, Key=key, Body=body)
        return name

    def config(self, *places: str, **more: Any) -> dict[str, Any]:
        """Of `BUCKET/KEY` each."""
        sources = []
        for place in places:
            bucket, _, key = place.partition("/")
            encoded = base64.b64encode(key.encode("utf-8", "surrogateescape")).decode()
            sources.append({"kind": "s3", "bucket": bucket, "key_b64": encoded})
        return {
            "sources": sources,
            "endpoint": self.endpoint,
            "credentials": KEYS,
            "connections": 4,
            **more,
        }


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3Server(f"http://{host}:{port}")
    finally:
        server.stop()
