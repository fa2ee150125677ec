"""Who may ask the lab: programs that hold one of its keys, for the services that it has.

Everybody on this machine, and every page in a browser, can reach the lab's ports.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

from botocore.auth import (
    HmacV1QueryAuth,
    S3SigV4Auth,
    S3SigV4QueryAuth,
    SigV4Auth,
)
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials
from moto.core.request import EnvironHeaders
from moto.iam.access_control import PermissionResult
from moto.s3.models import s3_backends

from clusterctl.lab.accounts import KEYS, Keyring, LentKey
from clusterctl.lab.faults.answers import Call, error_answer, send
from clusterctl.lab.record import AccessKey

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

# Which service the request's key was used for, as the API behind the gate finds it.
SERVICE = "clusterctl.service"
# And the id of that key, empty for none: a header, since moto hands on nothing else.
KEY_HEADER, IN_ENVIRON = "X-Clusterctl-Key", "HTTP_X_CLUSTERCTL_KEY"
PAGES = "/_lab/"
KINDS = ("ec2", "s3", "json", "query")
BODY_LIMIT = 2**20
DRAIN_S = 1.0
TIME = "%Y%m%dT%H%M%SZ"
# As on AWS.
MOST_SKEW = timedelta(minutes=15)
# What a request without a key may ask of a bucket or an object that is public.
PUBLIC_QUERY = {
    *("list-type", "prefix", "delimiter", "marker", "max-keys", "continuation-token"),
    *("start-after", "encoding-type", "fetch-owner", "partNumber"),
}


class Refusal(NamedTuple):
    """Why a request is not let in: the codes of EC2, S3, JSON services and others, and the text."""

    codes: tuple[str, str, str, str]
    message: str


class Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


NO_KEY = Refusal(
    (
        "AuthFailure",
        "AccessDenied",
        "MissingAuthenticationTokenException",
        "MissingAuthenticationToken",
    ),
    "Request is missing Authentication Token",
)
UNKNOWN_KEY = Refusal(
    (
        "AuthFailure",
        "InvalidAccessKeyId",
        "UnrecognizedClientException",
        "InvalidClientTokenId",
    ),
    "The lab has no such access key: `clusterctl lab env` tells those that it has",
)
WRONG_SIGNATURE = Refusal(
    (
        "AuthFailure",
        "SignatureDoesNotMatch",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
    ),
    "The request signature we calculated does not match the signature you provided. Check your "
    "AWS secret access key and signing method.",
)
EXPIRED = Refusal(
    ("RequestExpired", "AccessDenied", "InvalidSignatureException", "RequestExpired"),
    "Request has expired",
)
WRONG_TOKEN = Refusal(
    ("AuthFailure", "InvalidToken", "UnrecognizedClientException", "InvalidClientTokenId"),
    "The security token included in the request is invalid or has expired",
)
TOO_LARGE = Refusal(
    ("RequestEntityTooLarge",) * 4,
    f"The lab takes {BODY_LIMIT} bytes at most",
)


@dataclass(frozen=True)
class Claim:
    """What a request says of its signature.

    `when` is as it was sent. `lasts_s` is None where a header has the signature, not the URL.
    `headers` are the names of those that are signed; None in the older signature of S3's URLs.
    """

    key: str
    region: str
    service: str
    signature: str
    token: str
    when: str
    lasts_s: int | None = None
    headers: frozenset[str] | None = None


def with_gate(
    api: Wsgi,
    services: Collection[str],
    hosts: Collection[str],
    pages: tuple[Wsgi, str] | None = None,
    keys: Keyring = KEYS,
) -> Wsgi:
    """An API for requests to one of `hosts`, each signed with one of the lab's keys.

    `pages` are the lab's own, below /_lab/, with the secret that opens them.
    """

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        # A browser says where its page is from; a name that was made to point here is not ours.
        if "HTTP_ORIGIN" in environ or environ.get("HTTP_HOST", "").lower() not in hosts:
            start("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"The lab answers no web pages, and to its own address only.\n"]
        if pages and environ["PATH_INFO"].startswith(PAGES):
            return _ask_page(environ, start, *pages)
        try:
            account, service, key = _admit(environ, keys)
        except Refused as refused:
            return _refuse(environ, start, refused)
        if service not in services:
            said = error_answer(
                Call(service, "", json=not _is_form(environ)),
                "InvalidAction",
                f"The lab has no service {service!r:.40}: it has {', '.join(services)}",
            )
            return send(said, start)
        # moto believes the first header, what we added to it the second, whatever came in them.
        environ["HTTP_X_MOTO_ACCOUNT_ID"] = account
        environ[IN_ENVIRON] = key
        environ[SERVICE] = service
        return api(environ, start)

    return answer


def _ask_page(
    environ: dict[str, Any], start: Callable[..., Any], pages: Wsgi, secret: str
) -> Iterable[bytes]:
    given = environ.get("HTTP_AUTHORIZATION", "")
    if hmac.compare_digest(given.encode(), f"Bearer {secret}".encode()):
        return pages(environ, start)
    start("403 Forbidden", [("Content-Type", "application/json")])
    said = {"error": "the lab's own pages need its secret", "hint": "it is in lab.json"}
    return [json.dumps(said).encode()]


def _admit(environ: dict[str, Any], keys: Keyring) -> tuple[str, str, str]:
    """The account, the service that is asked, and the key's id. Raises Refused."""
    claim = read_claim(environ)
    if claim is None:
        return _owner_of_public(environ), "s3", ""
    key = keys.find(claim.key)
    if key is None:
        raise Refused(UNKNOWN_KEY)
    made = _signature(environ, claim, key)
    if not hmac.compare_digest(made.encode(), claim.signature.encode()):
        raise Refused(WRONG_SIGNATURE)
    if isinstance(key, LentKey):
        known = hmac.compare_digest(key.token.encode(), claim.token.encode())
        if not known or key.expires < datetime.now(timezone.utc):
            raise Refused(WRONG_TOKEN)
    _check_time(claim)
    return key.account, claim.service, key.id


def read_claim(environ: dict[str, Any]) -> Claim | None:
    """What the request says of its signature; None without one. Raises Refused for half of one."""
    header = environ.get("HTTP_AUTHORIZATION", "")
    query = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
    try:
        if header.startswith("AWS4-HMAC-SHA256 "):
            parts = header.partition(" ")[2].split(",")
            said = dict(part.strip().partition("=")[::2] for part in parts)
            key, _, region, service, _ = said["Credential"].split("/")
            return Claim(
                key,
                region,
                service,
                said["Signature"],
                environ.get("HTTP_X_AMZ_SECURITY_TOKEN", ""),
                environ["HTTP_X_AMZ_DATE"],
                headers=frozenset(said["SignedHeaders"].split(";")),
            )
        if header:
            raise Refused(NO_KEY)
        if "X-Amz-Signature" in query:
            key, _, region, service, _ = query["X-Amz-Credential"].split("/")
            return Claim(
                key,
                region,
                service,
                query["X-Amz-Signature"],
                query.get("X-Amz-Security-Token", ""),
                query["X-Amz-Date"],
                int(query["X-Amz-Expires"]),
                frozenset(query["X-Amz-SignedHeaders"].split(";")),
            )
        if "Signature" in query:
            token, expires = query.get("x-amz-security-token", ""), query["Expires"]
            key, signature = query["AWSAccessKeyId"], query["Signature"]
            return Claim(key, "", "s3", signature, token, expires, 0)
    except (KeyError, ValueError):
        raise Refused(WRONG_SIGNATURE) from None
    return None


def _signature(environ: dict[str, Any], claim: Claim, key: AccessKey) -> str:
    """What the signature has to be: botocore signs the request once more."""
    path, query = _canonical(environ)
    credentials = Credentials(key.id, key.secret)
    headers: Any = HTTPHeaders()
    for name, value in EnvironHeaders(environ):
        if claim.headers is None or name.lower() in claim.headers:
            headers[name] = value
    if claim.headers is None:
        older: Any = HmacV1QueryAuth(credentials)
        older._get_date = lambda: claim.when
        if claim.token:
            headers["x-amz-security-token"] = claim.token
        split = urlsplit(f"http://lab{path}?{query}")
        method = environ["REQUEST_METHOD"]
        return str(older.sign_string(older.canonical_string(method, split, headers)))
    auth: Any
    if claim.service != "s3":
        auth = SigV4Auth(credentials, claim.service, claim.region)
    elif claim.lasts_s is None:
        auth = S3SigV4Auth(credentials, claim.service, claim.region)
    else:
        auth = S3SigV4QueryAuth(credentials, claim.service, claim.region, claim.lasts_s)
    request = AWSRequest(
        method=environ["REQUEST_METHOD"],
        url=f"http://lab{path}?{query}",
        headers=headers,
        # S3's requests carry the hash of their body in a header.
        data=b"" if claim.service == "s3" else _read_body(environ),
    )
    request.context["timestamp"] = claim.when
    return str(
        auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    )


def _canonical(environ: dict[str, Any]) -> tuple[str, str]:
    """The path and the query as they are signed: each byte encoded in one way, no signature."""
    path, _, query = environ["REQUEST_URI"].partition("?")
    pairs = [pair.partition("=")[::2] for pair in query.split("&") if pair]
    encoded = [
        f"{_encode(name)}={_encode(value)}"
        for name, value in pairs
        if unquote(name) != "X-Amz-Signature"
    ]
    return _encode(path, "/"), "&".join(encoded)


def _encode(text: str, safe: str = "") -> str:
    # REQUEST_URI is made of bytes, as latin-1.
    return quote(unquote(text, "latin-1"), safe + "-_.~", "latin-1")


def _read_body(environ: dict[str, Any]) -> bytes:
    """The body, left there for the API to read again."""
    length = environ.get("CONTENT_LENGTH") or "0"
    if not length.isdigit() or int(length) > BODY_LIMIT:
        raise Refused(TOO_LARGE)
    body: bytes = environ["wsgi.input"].read(int(length))
    environ["wsgi.input"] = io.BytesIO(body)
    return body


def _check_time(claim: Claim) -> None:
    """A signature is good for some minutes, or as long as its URL says. Raises Refused."""
    if claim.headers is None:
        if not claim.when.isdigit() or int(claim.when) < time.time():
            raise Refused(EXPIRED)
        return
    now = datetime.now(timezone.utc)
    try:
        signed = datetime.strptime(claim.when, TIME).replace(tzinfo=timezone.utc)
    except ValueError:
        raise Refused(WRONG_SIGNATURE) from None
    lasts = MOST_SKEW if claim.lasts_s is None else timedelta(seconds=claim.lasts_s)
    if not signed - MOST_SKEW <= now <= signed + lasts:
        raise Refused(EXPIRED)


def _owner_of_public(environ: dict[str, Any]) -> str:
    """The account of the bucket that the request reads without a key. Raises Refused.

    Whether an object is public, moto knows itself; lists it gives to anybody.
    """
    name, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
    query = parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
    partition, account = s3_backends.bucket_accounts.get(name, ("", ""))
    if (
        not account
        or environ["REQUEST_METHOD"] not in ("GET", "HEAD")
        or query.keys() - PUBLIC_QUERY
    ):
        raise Refused(NO_KEY)
    if not key:
        bucket: Any = s3_backends[account][partition].buckets[name]
        allowed = bucket.get_permission("s3:ListBucket", bucket.arn)
        if not bucket.acl.public_read and allowed != PermissionResult.PERMITTED:
            raise Refused(NO_KEY)
    return account


def _refuse(
    environ: dict[str, Any], start: Callable[..., Any], refused: Refused
) -> Iterable[bytes]:
    """In the words of the service that was meant."""
    scope = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].split("/")
    is_json = "HTTP_X_AMZ_TARGET" in environ
    unsigned = "" if is_json else "ec2" if _is_form(environ) else "s3"
    service = scope[3] if len(scope) > 3 else unsigned
    kind = service if service in ("ec2", "s3") else "json" if is_json else "query"
    status = {"ec2": 401, "json": 400}.get(kind, 403)
    # What is still on its way would reset the connection, and the answer with it.
    environ["werkzeug.socket"].settimeout(DRAIN_S)
    length = environ.get("CONTENT_LENGTH") or "0"
    with contextlib.suppress(OSError):
        environ["wsgi.input"].read(min(int(length), BODY_LIMIT) if length.isdigit() else 0)
    code = refused.refusal.codes[KINDS.index(kind)]
    said = error_answer(Call(service, "", is_json), code, refused.refusal.message, status)
    return send(said, start)


def _is_form(environ: dict[str, Any]) -> bool:
    return str(environ.get("CONTENT_TYPE", "")).startswith("application/x-www-form-urlencoded")
