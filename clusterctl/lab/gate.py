"""Authentication: only requests that are signed with one of the lab's keys reach its services.

Every user of this machine, and every web page in a browser on it, can connect to the lab's ports.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from botocore.auth import HmacV1QueryAuth, S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials
from moto.core.request import EnvironHeaders
from moto.iam.access_control import PermissionResult
from moto.s3.models import s3_backends

from clusterctl.lab.accounts import KEYS, TemporaryKey
from clusterctl.lab.data import table
from clusterctl.lab.faults.answers import Call, error_answer, send
from clusterctl.lab.record import AccessKey
from clusterctl.lab.wsgi import BODY_LIMIT, SERVICE, Wsgi, is_form, read_body, send_json

# The id of the key that signed the request, empty for none. It is passed on as a header, because
# moto's handlers get nothing else from the WSGI environment.
KEY_HEADER, IN_ENVIRON = "X-Clusterctl-Key", "HTTP_X_CLUSTERCTL_KEY"
PAGES = "/_lab/"
# The protocols, in the order of the codes in gate.toml.
KINDS = ("ec2", "s3", "json", "query")
# How long to wait for the rest of a request that is refused.
DRAIN_S = 1.0
# The format of X-Amz-Date.
TIME = "%Y%m%dT%H%M%SZ"
# How far a signature's time may be from this machine's, as on AWS.
MOST_SKEW = timedelta(minutes=15)
# The query parameters with which a public bucket or object can be read without a key.
PUBLIC_QUERY = {
    *("list-type", "prefix", "delimiter", "marker", "max-keys", "continuation-token"),
    *("start-after", "encoding-type", "fetch-owner", "partNumber"),
}


class Refused(Exception):
    """A request is refused, for a reason of gate.toml."""


NO_KEY, UNKNOWN_KEY, WRONG_SIGNATURE, EXPIRED, WRONG_TOKEN, WRONG_HOST, TOO_LARGE = table("gate")

BODY_HASH = "X-Amz-Content-SHA256"


@dataclass(frozen=True)
class Claim:
    """A request's signature, and what the request says about it.

    `when` is the time of the signature as text (`TIME`). `lasts_s` is how long a signed URL is
    valid, None for a signature in a header. `headers` are the names of the signed headers. They are
    None for S3's older URL signature (version 2), whose `when` is the end of its validity in
    seconds since the epoch.
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
) -> Wsgi:
    """Return `api` behind a check: a request must be for one of `hosts` and signed with a key.

    `pages` are the lab's own pages, below /_lab/, and the secret that a request for them needs.
    """

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        # Browsers send `Origin` with a page's requests to other sites. A `Host` that is not the
        # lab's own is a site's name that was made to resolve to this machine (DNS rebinding).
        if "HTTP_ORIGIN" in environ or environ.get("HTTP_HOST", "").lower() not in hosts:
            return _refuse(environ, start, Refused(WRONG_HOST))
        if pages and environ["PATH_INFO"].startswith(PAGES):
            return _ask_page(environ, start, *pages)
        try:
            account, service, key = _admit(environ)
        except Refused as refused:
            return _refuse(environ, start, refused)
        if service not in services:
            refusal = error_answer(
                Call(service, "", json=not is_form(environ)),
                "InvalidAction",
                f"The lab has no service {service!r:.40}: it has {', '.join(services)}",
            )
            return send(refusal, start)
        # moto trusts the first header and the lab the second: replace what the request had there.
        environ["HTTP_X_MOTO_ACCOUNT_ID"] = account
        environ[IN_ENVIRON] = key
        environ[SERVICE] = service
        return api(environ, start)

    return answer


def _ask_page(
    environ: dict[str, Any], start: Callable[..., Any], pages: Wsgi, secret: str
) -> Iterable[bytes]:
    """Answer a request for one of the lab's own pages, if it has the secret."""
    given = environ.get("HTTP_AUTHORIZATION", "")
    if hmac.compare_digest(given.encode(), f"Bearer {secret}".encode()):
        return pages(environ, start)
    refusal = {"error": "the lab's own pages need its secret", "hint": "it is in lab.json"}
    return send_json(start, "403 Forbidden", refusal)


def _admit(environ: dict[str, Any]) -> tuple[str, str, str]:
    """Return the account, the service and the key's id (empty without a key). Raise Refused."""
    claim = read_claim(environ)
    if claim is None:
        return _owner_of_public(environ), "s3", ""
    key = KEYS.find(claim.key)
    if key is None:
        raise Refused(UNKNOWN_KEY)
    made = _signature(environ, claim, key)
    if not hmac.compare_digest(made.encode(), claim.signature.encode()):
        raise Refused(WRONG_SIGNATURE)
    if isinstance(key, TemporaryKey):
        known = hmac.compare_digest(key.token.encode(), claim.token.encode())
        if not known or key.expires < datetime.now(timezone.utc):
            raise Refused(WRONG_TOKEN)
    _check_time(claim)
    return key.account, claim.service, key.id


def read_claim(environ: dict[str, Any]) -> Claim | None:
    """Return a request's signature; None if it has none. Raise Refused if it is incomplete.

    It is in a header or in the URL (version 4), or in the URL of an S3 request (version 2).
    """
    header = environ.get("HTTP_AUTHORIZATION", "")
    query = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
    try:
        if header.startswith("AWS4-HMAC-SHA256 "):
            parts = header.partition(" ")[2].split(",")
            fields = dict(part.strip().partition("=")[::2] for part in parts)
            fields["Security-Token"] = environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "")
            fields["Date"] = environ["HTTP_X_AMZ_DATE"]
        elif header:
            raise Refused(NO_KEY)
        else:
            fields = {name.removeprefix("X-Amz-"): value for name, value in query.items()}
        if header or "X-Amz-Signature" in query:
            key, _, region, service, _ = fields["Credential"].split("/")
            return Claim(
                key,
                region,
                service,
                fields["Signature"],
                fields.get("Security-Token", ""),
                fields["Date"],
                None if header else int(fields["Expires"]),
                frozenset(fields["SignedHeaders"].split(";")),
            )
        if "Signature" in query:
            token, expires = query.get("x-amz-security-token", ""), query["Expires"]
            key, signature = query["AWSAccessKeyId"], query["Signature"]
            return Claim(key, "", "s3", signature, token, expires, 0)
    except (KeyError, ValueError):
        raise Refused(WRONG_SIGNATURE) from None
    return None


def _signature(environ: dict[str, Any], claim: Claim, key: AccessKey) -> str:
    """Return the signature that the request should have. botocore signs the request again."""
    path, query = _canonical(environ)
    credentials = Credentials(key.id, key.secret)
    headers: Any = HTTPHeaders()
    for name, value in EnvironHeaders(environ):
        if claim.headers is None or name.lower() in claim.headers:
            headers[name] = value
    if claim.headers is None:
        older: Any = HmacV1QueryAuth(credentials)
        # In a signed URL the end of its validity takes the place of the date. botocore would
        # compute a new one.
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
    # S3's requests have their body's hash in a header, so the body need not be read for this.
    body = b"" if claim.service == "s3" else read_body(environ)
    if body is None:
        raise Refused(TOO_LARGE)
    # botocore signs the hash in this header in place of the body's.
    digest = headers.get(BODY_HASH)
    if claim.service != "s3" and digest not in (None, hashlib.sha256(body).hexdigest()):
        raise Refused(WRONG_SIGNATURE)
    url = f"http://lab{path}?{query}"
    request = AWSRequest(environ["REQUEST_METHOD"], url, headers, body)
    request.context["timestamp"] = claim.when
    return str(
        auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    )


def _canonical(environ: dict[str, Any]) -> tuple[str, str]:
    """Return path and query as they were signed: encoded in one way, and without the signature."""
    path, _, query = environ["REQUEST_URI"].partition("?")
    pairs = [pair.partition("=")[::2] for pair in query.split("&") if pair]
    encoded = [
        f"{_encode(name)}={_encode(value)}"
        for name, value in pairs
        if unquote(name) != "X-Amz-Signature"
    ]
    return _encode(path, "/"), "&".join(encoded)


def _encode(text: str, safe: str = "") -> str:
    # REQUEST_URI holds the bytes of the request as latin-1 characters.
    return quote(unquote(text, "latin-1"), safe + "-_.~", "latin-1")


def _check_time(claim: Claim) -> None:
    """Raise Refused if the signature has expired: after MOST_SKEW, or when its URL says so."""
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
    """Return the account of the public bucket that a request without a key reads. Raise Refused.

    moto itself checks whether an object is public, but lists every bucket to anybody. So that is
    checked here.
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
    """Answer with an error in the protocol of the service that the request seems to be for."""
    scope = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].split("/")
    is_json = "HTTP_X_AMZ_TARGET" in environ
    unsigned = "" if is_json else "ec2" if is_form(environ) else "s3"
    service = scope[3] if len(scope) > 3 else unsigned
    kind = service if service in ("ec2", "s3") else "json" if is_json else "query"
    [reason] = refused.args
    statuses = {} if reason == WRONG_HOST else {"ec2": 401, "json": 400}
    status = statuses.get(kind, 403)
    # Read the rest of the request: the kernel resets a connection that is closed with unread data,
    # and the client may then lose the answer.
    environ["werkzeug.socket"].settimeout(DRAIN_S)
    length = environ.get("CONTENT_LENGTH") or "0"
    with contextlib.suppress(OSError):
        environ["wsgi.input"].read(min(int(length), BODY_LIMIT) if length.isdecimal() else 0)
    code, text = table("gate")[reason]["codes"][KINDS.index(kind)], table("gate")[reason]["message"]
    response = error_answer(Call(service, "", is_json), code, text, status)
    return send(response, start)
