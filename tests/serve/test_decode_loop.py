"""The decode thread: sequences join and leave between steps, wait for pages in turn, and fail without ending it."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence

import pytest

from elasmo.config import EngineConfig
from elasmo.engine.contract import StepOutput
from elasmo.engine.sampling import SamplingParams
from elasmo.engine.torch_engine import TorchEngine
from elasmo.model.sample import Message, Text
from elasmo.serve.decode_loop import Admit, DecodeLoop, Event, Failed, Run
from tests.serve.endpoint import LIMITS
from tests.serve.tiny import tiny_model

PARAMS = SamplingParams(max_tokens=12, temperature=1.0, seed=3)


class Replica:
    """A loop over a real engine, and what it delivered."""

    def __init__(self, blocks: int = 64) -> None:
        model, processor = tiny_model()
        self.engine = TorchEngine(model, "processor", "model", EngineConfig(block_size=4, blocks=blocks))
        self.prompt = processor.encode_chat([Message("user", (Text("what digit is this?"),))], LIMITS, True)
        # The loop's thread owns its engine; prompts run on another one, as in the prefill pool.
        self._prefill = TorchEngine(model, "processor", "model", EngineConfig(blocks=64))
        self._events: queue.Queue[Event] = queue.Queue()
        self.loop = DecodeLoop(self.engine, self._deliver)

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            self._events.put(event)

    def admit(self, request_id: str, params: SamplingParams = PARAMS, replay: tuple[int, ...] = ()) -> None:
        self.loop.admit(Admit(request_id, self._prefill.prefill(self.prompt, params), params, replay))

    def told(self, *request_ids: str) -> list[list[Event]]:
        """The events of each of these requests, once all of them have ended."""
        told: dict[str, list[Event]] = {request_id: [] for request_id in request_ids}
        open_ids = set(request_ids)
        while open_ids:
            event = self._events.get(timeout=20)
            told.setdefault(event.request_id, []).append(event)
            if isinstance(event, Failed) or event.finish is not None:
                open_ids.discard(event.request_id)
        return [told[request_id] for request_id in request_ids]


def tokens(events: Sequence[Event]) -> list[int]:
    assert all(isinstance(event, StepOutput) for event in events), events
    return [event.token for event in events if isinstance(event, StepOutput)]


@pytest.fixture
def replica() -> Iterator[Replica]:
    replica = Replica()
    yield replica
    replica.loop.close()


def test_a_sequence_gets_what_it_gets_alone(replica: Replica) -> None:
    alone = TorchEngine(tiny_model()[0], "processor", "model", EngineConfig()).generate(replica.prompt, PARAMS)
    for name in ("a", "b", "c"):
        replica.admit(name)
    assert [tokens(events) for events in replica.told("a", "b", "c")] == [alone] * 3


def test_replayed_tokens_are_not_told_again(replica: Replica) -> None:
    replica.admit("first")
    whole = tokens(*replica.told("first"))
    replica.admit("second", replay=tuple(whole[:5]))
    (rest,) = replica.told("second")
    assert tokens(rest) == whole[5:]
    assert isinstance(rest[0], StepOutput) and rest[0].index == 5


def test_a_sequence_without_room_waits_for_another_to_end() -> None:
    prompt_tokens = len(Replica().prompt.tokens)
    needed = -(-(prompt_tokens + PARAMS.max_tokens) // 4)
    replica = Replica(blocks=needed + 2)  # room for one sequence, not for two
    for name in ("a", "b", "c"):
        replica.admit(name)
    first, *others = (tokens(events) for events in replica.told("a", "b", "c"))
    assert others == [first, first]
    replica.loop.close()


def test_a_prompt_that_is_run_here_gets_what_handed_over_kv_gets(replica: Replica) -> None:
    replica.admit("handed over")
    (whole,) = replica.told("handed over")
    replica.loop.admit(Run("here", replica.prompt, PARAMS))
    replica.loop.admit(Run("resumed", replica.prompt, PARAMS, tuple(tokens(whole)[:5])))
    here, resumed = replica.told("here", "resumed")
    assert tokens(here) == tokens(whole) and tokens(resumed) == tokens(whole)[5:]


def test_prompts_do_not_go_past_kv_that_waits_for_its_pages() -> None:
    needed = -(-(len(Replica().prompt.tokens) + PARAMS.max_tokens) // 4)
    replica = Replica(blocks=needed + 2)
    replica.admit("first")
    replica.admit("waits")
    for number in range(5):
        replica.loop.admit(Run(f"later {number}", replica.prompt, PARAMS))
    names = ["first", "waits", *(f"later {number}" for number in range(5))]
    first, *others = (tokens(events) for events in replica.told(*names))
    assert others == [first] * 6
    replica.loop.close()


def test_a_prompt_that_can_never_fit_is_refused_too() -> None:
    small = Replica(blocks=2)
    small.loop.admit(Run("a", small.prompt, PARAMS))
    ((event,),) = small.told("a")
    assert isinstance(event, Failed) and event.problem.kind == "refused"
    small.loop.close()


def test_a_sequence_that_can_never_fit_is_refused(replica: Replica) -> None:
    small = Replica(blocks=2)
    small.admit("a")
    ((event,),) = small.told("a")
    assert isinstance(event, Failed) and event.problem.kind == "refused"
    small.loop.close()


def test_an_aborted_sequence_frees_its_pages(replica: Replica) -> None:
    long = SamplingParams(max_tokens=200, temperature=1.0, seed=1)
    replica.admit("gone", long)
    replica.admit("stays")
    replica.loop.abort("gone")
    replica.loop.abort("never was")
    assert tokens(*replica.told("stays"))
    replica.loop.close()
    stats = replica.engine.stats()
    assert (stats.running, stats.free_blocks) == (0, stats.total_blocks)


def test_kv_of_another_model_is_reported_as_lost(replica: Replica) -> None:
    other = TorchEngine(tiny_model()[0], "processor", "another", EngineConfig(blocks=64))
    replica.loop.admit(Admit("a", other.prefill(replica.prompt, PARAMS), PARAMS))
    ((event,),) = replica.told("a")
    assert isinstance(event, Failed)
    assert event.problem.kind == "kv lost" and "model_hash" in event.problem.message


def test_a_failing_step_fails_its_sequences_and_the_thread_lives(replica: Replica) -> None:
    step = replica.engine.step

    def broken() -> list[StepOutput]:
        raise RuntimeError("out of memory")

    replica.engine.step = broken  # type: ignore[method-assign]
    replica.admit("a")
    ((event,),) = replica.told("a")
    assert isinstance(event, Failed)
    assert event.problem.kind == "replica failed" and "out of memory" in event.problem.message
    assert replica.loop.failed_steps == 1
    replica.engine.step = step  # type: ignore[method-assign]
    replica.admit("b")
    assert tokens(*replica.told("b"))
    assert replica.loop.failed_steps == 0
