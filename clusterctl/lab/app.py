"""The lab's HTTP servers: the completed moto, behind the gate, and the lab's own pages."""

from __future__ import annotations

import functools
import io
import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server import werkzeug_app
from werkzeug.serving import BaseWSGIServer, make_server

from clusterctl.lab import gate, wsgi
from clusterctl.lab.ec2 import completion, network, objects, pricing
from clusterctl.lab.faults import api, interruptions, page
from clusterctl.lab.faults.store import FAULTS
from clusterctl.lab.hosts import instances
from clusterctl.lab.hosts.metadata import instance_at
from clusterctl.lab.record import FAULTS_PAGE, INTERRUPTIONS_PAGE
from clusterctl.lab.sessions import permits

# The names that requests are signed for. CloudWatch's is `monitoring`.
SERVICES = (
    *("ec2", "s3", "ssm", "iam", "sts"),
    *("servicequotas", "pricing", "cloudformation", "monitoring"),
)
STATUS_PATH = "/_lab/status"
# The region in the Authorization header of a request to the price list.
SIGNED_FOR = re.compile(r"Credential=[^/]+/\d+/([a-z0-9-]+)/pricing/")
# Held while a service is made, which is done once.
MAKING = threading.Lock()
# An idle connection is closed after this time, as S3 does.
IDLE_S = 60.0


def make_api(listening: socket.socket, secret: str) -> BaseWSGIServer:
    """Return the server of the lab's services, and of its pages for requests with `secret`."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    port = listening.getsockname()[1]
    pages = {
        STATUS_PATH: lambda _: _instances(),
        FAULTS_PAGE: page.serve,
        INTERRUPTIONS_PAGE: interruptions.serve,
    }
    return _serve(
        listening,
        gate.with_gate(
            api.with_api_faults(objects.within_room(_dispatch), FAULTS),
            SERVICES,
            [f"127.0.0.1:{port}", f"localhost:{port}"],
            (wsgi.pages(pages), secret),
        ),
    )


def make_storage(listening: socket.socket) -> BaseWSGIServer:
    """Return the hosts' server of the same services. Its socket listens inside the lab."""
    host, port = listening.getsockname()
    services = _along_routes(api.with_api_faults(objects.within_room(_dispatch), FAULTS))
    return _serve(listening, gate.with_gate(services, SERVICES, [host, f"{host}:{port}"]))


def _along_routes(services: wsgi.Wsgi) -> wsgi.Wsgi:
    """Return the services, with no answer to a host that no route leads to the Internet.

    Of S3, which an endpoint may lead to, the packets are dropped before (`network.storage_lines`).
    """

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        host = instance_at(environ["REMOTE_ADDR"])
        if host and environ[wsgi.SERVICE] != "s3" and not network.reaches_internet(host):
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError  # as in faults.api: werkzeug logs nothing
        return services(environ, start)

    return answer


class Outgoing(io.BufferedIOBase):
    """Writes all of what it gets. `sendall`, which the handler would use, counts the connection's
    timeout over all of it, and so cuts what is large for a slow link; here each part has its own.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, data: Any) -> int:
        with memoryview(data).cast("B") as whole:
            sent = 0
            while sent < len(whole):
                sent += self._connection.send(whole[sent:])
            return sent


class Handler(werkzeug_app.MotoRequestHandler):
    """Handles one request. werkzeug closes the connection after it."""

    timeout = IDLE_S

    def setup(self) -> None:
        super().setup()
        self.wfile = Outgoing(self.connection)


def _serve(listening: socket.socket, app: wsgi.Wsgi) -> BaseWSGIServer:
    host, port = listening.getsockname()
    return make_server(
        host, port, app, threaded=True, request_handler=Handler, fd=listening.fileno()
    )


def _dispatch(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """Call the service that the request is signed for.

    moto's own dispatcher is not used, because it would serve every service that moto has.
    """
    with MAKING:
        backend = _backend(environ[wsgi.SERVICE])
    answer: Iterable[bytes] = backend(environ, start)
    return answer


@functools.cache
def _backend(service: Any) -> wsgi.Wsgi:
    # The environment variable for this has no effect here: moto reads it when it is imported.
    werkzeug_app.DISABLE_GLOBAL_CORS = True  # type: ignore[attr-defined]
    if service == "pricing":
        return _serve_prices
    if service == "cloudformation":
        # Not before: moto then imports the models of all its services.
        from clusterctl.lab.ec2 import cloudformation

        completion.install(cloudformation)
    return werkzeug_app.create_backend_app("cloudwatch" if service == "monitoring" else service)


def _serve_prices(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """Answer a request to the price list, in the region that the request is signed for."""
    signed = SIGNED_FOR.search(environ.get("HTTP_AUTHORIZATION", ""))
    action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
    if permits(environ[gate.IN_ENVIRON], f"pricing:{action}"):
        request = json.loads(wsgi.read_body(environ) or b"{}")
        status, answer = pricing.respond(signed[1] if signed else "", action, request)
    else:
        text = f"You are not authorized to perform: pricing:{action}"
        status, answer = pricing.refusal("AccessDeniedException", text)
    start(status, [("Content-Type", "application/x-amz-json-1.1")])
    return [json.dumps(answer).encode()]


def _instances() -> list[dict[str, Any]]:
    return [
        {
            "instance_id": one.id,
            "account": one.owner_id,
            "region": one.region_name,
            "state": one.state,
            "instance_type": one.instance_type,
            "private_ip": one.private_ip_address,
            "key_name": one.key_name,
            "boots": one.boots,
            "ssh": one.reachable,
            "problem": one.user_data_problem,
            "name": one.name,
        }
        for one in instances.all_lab_instances()
    ]
