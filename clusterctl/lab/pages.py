"""Requests the pages of a running lab, `/_lab/...`, from outside its processes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from clusterctl.domain.errors import LabError, UsageError
from clusterctl.lab.record import LabRecord

TIMEOUT_S = 5.0


def ask(running: LabRecord, path: str, method: str = "GET", body: object = None) -> Any:
    """Return a page's JSON. Raise UsageError if the lab refuses, LabError if it does not answer."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(running.endpoint_url + path, content, method=method)
    request.add_header("Authorization", f"Bearer {running.secret}")
    # The lab is on this machine: ignore the proxies that the environment may name.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        try:
            refusal = json.load(refused)
            problem: LabError | UsageError = UsageError(refusal["error"], refusal["hint"])
        except (OSError, ValueError, KeyError, TypeError):  # it is no answer of the lab's
            problem = _no_answer(running, refused)
        raise problem from None
    except (OSError, ValueError) as failure:
        raise _no_answer(running, failure) from None


def _no_answer(running: LabRecord, failure: Exception) -> LabError:
    return LabError(
        f"the lab (process {running.pid}) does not answer: {failure}",
        "stop it with `clusterctl lab stop`",
    )
