"""What `up` has started to make, so that the next command waits until EC2 shows it.

EC2 is eventually consistent: for some seconds a description may lack a resource that was just made.
A command that does not wait would make a second one, or leave the first one behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from clusterctl.domain.files import write_file
from clusterctl.domain.timeouts import Polling, Timeouts
from clusterctl.node.record import RecordError, from_json, to_json

# boto3's methods that make what a cluster has one of, and what that is.
CREATIONS = {
    "import_key_pair": "key pair",
    "create_security_group": "security group",
    "create_placement_group": "placement group",
    "allocate_address": "elastic address",
    "create_role": "role",
    "create_instance_profile": "instance profile",
}

Found = TypeVar("Found")


@dataclass(frozen=True)
class Creations:
    """The record in `path` of when each of CREATIONS was sent. No file is an empty record.

    A record that cannot be read must not keep `down` from removing a cluster: then anything may
    have been sent just now, and nothing is proved. `notify` receives a line of progress about what
    is waited for.
    """

    path: Path
    timeouts: Timeouts = field(default_factory=Timeouts)
    notify: Callable[[str], None] = lambda text: None

    @property
    def started(self) -> frozenset[str]:
        """The operations that were sent and not refused."""
        return frozenset(self._sent() or ())

    def begin(self, operation: str) -> None:
        """Record, before an operation is sent, that it may have been carried out."""
        self._write({**(self._sent() or {}), operation: self.timeouts.clock.time()})

    def end(self, *operations: str) -> None:
        """Record that these operations were refused, or that what they made is gone."""
        sent = self._sent() or {}
        left = {one: at for one, at in sent.items() if one not in operations}
        if left != sent:
            self._write(left)

    def began(self, operation: str) -> bool:
        """Return whether an operation was sent and may have been carried out."""
        sent = self._sent()
        return sent is None or operation in sent

    def find(self, operation: str, poll: Callable[[], Sequence[Found]]) -> tuple[Found, ...]:
        """Return what `poll` finds, looking again while EC2 may not show what was started.

        Raises what `poll` raises.
        """
        clock, sent = self.timeouts.clock, self._sent()
        began = clock.time() if sent is None else sent.get(operation, 0.0)
        polling = Polling(clock, began + self.timeouts.shown_s - clock.time())
        is_first = True
        while not (found := tuple(poll())) and polling.left_s > 0:
            if is_first:
                self.notify(f"waiting for AWS to show the {CREATIONS[operation]}, if there is one")
            is_first = False
            polling.wait()
        return found

    def _sent(self) -> dict[str, float] | None:
        """Return the times by operation; None if the record cannot be read."""
        try:
            return from_json(dict[str, float], self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, RecordError):
            return None

    def _write(self, sent: dict[str, float]) -> None:
        if sent:
            write_file(self.path, to_json(sent) + "\n")
        else:
            self.path.unlink(missing_ok=True)
