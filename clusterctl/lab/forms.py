"""Checks requests against the services' descriptions (botocore's) before moto reads them.

moto fails with an exception of Python's for a parameter that is missing or malformed. AWS answers
with an error code, and an error of AWS's own (500) is never the answer to a client's mistake.
"""

from __future__ import annotations

import functools
import gzip
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

from botocore.validate import ParamValidator
from moto.backends import get_backend
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.utils import camelcase_to_underscores, get_service_model

from clusterctl.lab.data import table
from clusterctl.lab.ec2.refusals import IDS, texts_in
from clusterctl.lab.faults.answers import Call
from clusterctl.lab.record import ACCOUNTS
from clusterctl.lab.wsgi import read_body

# What requests are signed for -> the service's name in botocore.
NAMES = {"monitoring": "cloudwatch", "servicequotas": "service-quotas"}
# The services that have no regions.
GLOBAL = ("iam", "sts")
# Of these kinds are: an unknown action, a parameter that is missing, one that is wrong, one that no
# action has, a request that cannot be read, and one that the lab cannot carry out.
ACTION, MISSING, WRONG, UNKNOWN, UNREAD, BEYOND = range(6)
RULES = table("forms")
# Protocol -> the codes of these kinds. Only EC2 refuses a parameter that it does not know.
CODES: dict[str, list[str]] = RULES["codes"]
# What every form of the query protocols has.
COMMON = {"Action", "Version", "AWSAccessKeyId", "SecurityToken", "DryRun"}
# Of an object's name, in bytes.
LONGEST_KEY = 1024
TOKENS = ("NextToken", "Marker")

Problem = tuple[str, str]


def problem_of(call: Call, environ: dict[str, Any]) -> Problem | None:
    """Return the code and the message of the first mistake in a request's form, or None."""
    if call.service == "s3":
        return _problem_of_s3(environ)
    model = get_service_model(NAMES.get(call.service, call.service))
    codes = CODES[_protocol(call)]
    if call.action not in model.operation_names or not _is_served(call):
        return _no_action(call)
    shape: Any = model.operation_model(call.action).input_shape
    if shape is None:
        return None
    try:
        values = values_of(call, environ)
        given = values if call.json else _parsed(model, call, values)
    except (ValueError, TypeError, AttributeError, OverflowError) as unread:
        return codes[UNREAD], f"A parameter is not of the type that {call.action} takes: {unread}"
    return next(_mistakes(call, shape, values, given), None)


def _problem_of_s3(environ: dict[str, Any]) -> Problem | None:
    query = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    for name, (pattern, *problem) in RULES["queries"].items():
        if name in query and not re.fullmatch(pattern, query[name]):
            return problem[0], problem[1]
    if len(environ["PATH_INFO"].lstrip("/").partition("/")[2]) > LONGEST_KEY:
        return "KeyTooLongError", "Your key is too long"
    # moto gives the whole object for a part, and copies whatever the conditions.
    of_part = environ["REQUEST_METHOD"] == "GET" and "partNumber" in query
    if of_part or any(name.startswith("HTTP_X_AMZ_COPY_SOURCE_IF_") for name in environ):
        return "NotImplemented", ""
    return None


def beyond(call: Call, failure: Exception, environ: dict[str, Any]) -> tuple[Problem, bool]:
    """Return the answer to a request at which moto failed, and whether moto itself is to blame."""
    codes = CODES[_protocol(call)]
    if isinstance(failure, NotImplementedError):
        filter_, lacking, _ = str(failure).partition(" has not been implemented")
        text = f"The lab does not have this: {filter_:.200}"
        return (codes[BEYOND], text) if lacking else _no_action(call), False
    if isinstance(failure, (KeyError, ValueError)):
        # Python names the value that it did not find or could not convert.
        for name, value in _texts(values_of(call, environ)):
            if repr(value) in str(failure):
                return _unknown_value(call, name, value), False
    text = f"{type(failure).__name__}: {failure}"
    return (codes[BEYOND], f"The lab cannot carry out this {call.action}: {text:.200}"), True


def _no_action(call: Call) -> Problem:
    text = f"The action {call.action:.80} is not valid for this web service, as the lab has it."
    return CODES[_protocol(call)][ACTION], text


def _unknown_value(call: Call, name: str, value: str) -> Problem:
    last = name.rstrip(".0123456789").rpartition(".")[2].removesuffix("s")
    if last in TOKENS and call.service in ("ec2", "ssm"):
        return "InvalidNextToken", "The specified nextToken is invalid"
    if last in RULES["not_found"]:
        return RULES["not_found"][last], f"The {last} '{value:.80}' does not exist"
    return CODES[_protocol(call)][WRONG], f"Value ({value:.80}) for parameter {name} is invalid."


def _protocol(call: Call) -> str:
    if call.service in ("ec2", "s3"):
        return call.service
    return "json" if call.json else "query"


def _is_served(call: Call) -> bool:
    if re.fullmatch(RULES["not_here"].get(call.service, "(?!)"), call.action):
        return False
    service = "cloudwatch" if call.service == "monitoring" else call.service
    return service == "pricing" or camelcase_to_underscores(call.action) in _served(service)


@functools.cache
def _served(service: str) -> frozenset[str]:
    """Return moto's names of the actions of a service."""
    find: Any = get_backend
    regions = find(service)[ACCOUNTS[0]]
    backend = regions["aws" if service in GLOBAL else "us-east-1"]
    owners = {getattr(handler, "__self__", None) for handler in backend.flask_paths.values()}
    return frozenset(
        name for one in owners if one for name, _ in inspect.getmembers(one, inspect.isfunction)
    )


def values_of(call: Call, environ: dict[str, Any]) -> dict[str, Any]:
    """Return a request's parameters, as they came. Raise ValueError or TypeError."""
    # The body of a request to S3 is no form, and moto may have read it already.
    body = b"" if call.service == "s3" else read_body(environ) or b""
    if environ.get("HTTP_CONTENT_ENCODING") == "gzip":  # as clients send many metrics
        body = gzip.decompress(body)
    if call.json:
        given = json.loads(body or b"{}")
        if not isinstance(given, dict):
            raise TypeError("the request is no JSON object")
        return given
    query, form = environ.get("QUERY_STRING", ""), body.decode(errors="replace")
    pairs = [one for text in (query, form) for one in parse_qsl(text, keep_blank_values=True)]
    return {name: value for name, value in pairs if not name.startswith("X-Amz-")}


def _texts(values: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts among a request's values, with their paths."""
    if isinstance(values, str) and values:
        yield path, values
    named = dict(enumerate(values)) if isinstance(values, list) else values
    for name, value in named.items() if isinstance(named, dict) else ():
        yield from _texts(value, f"{path}.{name}".lstrip("."))


def _parsed(model: Any, call: Call, values: dict[str, Any]) -> Any:
    parser = PROTOCOL_PARSERS[_protocol(call)](model.operation_model(call.action))
    return parser.parse({"values": values})  # type: ignore[typeddict-item]


def _mistakes(call: Call, shape: Any, values: dict[str, Any], given: Any) -> Iterator[Problem]:
    codes = CODES[_protocol(call)]
    if call.service == "ec2":
        known = set(COMMON)
        for name, one in shape.members.items():
            names = one.serialization
            located = str(names.get("queryName") or names.get("name") or name)
            known.add(located[0].upper() + located[1:])
        for name in values:
            if name.partition(".")[0] not in known:
                yield codes[UNKNOWN], f"The parameter {name:.80} is not recognized"
    for name, (pattern, *problem) in RULES["texts"].get(call.action, {}).items():
        value = functools.reduce(lambda part, key: (part or {}).get(key), name.split("."), given)
        if value is not None and not re.fullmatch(pattern, str(value), re.ASCII):
            yield problem[0], problem[1].format(value)
    for reason, name, more in ParamValidator().validate(given, shape)._errors:
        if reason == "missing required field":
            path = f"{name}.{more['required_name']}".lstrip(".")
            yield codes[MISSING], f"The request must contain the parameter {path}"
        elif reason != "unknown field":
            what = "Length" if reason == "invalid length" else "Value"
            where = f"({more.get('param', '')!s:.80}) for parameter {name.lstrip('.')}"
            yield _wrong(call), f"{what} {where} is invalid."
    if beyond := [name for name in RULES["beyond"].get(call.action, ()) if name in given]:
        yield codes[BEYOND], f"The lab does not have the parameter {beyond[0]} of {call.action}"
    choices = RULES["one_of"].get(call.action, ())
    if choices and not any(name in given for name in choices):
        yield codes[MISSING], f"The request must contain the parameter {' or '.join(choices)}"
    for name, of, text in texts_in(shape, given):
        if call.service == "ec2" and of.name in IDS:
            prefix, code = IDS[of.name]
            if not re.fullmatch(f"{prefix}-[0-9a-f]{{8,17}}|resolve:ssm:.*", text):
                yield code, f'Invalid id: "{text:.80}" (expecting "{prefix}-...")'
        elif not _is_of(of, text):
            yield _wrong(call), f"Value ({text:.80}) for parameter {name} is invalid."
    if call.service == "ec2":
        yield from _selections(call, shape, given)


def _wrong(call: Call) -> str:
    return RULES["wrong"].get(call.service, CODES[_protocol(call)][WRONG])


def _is_of(shape: Any, text: str) -> bool:
    """Return whether a text is one of the values of its shape, which botocore does not check.

    The lab has types of instances that botocore's list has not.
    """
    if shape.enum and shape.name != "InstanceType":
        return text in shape.enum
    try:
        return bool(re.fullmatch(shape.metadata.get("pattern", ".*"), text, re.DOTALL))
    except re.error:  # a pattern of Java's
        return True


def _selections(call: Call, shape: Any, given: Any) -> Iterator[Problem]:
    """Yield what is wrong with a description's filters and the size of its pages.

    botocore knows the names of filters from its texts only, and so what excludes what.
    """
    key = "Filters" if "Filters" in shape.members else "Filter"
    known = re.findall("<code>([a-zA-Z0-9.-]+)", _text_of(shape, key))
    for one in given.get(key, ()) if known else ():
        name = one.get("Name", "")
        # EC2 also takes the older form: Ansible's is `isDefault`.
        newer = re.sub("(?=[A-Z])", "-", name).lower()
        if not {name, newer} & set(known) and not name.startswith("tag:"):
            yield "InvalidParameterValue", f"The filter '{name:.80}' is invalid"
    if "MaxResults" not in given:
        return
    limits = shape.members["MaxResults"].metadata
    least, most = RULES["results"].get(
        call.action, (limits.get("min", 1), limits.get("max", 2**31))
    )
    if not least <= given["MaxResults"] <= most:
        text = f"Value ( {given['MaxResults']} ) for parameter maxResults is invalid."
        text = f"{text} Expecting a value between {least} and {most}."
        yield "InvalidParameterValue", text
    if "cannot specify this parameter and" in _text_of(shape, "MaxResults"):
        for name, member in shape.members.items():
            if name in given and member.type_name == "list" and member.member.name in IDS:
                text = f"The parameter {name} cannot be used with the parameter maxResults"
                yield "InvalidParameterCombination", text


def _text_of(shape: Any, name: str) -> str:
    return str(shape.members[name].documentation) if name in shape.members else ""
