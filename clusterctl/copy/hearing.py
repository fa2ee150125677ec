"""What relays say, taken into the state of the copy. Nothing that they send is believed blindly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterctl.copy.judge import Judge
from clusterctl.copy.member import SOURCE, Member, number, read_gap, text
from clusterctl.copy.relinks import Net
from clusterctl.copy.report import NodeStage, SourceSummary


class Hearing:
    """Takes events. `summary` and `manifest` are there from when the source has listed its data."""

    def __init__(self, net: Net, judge: Judge) -> None:
        self._net, self._judge = net, judge
        self.summary: SourceSummary | None = None
        self.manifest: Mapping[str, Any] = {}
        self.first_complete_at: float | None = None
        self._known = {
            "listening": self._listening,
            "manifest": self._has_manifest,
            "gap": self._has_gap,
            "progress": self._progress,
            "lost": self._lost,
            "done": self._done,
        }

    def take(self, now: float, member: Member, event: Mapping[str, Any]) -> None:
        """Take one event; what makes no sense is ignored."""
        member.heard_at = now
        take = self._known.get(text(event, "event"))
        if take:
            take(now, member, event)

    def _listening(self, now: float, member: Member, event: Mapping[str, Any]) -> None:
        if member.stage is NodeStage.CONNECTING and 0 < number(event, "port") < 65536:
            member.stage = NodeStage.COMPARING
            member.address, member.port = text(event, "address"), number(event, "port")
            member.client_address = text(event, "client_address")

    def _has_manifest(self, now: float, member: Member, event: Mapping[str, Any]) -> None:
        if member.name == SOURCE and self.summary is None:
            self.manifest = event
            member.warn(event.get("warnings"))
            files, size = number(event, "files"), number(event, "bytes")
            self.summary = SourceSummary(files, size, 0, tuple(member.warnings))

    def _has_gap(self, now: float, member: Member, event: Mapping[str, Any]) -> None:
        if member.gap is not None or not member.joined or member.name == SOURCE:
            return
        member.gap = read_gap(event)
        member.stage = NodeStage.COPYING
        member.blocks = min(number(event, "present_blocks"), self._net.blocks)
        member.grew_at = now
        if member.late:
            # The others went on without it.
            member.late, member.young = False, True
            self._net.to_tail(member)
        self._see_complete(now, member)

    def _progress(self, now: float, member: Member, event: Mapping[str, Any]) -> None:
        member.beats = True
        member.progressed(now, event, self._net.blocks)
        self._see_complete(now, member)

    def _see_complete(self, now: float, member: Member) -> None:
        if member.name != SOURCE and self._net.complete(member):
            member.ended_at = member.ended_at or now
            crossed = member.bytes > 0 and not self._net.beside_source(member)
            if crossed and self.first_complete_at is None:
                self.first_complete_at = now

    def _lost(self, now: float, member: Member, event: Mapping[str, Any]) -> None:
        upstream = text(event, "upstream")
        if upstream and upstream == member.upstream:
            self._judge.lost(member, now, upstream, text(event, "why") or text(event, "kind"))

    def _done(self, now: float, member: Member, event: Mapping[str, Any]) -> None:
        if member.name != SOURCE and member.joined and member.done is None:
            member.done = event
            member.warn(event.get("warnings"))
            member.stage = NodeStage.DONE
            self._see_complete(now, member)
            member.ended_at = now
