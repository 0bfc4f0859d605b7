"""Times of collectives: a latency that grows with the group, and bytes over the slowest link they must cross.

A group has `local` members in each scale-up domain. What leaves a domain is spread over the network links of all its
members; what stays inside uses the scale-up fabric; both work at once, and the slower one counts (hierarchical rings,
as in NCCL). Volumes are those of bandwidth-optimal algorithms (Thakur et al. 2005).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from elasmo.simulate.calibration import Calibration
from elasmo.simulate.cluster import Group
from elasmo.simulate.fabric import TORI


@dataclass(frozen=True)
class Span:
    """Ranks that communicate: `size` of them, `stride` apart in rank order."""

    size: int
    stride: int = 1


@dataclass(frozen=True)
class Links:
    """Collectives of a group of equal accelerators, in seconds."""

    group: Group
    calibration: Calibration

    def local(self, span: Span) -> int:
        """Members of a span in one scale-up domain."""
        return max(1, min(span.size, self.group.up.domain // max(1, span.stride)))

    def all_gather(self, span: Span, result: float) -> float:
        """Every rank has a part and ends with `result` bytes; a reduce-scatter of as much takes the same."""
        if span.size <= 1 or result <= 0:
            return 0.0
        local = self.local(span)
        domains = span.size / local
        outside = result / local * (domains - 1) / domains / self._out if domains > 1 else 0.0
        inside = result * (local - 1) / local / self._up(span) if local > 1 else 0.0
        return max(inside, outside) + self._latency(span)

    def all_reduce(self, span: Span, size: float) -> float:
        """Every rank ends with the sum of `size` bytes."""
        if span.size <= 1 or size <= 0:
            return 0.0
        return 2 * self.all_gather(span, size) - self._latency(span)

    def all_to_all(self, span: Span, sent: float, copies: int = 1) -> float:
        """Every rank sends `sent` bytes in equal parts to all.

        Args:
            copies: of one row that go to that many ranks at random, as tokens go to experts: a row crosses the network
                once for each domain and is copied there.
        """
        if span.size <= 1 or sent <= 0:
            return 0.0
        local = self.local(span)
        domains = span.size / local
        inside = sent * (local - 1) / local / self._up(span) if local > 1 else 0.0
        outside = 0.0
        if domains > 1:
            reached = domains * (1 - (1 - 1 / domains) ** copies) * (domains - 1) / domains
            outside = sent / copies * reached / self._out
        return max(inside, outside) + self._latency(span)

    def send(self, size: float, stride: int) -> float:
        """From a rank to the one `stride` further."""
        inside = stride < self.group.up.domain
        rate = self._up(Span(2, stride)) if inside else self._out
        return size / rate + (self.group.up if inside else self.group.out).latency_s

    @property
    def _out(self) -> float:
        out = self.group.out
        return out.bandwidth / out.oversubscription * self.calibration.of("network", self.group.chip.generation)

    def _up(self, span: Span) -> float:
        up = self.group.up
        return up.ring_bandwidth(self.local(span)) * self.calibration.of("scaleup", self.group.chip.generation)

    def _latency(self, span: Span) -> float:
        up, out = self.group.up, self.group.out
        local = self.local(span)
        share = self.calibration.of("latency", self.group.chip.generation)
        inside = (
            sum(up.slice_shape(local)) / 2 * up.latency_s if up.kind in TORI else up.latency_s * math.log2(2 * local)
        )
        outside = out.latency_s * math.log2(2 * span.size / local) if span.size > local else 0.0
        return share * (inside + outside)
