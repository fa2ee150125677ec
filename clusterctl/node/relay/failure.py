"""Why a relay gives up, as the client is told."""

from __future__ import annotations

import errno

from clusterctl.node.relay.manifest import BadManifest, text_of
from clusterctl.node.relay.scan import SourceError
from clusterctl.node.relay.staging import Busy

_KINDS = {
    errno.ENOSPC: ("space", "make room there, or choose another destination"),
    errno.EDQUOT: ("space", "the user's quota is used up: make room there"),
    errno.EROFS: ("read-only", "mount it writable, or choose another destination"),
    errno.EACCES: ("permission", "choose a folder that the user may write to"),
    errno.EPERM: ("permission", "choose a folder that the user may write to"),
    errno.ENOTDIR: ("usage", "a part of the path is no folder"),
    errno.EEXIST: ("usage", "something that is no folder is in the way: name another place"),
    errno.ENOENT: ("usage", "no folder can be made there: name another place"),
    errno.EIO: ("disk", "the disk may be failing: look at dmesg"),
}


class Failure(Exception):
    """`kind` as in a `failed` event; the message says what happened, `hint` what to do."""

    def __init__(self, kind: str, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.kind, self.hint = kind, hint


def failure_of(error: BaseException, place: str = "") -> Failure:
    """What an error means to the user; `place` is where it happened if the error does not say."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, Busy):
        hint = "wait for it to end, then run this again"
        return Failure("busy", f"another copy to this destination is running ({error})", hint)
    if isinstance(error, SourceError):
        return Failure("source", str(error))
    if isinstance(error, BadManifest):
        return Failure("bug", f"the manifest cannot be used: {error}")
    if isinstance(error, OSError) and error.errno is not None:
        kind, hint = _KINDS.get(error.errno, ("disk", ""))
        name = error.filename or place
        where = f"{text_of(name) if isinstance(name, bytes) else name}: " if name else ""
        return Failure(kind, f"{where}{error.strerror}", hint)
    return Failure("bug", f"{type(error).__name__}: {error}")
