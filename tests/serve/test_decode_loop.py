"""The decode thread: sequences join and leave between steps, wait for pages in turn, and fail without ending it."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence

import pytest

from elasmo.config import EngineConfig
from elasmo.engine.contract import StepOutput
from elasmo.engine.sampling import SamplingParams
from elasmo.engine.torch_engine import TorchEngine
from elasmo.model.batch import Encoded
from elasmo.model.sample import Message, Text
from elasmo.serve.decode_loop import Admit, DecodeLoop, Event, Failed
from tests.serve.tiny import tiny_model
from tests.serve.endpoint import LIMITS

PARAMS = SamplingParams(max_tokens=12, temperature=1.0, seed=3)


class Replica:
    """A loop over a real engine, and what it delivered."""

    def __init__(self, blocks: int = 64) -> None:
        model, processor = tiny_model()
        self.engine = TorchEngine(model, "processor", "model", EngineConfig(block_size=4, blocks=blocks))
        self.prompt = processor.encode_chat([Message("user", (Text("what digit is this?"),))], LIMITS, True)
        self._events: queue.Queue[Event] = queue.Queue()
        self.loop = DecodeLoop(self.engine, self._deliver)

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            self._events.put(event)

    def admit(self, request_id: str, params: SamplingParams = PARAMS, replay: tuple[int, ...] = ()) -> None:
        self.loop.admit(Admit(request_id, self.engine_payload(self.prompt, params), params, replay))

    def engine_payload(self, prompt: Encoded, params: SamplingParams):  # type: ignore[no-untyped-def]
        model, _ = tiny_model()
        return TorchEngine(model, "processor", "model", EngineConfig()).prefill(prompt, params)

    def finished(self, count: int) -> dict[str, list[StepOutput | Failed]]:
        """Events by request until `count` requests ended."""
        told: dict[str, list[StepOutput | Failed]] = {}
        while count:
            event = self._events.get(timeout=20)
            told.setdefault(event.request_id, []).append(event)
            count -= isinstance(event, Failed) or event.finish is not None
        return told


def tokens(events: Sequence[StepOutput | Failed]) -> list[int]:
    assert all(isinstance(event, StepOutput) for event in events), events
    return [event.token for event in events if isinstance(event, StepOutput)]


@pytest.fixture
def replica() -> Iterator[Replica]:
    replica = Replica()
    yield replica
    replica.loop.close()


def test_a_sequence_gets_what_it_gets_alone(replica: Replica) -> None:
    alone = replica.engine.generate(replica.prompt, PARAMS)
    for name in ("a", "b", "c"):
        replica.admit(name)
    told = replica.finished(3)
    assert [tokens(told[name]) for name in ("a", "b", "c")] == [alone] * 3


def test_replayed_tokens_are_not_told_again(replica: Replica) -> None:
    replica.admit("first")
    whole = tokens(replica.finished(1)["first"])
    replica.admit("second", replay=tuple(whole[:5]))
    rest = replica.finished(1)["second"]
    assert tokens(rest) == whole[5:]
    assert isinstance(rest[0], StepOutput) and rest[0].index == 5


def test_a_sequence_without_room_waits_for_another_to_end() -> None:
    prompt_tokens = len(Replica().prompt.tokens)
    needed = -(-(prompt_tokens + PARAMS.max_tokens) // 4)
    replica = Replica(blocks=needed + 2)  # room for one sequence, not for two
    for name in ("a", "b", "c"):
        replica.admit(name)
    told = replica.finished(3)
    assert tokens(told["a"]) == tokens(told["b"]) == tokens(told["c"])
    replica.loop.close()


def test_a_sequence_that_can_never_fit_is_refused(replica: Replica) -> None:
    small = Replica(blocks=2)
    small.admit("a")
    (event,) = small.finished(1)["a"]
    assert isinstance(event, Failed) and event.problem.kind == "refused"
    small.loop.close()


def test_an_aborted_sequence_frees_its_pages(replica: Replica) -> None:
    long = SamplingParams(max_tokens=200, temperature=1.0, seed=1)
    replica.admit("gone", long)
    replica.admit("stays")
    replica.loop.abort("gone")
    replica.loop.abort("never was")
    assert tokens(replica.finished(1)["stays"])
    replica.loop.close()
    stats = replica.engine.stats()
    assert (stats.running, stats.free_blocks) == (0, stats.total_blocks)


def test_a_failing_step_fails_its_sequences_and_the_thread_lives(replica: Replica) -> None:
    step = replica.engine.step

    def broken() -> list[StepOutput]:
        raise RuntimeError("out of memory")

    replica.engine.step = broken  # type: ignore[method-assign]
    replica.admit("a")
    (event,) = replica.finished(1)["a"]
    assert isinstance(event, Failed)
    assert event.problem.kind == "replica failed" and "out of memory" in event.problem.message
    assert replica.loop.failed_steps == 1
    replica.engine.step = step  # type: ignore[method-assign]
    replica.admit("b")
    assert tokens(replica.finished(1)["b"])
    assert replica.loop.failed_steps == 0
