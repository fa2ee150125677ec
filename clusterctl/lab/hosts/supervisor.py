"""Keeps one host for each instance, and the API's states in line with the hosts.

Step by step it compares instances with hosts, gives orders to the daemon, and sets the states of
instances.
"""

from __future__ import annotations

import base64
import logging
import os
import stat
from ipaddress import IPv4Network
from typing import Any

from clusterctl.domain.errors import LabError
from clusterctl.lab import addresses
from clusterctl.lab.ec2 import network, public_addresses
from clusterctl.lab.faults import interruptions
from clusterctl.lab.faults.hosts import Cut, Frozen
from clusterctl.lab.faults.store import FAULTS
from clusterctl.lab.hosts.daemon.network import hardware_address
from clusterctl.lab.hosts.instances import LabInstance, all_lab_instances, simulated_hardware
from clusterctl.lab.hosts.namespaces import Daemon
from clusterctl.lab.hosts.reconcile import Decision, HostStatus, decide
from clusterctl.lab.hosts.tracker import TRACKER
from clusterctl.lab.record import VOLUME_BYTES

log = logging.getLogger(__name__)

# The pause between two steps, while something is under way and while nothing is.
BUSY_S, IDLE_S = 0.05, 0.25
# Bytes: see `bound_log`.
LOG_MOST, LOG_KEPT = 4 * 2**20, 2**20
STABLE = ("running", "stopped", "terminated")


def bound_log(file: int) -> None:
    """Cut a log of more than LOG_MOST bytes to its last LOG_KEPT. It is open for appending.

    This is done in place, because the daemon writes to the same open file. What is written at the
    same time may be lost.
    """
    size = os.fstat(file).st_size
    if size <= LOG_MOST or not stat.S_ISREG(os.fstat(file).st_mode):
        return
    kept = os.pread(file, LOG_KEPT, size - LOG_KEPT)
    os.ftruncate(file, 0)
    os.write(file, kept.partition(b"\n")[2])


class Supervisor:
    """Runs in a thread of the API's process, and ends that process when the daemon is gone.

    `log_file` is the descriptor of a log whose size is to be bounded, None for none.
    """

    def __init__(
        self,
        daemon: Daemon,
        network: IPv4Network,
        volume_bytes: int = VOLUME_BYTES,
        log_file: int | None = None,
    ) -> None:
        self._daemon = daemon
        self._network = network
        self._volume_bytes = volume_bytes
        self._log_file = log_file

    def run(self) -> None:
        """Make steps until the daemon ends or fails, then end this process. Never return."""
        try:
            while self._daemon.alive():
                number = TRACKER.begin()
                busy = self._step()
                TRACKER.end(number)
                if self._log_file is not None:
                    bound_log(self._log_file)
                LabInstance.changed.wait(BUSY_S if busy else IDLE_S)
                LabInstance.changed.clear()
            log.error("the namespace daemon ended")
        except ConnectionError as gone:
            log.error("%s", gone)
        except Exception:
            log.exception("the supervisor failed")
        # Without the daemon or this thread the lab would be incomplete, so it ends as a whole.
        os._exit(1)

    def _step(self) -> bool:
        """Handle every instance once. Return whether something is still under way."""
        hosts = {view["id"]: view for view in self._daemon.call("list")}
        instances = [
            one for one in all_lab_instances() if one.admitted and one.state != "terminated"
        ]
        for instance in instances:
            try:
                self._attend(instance, hosts.get(instance.id))
            except ConnectionError:
                raise
            except Exception as failure:
                # An unexpected error with one instance must not end the lab and all others.
                self._give_up(instance, f"{type(failure).__name__}: {failure}")
        return any(one.state not in STABLE or not one.is_stable for one in instances)

    def _attend(self, instance: LabInstance, view: dict[str, Any] | None) -> None:
        """Make the next step for an instance. `view` is its host as the daemon lists it."""
        seen = HostStatus(view["state"], view["why"], view["ssh"]) if view else None
        interruptions.terminate_if_due(instance)
        if view:
            self._update_address(instance, view)
            self._apply_faults(instance, view)
        with LabInstance.transition:
            instance.seen(seen, view["boots"] if view else 0)
            decision = decide(instance.wanted, seen)
            if decision.state:
                if decision.state == "terminated":
                    public_addresses.forget(instance)
                instance.enter(decision.state, seen.why if seen else "")
                if decision.state == "terminated":
                    FAULTS.forget_host(instance.id)
                    TRACKER.note(instance.id, "")
                elif decision.state == "stopped":
                    # EC2 starts it again on another machine, with another network link.
                    FAULTS.forget_host(instance.id, Frozen, Cut)
                return
        if decision.order:
            self._carry_out(instance, decision)

    def _update_address(self, instance: LabInstance, view: dict[str, Any]) -> None:
        """Have the host's public address and its way to S3 follow the API."""
        with LabInstance.transition:
            public_addresses.update(instance)
            public = _reached_by(instance)
            reached = network.reaches_s3(instance)
        if reached != view["reaches_storage"]:
            self._daemon.call("set_storage", id=instance.id, reached=reached)
        if public != view["public_address"]:
            self._daemon.call("set_public", id=instance.id, address=public)

    def _apply_faults(self, instance: LabInstance, view: dict[str, Any]) -> None:
        """Have the host's faults follow those that are set, and note if that fails."""
        wanted = FAULTS.host_faults(instance.id)
        problem = ""
        if view["state"] == "up" and view["faults"] != wanted:
            try:
                self._daemon.call("apply_fault", id=instance.id, **wanted)
            except LabError as failure:
                problem = failure.message
        if TRACKER.note(instance.id, problem):
            log.error("%s: %s", instance.id, problem)

    def _carry_out(self, instance: LabInstance, decision: Decision) -> None:
        try:
            if decision.order == "create":
                public_addresses.update(instance)
                shape = FAULTS.host_faults(instance.id)["shape"]
                self._daemon.call("create", shape=shape, **self._spec(instance))
            elif decision.order == "start":
                self._daemon.call("boot", id=instance.id, new_console=True)
            else:
                instance.reboot_wanted = False
                self._daemon.call(decision.order, id=instance.id)
        except LabError as failure:
            self._give_up(instance, failure.message)

    def _give_up(self, instance: LabInstance, problem: str) -> None:
        """End an instance, with EC2's reason for a launch that fails on AWS's side."""
        if TRACKER.note(instance.id, problem):
            log.error("%s: %s", instance.id, problem, exc_info=True)
        with LabInstance.transition:
            if instance.state != "shutting-down":
                instance.enter("shutting-down", f"failed: {problem}")

    def _spec(self, instance: LabInstance) -> dict[str, Any]:
        """Return the fields of the host's `daemon.boot.HostSpec`."""
        address = instance.private_ip_address or ""
        data = instance.decoded_user_data
        instance.nics[0].mac_address = hardware_address(address)
        subnet: IPv4Network = instance.nics[0].subnet.cidr
        # Hosts in default VPCs see the lab's whole network as their subnet, others their own one.
        block = self._network if subnet.subnet_of(self._network) else subnet
        return {
            "id": instance.id,
            "hostname": "ip-" + address.replace(".", "-"),
            "domain": addresses.domain_name(instance.region_name),
            "address": address,
            "prefix_length": block.prefixlen,
            "gateway": str(block[1]),
            "public_address": _reached_by(instance),
            "reaches_storage": network.reaches_s3(instance),
            "public_key": instance.public_key,
            "user_files": [
                (path, base64.b64encode(content).decode()) for path, content in data.files
            ],
            "user_data_problem": data.problem,
            "silent": instance.silent,
            "volume_bytes": self._volume_bytes,
            **simulated_hardware(instance.instance_type),
        }


def _reached_by(instance: LabInstance) -> str:
    """Return the public address that leads to the instance; empty if none does."""
    return (instance.public_ip or "") if network.answers_publicly(instance) else ""
