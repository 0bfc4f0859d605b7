"""What a run cost and how much of its hardware it used: MFU, HFU, tokens/s, $ and joules a token, goodput.

What is not known stays None with its reason: a chip without a known or measured peak has no MFU, a run without a price
costs nothing that could be said. Nothing is filled in from another chip.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from elasmo.measure.booking import Booking, book
from elasmo.measure.run_log import Device, RunLog

NO_PEAK = "no peak is known for this device and dtype; set train.meter.peak_tflops"
NO_PRICE = "set train.meter.usd_per_device_hour"
NO_JOULES = "no energy counter was readable; set train.meter.watts_per_device for an estimate"
NO_FLOPS = "the log has no FLOPs"


@dataclass(frozen=True)
class Figure:
    """A number, or why there is none.

    Attributes:
        value: None for unknown.
        source: how it is known (measured, configured, a table), or why it is not.
    """

    value: float | None
    source: str = ""


@dataclass(frozen=True)
class Metering:
    """A run's figures. Tokens are the decoder's, of steps that counted, each once.

    Attributes:
        mfu: model FLOPs of the steps that counted, over their rank-seconds times a device's peak.
        hfu: the same with what was recomputed.
        tokens_per_s: over the whole wall clock, failures and start-up included.
        usd_per_mtoken, joules_per_token: of the whole run, likewise.
        goodput: share of the wall clock on steps that counted, as `RunLog.goodput` has it.
        booking: where its rank-seconds went; see `split`.
    """

    tokens: int = 0
    mfu: Figure = Figure(None, NO_FLOPS)
    hfu: Figure = Figure(None, NO_FLOPS)
    tokens_per_s: float = 0.0
    usd: Figure = Figure(None, NO_PRICE)
    usd_per_mtoken: Figure = Figure(None, NO_PRICE)
    joules: Figure = Figure(None, NO_JOULES)
    joules_per_token: Figure = Figure(None, NO_JOULES)
    goodput: float = 0.0
    booking: Booking = field(default_factory=Booking)

    def split(self, whole: Figure) -> dict[str, float]:
        """What each kind of rank-seconds cost of `usd` or `joules`, in proportion; empty where that is unknown."""
        if whole.value is None:
            return {}
        return {kind: whole.value * self.booking.share(kind) for kind in self.booking.seconds}

    def lines(self) -> list[tuple[str, str]]:
        """(name, figure in words) of each, unknown ones with their reason."""
        return [
            ("MFU", _percent(self.mfu)),
            ("HFU", _percent(self.hfu)),
            ("tokens/s, whole run", f"{self.tokens_per_s:,.0f}"),
            ("goodput", f"{100 * self.goodput:.1f} % of the wall clock"),
            ("$ per million tokens", _told(self.usd_per_mtoken, "{:,.4g}")),
            ("joules per token", _told(self.joules_per_token, "{:,.3g}")),
        ]

    def as_dict(self) -> dict[str, Any]:
        """For machines; unknown figures are null, with their reason beside them."""
        named = ("mfu", "hfu", "usd", "usd_per_mtoken", "joules", "joules_per_token")
        found: dict[str, Any] = {"tokens": self.tokens, "tokens_per_s": self.tokens_per_s}
        for name in named:
            figure: Figure = getattr(self, name)
            found[name] = {"value": figure.value, "source": figure.source}
        return {
            **found,
            "goodput": self.goodput,
            "rank_seconds": dict(self.booking.seconds),
            "usd_by_kind": self.split(self.usd),
            "joules_by_kind": self.split(self.joules),
            "wall_s": self.booking.wall_s,
        }


def meter(log: RunLog) -> Metering:
    """The figures of a run, from its log alone."""
    booking = book(log)
    tokens = sum(step.tokens for step in log.steps)
    if not tokens or not booking.wall_s:
        return Metering(booking=booking)
    device = log.device or Device()
    rank_seconds = sum(step.seconds.get("step", 0.0) * step.world for step in log.steps)
    usd = _usd(device, booking)
    joules = _joules(log, device, booking)
    return Metering(
        tokens=tokens,
        mfu=_utilisation(sum(step.flops for step in log.steps), device, rank_seconds),
        hfu=_utilisation(sum(step.hardware_flops for step in log.steps), device, rank_seconds),
        tokens_per_s=tokens / booking.wall_s,
        usd=usd,
        usd_per_mtoken=_per(usd, tokens / 1e6),
        joules=joules,
        joules_per_token=_per(joules, tokens),
        goodput=log.goodput.fraction,
        booking=booking,
    )


def _utilisation(flops: float, device: Device, rank_seconds: float) -> Figure:
    if not flops or not rank_seconds:
        return Figure(None, NO_FLOPS)
    if not device.peak_flops:
        return Figure(None, NO_PEAK)
    peak = f"peak {device.peak_flops / 1e12:,.3g} TFLOP/s, {device.peak_source}"
    return Figure(flops / rank_seconds / device.peak_flops, peak)


def _usd(device: Device, booking: Booking) -> Figure:
    price = device.usd_per_device_hour
    if price is None:
        return Figure(None, NO_PRICE)
    return Figure(booking.total / 3600 * price, f"{price:g} $ a device-hour, configured")


def _joules(log: RunLog, device: Device, booking: Booking) -> Figure:
    # Counters are read at the end of each step, and each reading is of all the time since the one before.
    steps = sorted((*log.steps, *log.redone), key=lambda step: step.time)
    counted = [(before, step) for before, step in pairwise(steps) if step.joules]
    seconds = sum((step.time - before.time) * step.world for before, step in counted)
    if seconds:
        # What no reading covers, such as a start or a recovery, is added at the mean power of a rank.
        scaled = sum(step.joules for _, step in counted) * booking.total / seconds
        covered = f"measured over {min(1.0, seconds / booking.total):.0%} of the time, scaled to all of it"
        return Figure(scaled, f"{device.energy_source or 'counter'}, {covered}")
    watts = device.watts_per_device
    if watts is None:
        return Figure(None, NO_JOULES)
    return Figure(booking.total * watts, f"estimated from {watts:g} W a device, configured")


def _per(whole: Figure, count: float) -> Figure:
    return whole if whole.value is None else Figure(whole.value / count, whole.source)


def _told(figure: Figure, shape: str) -> str:
    return f"unknown: {figure.source}" if figure.value is None else f"{shape.format(figure.value)} ({figure.source})"


def _percent(figure: Figure) -> str:
    return _told(Figure(None if figure.value is None else 100 * figure.value, figure.source), "{:.1f} %")
