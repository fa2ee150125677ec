"""moto's instances, with states that follow those of real hosts.

In moto an instance reaches its final state at once. Also as on EC2, a new instance is hidden for a
moment, the states in one answer are all from one moment, and the console shows, after a delay, what
the host itself printed.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import threading
import time
from datetime import datetime
from typing import Any, ClassVar

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError, InvalidInstanceIdError
from moto.ec2.models import EC2Backend
from moto.ec2.models import instances as moto_instances
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import Instance, InstanceState, StateReason
from moto.ec2.responses import EC2Response

from clusterctl.domain.errors import LabError
from clusterctl.lab.data import table
from clusterctl.lab.ec2 import descriptions, late, refusals
from clusterctl.lab.ec2.completion import LAB, around, override, setup
from clusterctl.lab.ec2.launch import all_instances, refuse
from clusterctl.lab.ec2.run_instances import ClientTokens
from clusterctl.lab.faults.hosts import Cut
from clusterctl.lab.faults.kinds import Boot, ImpairedVolumes
from clusterctl.lab.faults.store import FAULTS
from clusterctl.lab.hosts import userdata
from clusterctl.lab.hosts.reconcile import HostStatus, WantedInstance

# EC2's number for each state.
CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48}
CODES |= {"stopping": 64, "stopped": 80}
GONE = ("shutting-down", "terminated")

DEATHS: dict[str, str] = table("answers")["deaths"]
BOARDS: dict[str, str] = table("types")["boards"]
LOOKS = ("DescribeInstances", "DescribeInstanceStatus")
# Parameters that can hold instance ids.
NAMES = ("InstanceId", "InstanceIds", "Resources", "ResourceId")
# The actions that change nothing begin with one of these.
READS = ("Describe", "Get")
# Tags of clusterctl's nodes.
FIRST_INDEX, CLUSTER = "clusterctl:first-index", "clusterctl:cluster"
INDEX = "clusterctl:index"


class LabInstance(Instance):
    """An instance with a host.

    Requests set a transitional state such as `stopping`. The supervisor sets the state that follows
    when the host has reached it.
    """

    # Held while a state is read and replaced.
    transition: ClassVar[threading.RLock] = threading.RLock()
    # Set to wake the supervisor at once.
    changed: ClassVar[threading.Event] = threading.Event()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.admitted = False
        self.launched_at = self.booted_at = 0.0
        self.was_shown = False
        self.boot_fault: Boot | None = None
        self.reboot_wanted = False
        self.reachable = False
        self.boots = 0
        pair = self.ec2_backend.key_pairs.get(self.key_name)
        words = [*pair.public_key.split()[:2], str(self.key_name)] if pair else []
        self.public_key = " ".join(words) + "\n" if pair else ""
        self.hibernation_options = self.hibernation_options or {"Configured": False}
        # With groups given for the interface, moto's instance has none. EC2 shows them there too.
        self.security_groups = self.security_groups or list(self.nics[0].group_set)
        self._state = InstanceState("pending", 0)

    @property
    def _state(self) -> InstanceState:
        """The state as the read of this thread shows it: a Lag may show an earlier one."""
        then: dict[str, InstanceState] = late.shown("states") or {}
        state = then.get(self.id, self.true_state)
        if self._is_terminated and state.name not in GONE:
            # Its interfaces are gone, so it is not shown as one that has them.
            return InstanceState("shutting-down", CODES["shutting-down"])
        return state

    @_state.setter
    def _state(self, state: InstanceState) -> None:
        self.true_state = state

    @property
    def _is_terminated(self) -> bool:
        return str(self.true_state.name) == "terminated"

    @property
    def dies_on_shutdown(self) -> bool:
        """Whether a power-off inside the host terminates the instance instead of stopping it."""
        # A one-time spot instance cannot be stopped, not even from inside.
        once = getattr(self, "spot_kind", None) == "one-time"
        return once or str(self.instance_initiated_shutdown_behavior) == "terminate"

    @property
    def decoded_user_data(self) -> userdata.UserData:
        return userdata.decode(base64.b64decode(str(self.user_data)) if self.user_data else b"")

    @property
    def user_data_problem(self) -> str:
        """What the lab cannot run of the user data; empty if it can run everything.

        Also empty once its user has terminated the instance.
        """
        if self.state in GONE and self.state_reason.code == "Client.UserInitiatedShutdown":
            return ""
        try:
            return self.decoded_user_data.problem
        except LabError as failure:
            return failure.message

    @property
    def wanted(self) -> WantedInstance:
        """The instance as `reconcile.decide` takes it."""
        fault = self.boot_fault
        due = self.booted_at + (fault.slow_s if fault else 0)
        return WantedInstance(
            self.state,
            self.reboot_wanted,
            self.dies_on_shutdown,
            held=time.monotonic() < due,
            doomed=bool(fault and fault.dies),
        )

    # What filters read (instances.toml), and what DescribeInstanceStatus shows under these names.
    instance_id = property(lambda self: str(self.id))
    interfaces = property(lambda self: list(self.nics.values()))
    disks = property(lambda self: [disk for _, disk in self.get_block_device_mapping])
    block_device_mapping_names = property(
        lambda self: [device for device, _ in self.get_block_device_mapping]
    )
    interface_groups = property(
        lambda self: [group for nic in self.interfaces for group in nic.group_set]
    )
    # EC2 checks reachability with ARP requests. The kernel answers them, so a host whose processes
    # are frozen passes.
    instance_status = property(
        lambda self: _status(self.state, self.reachable, FAULTS.since(Cut, self.id))
    )
    attached_ebs_status = property(
        lambda self: _status(self.state, self.reachable, FAULTS.since(ImpairedVolumes, self.id))
    )

    # EC2 shows it of the instance and of its interface.
    @property
    def source_dest_check(self) -> bool:
        return all(nic.source_dest_check for nic in self.nics.values())

    @source_dest_check.setter
    def source_dest_check(self, value: bool) -> None:
        for nic in vars(self).get("nics", {}).values():
            nic.source_dest_check = value

    system_status = property(lambda self: _status(self.state, self.reachable))
    private_ip = property(lambda self: self.private_ip_address)

    @property
    def reservation_id(self) -> str:
        reservations = list(self.ec2_backend.reservations.values())
        return next((one.id for one in reservations if self in one.instances), "")

    @property
    def visible(self) -> bool:
        """Whether descriptions show the instance already."""
        if time.monotonic() >= self.launched_at + FAULTS.visibility_s:
            # What was shown once stays so, unless reads come out of order.
            self.was_shown = True
        return self.admitted and (self.was_shown or late.in_time())

    @property
    def silent(self) -> bool:
        """Whether a fault keeps the host from starting sshd."""
        return bool(self.boot_fault and self.boot_fault.silent)

    @property
    def node_index(self) -> int:
        tagged = self.ec2_backend.tags.get(self.id, {})
        if tagged.get(INDEX, "").isdecimal():
            return int(tagged[INDEX])
        first = tagged.get(FIRST_INDEX, "")
        return int(self.ami_launch_index) + (int(first) if first.isdecimal() else 0)

    @property
    def name(self) -> str:
        """The node's name, such as `demo-1`; the tag `Name` of an instance that is no node."""
        tagged = self.ec2_backend.tags.get(self.id, {})
        is_node = CLUSTER in tagged and FIRST_INDEX in tagged
        return f"{tagged[CLUSTER]}-{self.node_index}" if is_node else str(tagged.get("Name", ""))

    @property
    def is_stable(self) -> bool:
        """Whether nothing is under way on the host: no reboot, and no boot without sshd yet."""
        return not self.reboot_wanted and (self.reachable or self.state != "running")

    @property
    def private_ip_address(self) -> str | None:
        """A terminated instance has None, since another one may have its address already."""
        return None if self._is_terminated else super().private_ip_address

    @property
    def private_dns_name(self) -> str:
        return super().private_dns_name if self.private_ip_address else ""

    @property
    def network_interfaces(self) -> list[Any]:
        return [] if self._is_terminated else super().network_interfaces

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events that are scheduled for it, as DescribeInstanceStatus shows them."""
        return [
            {
                "Code": code,
                "Description": "The instance is running on degraded hardware",
                "InstanceEventId": f"instance-event-{self.id[2:]}",
                "NotBefore": begins,
            }
            for code, begins in FAULTS.events(self.id)
        ]

    def admit(self) -> None:
        """Let a launched and tagged instance have a host, and become visible after a moment."""
        with self.transition:
            self.launched_at = self.booted_at = time.monotonic()
            self.boot_fault = FAULTS.take_boot(self.node_index)
            self.admitted = True

    def start(self) -> InstanceState:
        with self.transition:
            before = self._admit("started", "stopped", "pending", "running")
            if before.name == "stopped":
                self.launch_time = utcnow()
                self._enter("pending")
                self.state_reason, self._reason = StateReason(), ""
                self.booted_at = time.monotonic()
                again = FAULTS.take_boot(self.node_index, first=False)
                # A silent host stays silent: its init was replaced when it was created.
                self.boot_fault = again or (self.boot_fault if self.silent else None)
        self.changed.set()
        return before

    def stop(self) -> InstanceState:
        with self.transition:
            before = self._admit("stopped", "running", "stopping", "stopped")
            if before.name == "running":
                self._enter("stopping")
                self._user_initiated()
        self.changed.set()
        return before

    def terminate(self) -> InstanceState:
        with self.transition:
            before = copy.copy(self._state)
            if before.name not in GONE:
                self._enter("shutting-down")
                self._user_initiated()
        self.changed.set()
        return before

    def reboot(self) -> None:
        with self.transition:
            self._admit("rebooted", "running")
            self.reboot_wanted = True
            self.reachable = False
        self.changed.set()

    def seen(self, host: HostStatus | None, boots: int) -> None:
        """Take over what the daemon reports of the host; None if there is none."""
        self.boots = boots
        # EC2's status checks are about the machine and its network, so they pass without sshd.
        answers = bool(host and (host.ssh or (self.silent and host.state == "up")))
        self.reachable = answers and not self.reboot_wanted

    def enter(self, state: str, why: str) -> None:
        """Enter the state that the host has reached. `why` is the reason if the host is off."""
        late.remember(self.ec2_backend)
        if state == "terminated":
            # moto's terminate() would replace the reason by that of a user's request.
            reason, code = self._reason, self.state_reason
            super().terminate()  # frees the address, the volumes, the interfaces
            self._reason, self.state_reason = reason, code
            return
        if self.state == "pending" and self.boot_fault and self.boot_fault.dies:
            death = self.boot_fault.dies
            reason_text = DEATHS.get(death, f"{death}, set with clusterctl lab fault")
            self.state_reason, self._reason = StateReason(f"{death}: {reason_text}", death), death
        elif why == "poweroff":
            self.state_reason = StateReason(
                "Client.InstanceInitiatedShutdown: Instance initiated shutdown",
                "Client.InstanceInitiatedShutdown",
            )
        elif why.startswith("failed"):
            text = f"Server.InternalError: the lab could not boot the host: {why}; see lab.log, "
            text += "and start the lab again: clusterctl lab stop; clusterctl lab start"
            self.state_reason, self._reason = StateReason(text, "Server.InternalError"), text
        self._enter(state)

    def _enter(self, state: str) -> None:
        self._state = InstanceState(state, CODES[state])

    def _admit(self, done: str, *states: str) -> InstanceState:
        """Return the state before a request. Raise if EC2 takes it in other states only."""
        if self.state not in states:
            raise refuse("state", self.id, done)
        return copy.copy(self._state)

    def _user_initiated(self) -> None:
        self._reason = f"User initiated ({utcnow().strftime('%Y-%m-%d %H:%M:%S')} GMT)"
        self.state_reason = StateReason(
            "Client.UserInitiatedShutdown: User initiated shutdown", "Client.UserInitiatedShutdown"
        )


def simulated_hardware(instance_type: str) -> dict[str, Any]:
    """Return the fields of `daemon.boot.HostSpec` about NVIDIA's GPUs and the instance store."""
    info = INSTANCE_TYPES.get(instance_type, {})
    store = {"instance_store": bool(info.get("InstanceStorageInfo"))}
    found = info.get("GpuInfo", {}).get("Gpus", [])
    cards = [card for card in found if card.get("Manufacturer") == "NVIDIA"]
    if not cards or not cards[0].get("Count"):
        return store
    name, memory_mib = cards[0]["Name"], cards[0]["MemoryInfo"]["SizeInMiB"]
    board = BOARDS.get(f"{name} {memory_mib}", f"NVIDIA {name}")
    return {
        **store,
        "gpus": cards[0]["Count"],
        "gpu_name": f"{board} (simulated)",
        "gpu_memory_mib": memory_mib,
    }


def all_lab_instances() -> list[LabInstance]:
    return [one for one in all_instances() if isinstance(one, LabInstance)]


TOKENS = ClientTokens()


@setup
def _replace_instances() -> None:
    moto_instances.Instance = LabInstance  # type: ignore[misc]
    for field, value in descriptions.FIELDS.items():
        setattr(LabInstance, field, value)


@around(EC2Response)
def call_action(call: Any, response: Any) -> Any:
    """Refuse what moto accepts, show instances that are visible already, and keep tokens."""
    action, backend = response._get_action(), response.ec2_backend
    # moto reads the states once to filter and again to write the answer. Without the lock, a
    # request for instances that shut down could show one as terminated.
    lock = LabInstance.transition if action in LOOKS else contextlib.nullcontext()
    try:
        with late.reading(backend):
            values = [response.params.get(name) for name in NAMES]
            named = [id for one in values for id in (one if isinstance(one, list) else [one])]
            ids = [id for id in named if isinstance(id, str) and id.startswith("i-")]
            found = [backend.get_instance_by_id(id) for id in ids]
            hidden = [one.id for one in found if one and not one.visible]
            # Tags of a new instance are refused on AWS only now and then: here with a fault.
            hidden = hidden if action != "CreateTags" or FAULTS.hides else []
            if hidden:
                raise InvalidInstanceIdError(hidden)
            refusals.check(action, response.params, backend)
            if action.startswith(READS):
                with lock:
                    return call(response)
        late.remember(backend)
        # A launch's token is that of its instances, and checked where they are made.
        once = action != "RunInstances"
        return TOKENS.once(response, lambda: call(response)) if once else call(response)
    except EC2ClientError as refused:
        return response.serialized(ActionResult(refused))


@around(EC2Backend)
def describe_instances(describe: Any, backend: Any, filters: Any = None) -> list[Any]:
    found: list[Any] = describe(backend, filters)
    for reservation in found:
        reservation.instances = [one for one in reservation.instances if one.visible]
    return [reservation for reservation in found if reservation.instances]


@around(EC2Backend)
def describe_instance_status(
    describe: Any, backend: Any, instance_ids: list[str], include_all: bool, filters: Any
) -> list[Any]:
    found: list[Any] = describe(backend, instance_ids, include_all, None)
    wanted = {one["name"]: one["values"] for one in filters}
    visible = [one for one in found if one.visible]
    return [one for one in visible if descriptions.passes_filter_dict(one, wanted)]


@override(EC2Response)
def get_console_output(response: Any) -> ActionResult:
    instance = response.ec2_backend.get_instance(response._get_param("InstanceId"))
    late = time.monotonic() < instance.booted_at + FAULTS.console_delay_s
    text = "" if late else LAB.read_console(instance.id)
    shown = {"Output": base64.b64encode(text.encode()).decode()} if text else {}
    return ActionResult({"InstanceId": instance.id, "Timestamp": utcnow(), **shown})


def _status(state: str, reachable: bool, impaired_since: datetime | None = None) -> dict[str, Any]:
    """Return the result of a status check, as DescribeInstanceStatus shows it."""
    if state != "running":
        return {"Status": "not-applicable"}
    if impaired_since:
        failed = {"Name": "reachability", "Status": "failed", "ImpairedSince": impaired_since}
        return {"Details": [failed], "Status": "impaired"}
    word, check = ("ok", "passed") if reachable else ("initializing", "initializing")
    return {"Details": [{"Name": "reachability", "Status": check}], "Status": word}
