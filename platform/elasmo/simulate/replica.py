"""One replica of a fleet, simulated: continuous batching with chunked prefill, a KV cache that fills up, preemption.

Time moves in segments: a step with prompts in it is one; decode steps in which nothing joins or leaves are one too,
since their time grows by the same amount each step. So the cost is a few operations a request, not one a token.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from elasmo.simulate.load import BLOCK_TOKENS, Request
from elasmo.simulate.prefix_cache import PrefixCache
from elasmo.simulate.step_clock import StepClock

Role = Literal["both", "prefill", "decode"]


@dataclass
class Job:
    """A request on its way through the fleet; times in seconds since the load began."""

    number: int
    request: Request
    to_compute: int
    done: int = 0
    generated: int = 0
    first_s: float = math.nan
    last_s: float = math.nan
    finish_s: float = math.nan
    cached: int = 0
    preempted: int = 0
    joined_at: int = 0

    @property
    def held(self) -> int:
        """Tokens whose keys and values it needs when it (re)starts."""
        return self.request.prompt_tokens + self.generated


@dataclass
class Segment:
    """Steps under way: `steps` of them, the first takes `first_s`, each next one `slope_s` more."""

    start_s: float
    first_s: float
    slope_s: float
    steps: int
    decode: int
    chunks: list[tuple[Job, int]] = field(default_factory=list)
    pairs: float = 0.0
    media: float = 0.0

    def spent(self, steps: int) -> float:
        """Seconds of the first `steps`."""
        return steps * self.first_s + self.slope_s * steps * (steps - 1) / 2

    @property
    def end_s(self) -> float:
        return self.start_s + self.spent(self.steps)


@dataclass
class Outcome:
    """What a segment's end brings: jobs that finished, whose prompt is done, and that lost their place."""

    finished: list[Job] = field(default_factory=list)
    prefilled: list[Job] = field(default_factory=list)
    preempted: list[Job] = field(default_factory=list)


class Replica:
    """A queue, a batch and a KV cache on one deployment."""

    def __init__(
        self, number: int, role: Role, clock: StepClock, capacity: int, max_sequences: int, born_s: float
    ) -> None:
        self.number, self.role, self.clock = number, role, clock
        self.capacity, self.max_sequences = capacity, max_sequences
        self.cache = PrefixCache()
        self.waiting: deque[Job] = deque()
        self.prefilling: list[Job] = []
        self._finishing: list[tuple[int, int, Job]] = []
        self._running: dict[int, Job] = {}
        self.counter = 0
        self.context = 0
        self.used = 0
        self.backlog = 0
        self.segment: Segment | None = None
        self.version = 0
        self.born_s, self.gone_s = born_s, math.nan
        self.draining = False
        self.busy_s = self.joules = 0.0
        self.itl: list[tuple[float, int]] = []
        self._new: list[Job] = []

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def idle(self) -> bool:
        return not (self.segment or self.waiting or self.prefilling or self._running)

    def load(self, blocks: tuple[int, ...], prompt: int, prefix: bool) -> float:
        """Tokens before a new prompt's end here: what waits, what decodes meanwhile, what it computes itself."""
        held = self.cache.held(blocks) * BLOCK_TOKENS if prefix and blocks else 0
        if self.role == "decode":
            return self.used + self.backlog
        return self.backlog + 32 * len(self._running) + max(prompt - held, 1)

    def enqueue(self, job: Job, now: float) -> bool:
        """Takes a job; whether the running segment was cut short, so that its end moved."""
        self.waiting.append(job)
        self.backlog += job.held if self.role == "decode" else job.to_compute
        return self._cut(now)

    def _cut(self, now: float) -> bool:
        segment = self.segment
        if segment is None or segment.steps == 1 or self.running + len(self.prefilling) >= self.max_sequences:
            return False
        passed = now - segment.start_s
        # The first step that ends at or after `now`: spent(n) >= passed, a quadratic.
        a, b = segment.slope_s / 2, segment.first_s - segment.slope_s / 2
        root = passed / b if a < 1e-15 else (-b + math.sqrt(b * b + 4 * a * max(passed, 0.0))) / (2 * a)
        steps = min(max(1, math.ceil(root - 1e-9)), segment.steps)
        if steps == segment.steps:
            return False
        segment.steps = steps
        self.version += 1
        return True

    def start(self, now: float) -> tuple[Segment | None, list[Job]]:
        """The next segment, None when there is nothing to do; and the jobs that lost their place for it."""
        lost = self._make_room()
        self._admit()
        if self.prefilling:
            self.segment = self._mixed(now)
        elif self._running:
            self.segment = self._decoding(now)
        else:
            self.segment = None
        self.version += 1
        return self.segment, lost

    def _admit(self) -> None:
        spare = max(self.running, self.capacity // 100)  # so that a newcomer is not the next to be preempted
        while self.waiting and self.running + len(self.prefilling) < self.max_sequences:
            job = self.waiting[0]
            alone = not (self._running or self.prefilling)
            if self.used + job.held + (0 if alone else spare) > self.capacity:
                return
            self.waiting.popleft()
            if self.role == "decode":
                self.backlog -= job.held
                self.used += job.held
                self._join(job)
                continue
            blocks = job.request.blocks
            held = min(self.cache.held(blocks) * BLOCK_TOKENS, job.held - 1) if blocks else 0
            self.backlog -= job.to_compute
            job.cached, job.done, job.to_compute = held, held, job.held - held
            self.backlog += job.to_compute
            self.used += job.held
            self.prefilling.append(job)

    def _join(self, job: Job) -> None:
        left = job.request.output_tokens - job.generated
        job.joined_at = self.counter
        self._running[job.number] = job
        heapq.heappush(self._finishing, (self.counter + left, job.number, job))
        self.context += job.held
        self._new.append(job)

    def _mixed(self, now: float) -> Segment:
        budget = max(1, self.clock.deployment.step_tokens - self.running)
        chunks, pairs, media = [], 0.0, 0.0
        for job in self.prefilling:
            take = min(job.to_compute, budget)
            if take <= 0:
                break
            chunks.append((job, take))
            media += job.request.media if job.done == job.cached else 0.0  # encoded before its first tokens
            pairs += take * (job.done + take / 2)
            budget -= take
        tokens = sum(take for _, take in chunks)
        time = self.clock.step(self.running, self.context, tokens, pairs, media)
        return Segment(now, time, 0.0, 1, self.running, chunks, pairs, media)

    def _decoding(self, now: float) -> Segment:
        batch = self.running
        steps = max(1, self._finishing[0][0] - self.counter)
        steps = min(steps, max(1, (self.capacity - self.used) // batch))
        first = self.clock.step(batch, self.context)
        slope = 0.0
        if steps > 1:
            last = self.clock.step(batch, self.context + batch * (steps - 1))
            slope = (last - first) / (steps - 1)
        return Segment(now, first, slope, steps, batch)

    def _make_room(self) -> list[Job]:
        """Preempts the youngest until every running sequence can add a token."""
        lost = []
        while self.running > 1 and self.used + self.running > self.capacity:
            job = max(self._running.values(), key=lambda each: (each.joined_at, each.number))
            self._leave(job)
            job.preempted += 1
            job.to_compute, job.done = job.held, 0
            lost.append(job)
            if self.role == "both":
                self.waiting.appendleft(job)
                self.backlog += job.to_compute
        return lost

    def _leave(self, job: Job) -> None:
        """Takes a running job's sequence out of the batch and the cache; its token count is brought up to date."""
        made = self.counter - job.joined_at
        job.generated += made
        self.context -= job.held
        self.used -= job.held
        del self._running[job.number]
        self._finishing = [entry for entry in self._finishing if entry[1] != job.number]
        heapq.heapify(self._finishing)

    def end(self, now: float) -> Outcome:
        """Closes the segment: counts its tokens, time and energy, and says who is done."""
        segment = self.segment
        assert segment is not None, "a replica's segment ends once"
        self.segment = None
        out = Outcome()
        steps, batch = segment.steps, segment.decode
        tokens = sum(take for _, take in segment.chunks)
        middle = self.context + batch * (steps - 1) / 2
        self.busy_s += now - segment.start_s
        self.joules += steps * self.clock.joules(batch, middle, tokens, segment.pairs, segment.media)
        if batch:
            self._count(segment, now)
            self.counter += steps
            self.context += batch * steps
            self.used += batch * steps
            while self._finishing and self._finishing[0][0] <= self.counter:
                job = heapq.heappop(self._finishing)[2]
                job.generated = job.request.output_tokens
                self.context -= job.held
                self.used -= job.held
                del self._running[job.number]
                job.finish_s = job.last_s = now
                out.finished.append(job)
        for job, take in segment.chunks:
            job.done += take
            job.to_compute -= take
            self.backlog -= take
        done = [job for job, _ in segment.chunks if job.to_compute == 0]
        if done:
            self.prefilling = [job for job in self.prefilling if job.to_compute > 0]
        for job in done:
            self._prefilled(job, now, out)
        if len(self.cache):
            self.cache.shrink((self.capacity - self.used) // BLOCK_TOKENS)
        return out

    def _prefilled(self, job: Job, now: float, out: Outcome) -> None:
        room = (self.capacity - self.used) // BLOCK_TOKENS
        self.cache.add(job.request.blocks[: job.request.prompt_tokens // BLOCK_TOKENS], room)
        self.used += 1  # the first token of it, or the next one after a preemption
        job.generated += 1
        if math.isnan(job.first_s):
            job.first_s = now
        else:
            self.itl.append((now - job.last_s, 1))
        job.last_s = now
        if job.generated >= job.request.output_tokens:
            self.used -= job.held
            job.finish_s = now
            out.finished.append(job)
        elif self.role == "both":
            self._join(job)
        else:
            self.used -= job.held
            out.prefilled.append(job)

    def _count(self, segment: Segment, now: float) -> None:
        """Inter-token latencies of a segment; those that just joined waited since their last token."""
        mean = (now - segment.start_s) / segment.steps
        self.itl.append((mean, segment.decode * segment.steps - len(self._new)))
        for job in self._new:
            self.itl.append((segment.start_s + segment.first_s - job.last_s, 1))
        self._new.clear()
