"""A step decodes everyone, computes prompts within its budget, and always lets the oldest finish."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from elasmo.engine.scheduler import Budget, Chunk, Need, Plan, schedule

ROOM = Budget(prompt_tokens=8, batch=4, free_blocks=100, block_size=4)


def test_decoding_comes_first_and_prompts_share_the_budget() -> None:
    running = [Need("long", 30, 10, 8), Need("decodes", 9, 8, 3), Need("short", 5, 0, 2)]
    plan = schedule(running, [Need("new", 3, 0, 0)], ROOM)
    assert plan == Plan((), (), (Chunk("decodes", 8, 1), Chunk("long", 10, 8)))
    plan = schedule(running[1:], [Need("new", 6, 0, 0), Need("newer", 2, 0, 0)], ROOM)
    assert plan == Plan((), ("new",), (Chunk("decodes", 8, 1), Chunk("short", 0, 5), Chunk("new", 0, 3)))


def test_a_prompt_starts_behind_what_the_cache_holds_and_pays_for_the_rest() -> None:
    room = Budget(8, 4, free_blocks=2, block_size=4)
    waiting = [Need("new", 16, 8, blocks=2)]
    assert schedule([], waiting, room) == Plan((), ("new",), (Chunk("new", 8, 8),))
    assert schedule([], [Need("new", 17, 8, blocks=2)], room) == Plan()


def test_nobody_overtakes_in_the_queue() -> None:
    room = Budget(8, 4, free_blocks=2, block_size=4)
    assert schedule([], [Need("big", 12, 0, 0), Need("small", 1, 0, 0)], room) == Plan()
    full = Budget(8, 1, free_blocks=9, block_size=4)
    assert schedule([Need("a", 5, 4, 2)], [Need("b", 1, 0, 0)], full).admit == ()


def test_the_youngest_gives_up_its_pages_and_nobody_is_admitted_meanwhile() -> None:
    none_free = Budget(8, 4, free_blocks=0, block_size=4)
    running = [Need("old", 9, 8, 2, 2), Need("kept", 7, 6, 2, 2, preemptible=False), Need("young", 9, 8, 2, 1)]
    plan = schedule(running, [Need("new", 1, 0, 0)], none_free)
    assert plan == Plan(("young",), (), (Chunk("old", 8, 1), Chunk("kept", 6, 1)))
    alone = schedule([Need("kept", 8, 7, 4, 2, preemptible=False), Need("a", 9, 8, 2, 2)], [], none_free)
    assert alone == Plan(("a",), (), (Chunk("kept", 7, 1),))


@dataclass
class _Job:
    prompt: int
    answer: int
    known: int = 0
    computed: int = 0
    blocks: int = 0
    steps: list[int] = field(default_factory=list)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=8),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(8, 14),
)
def test_everyone_finishes_within_every_bound(
    jobs: list[tuple[int, int]], prompt_tokens: int, batch: int, blocks: int
) -> None:
    """Simulated with pages of 4 tokens, of which the longest job alone fills 8."""
    size = 4
    all_jobs = {str(number): _Job(prompt, answer, prompt) for number, (prompt, answer) in enumerate(jobs)}
    running: list[str] = []
    waiting = list(all_jobs)
    for _ in range(2000):
        if not running and not waiting:
            break
        free = blocks - sum(all_jobs[name].blocks for name in running)
        needs = [
            [Need(name, job.known, job.computed, job.blocks, job.blocks) for name in names for job in [all_jobs[name]]]
            for names in (running, waiting)
        ]
        plan = schedule(*needs, Budget(prompt_tokens, batch, free, size))
        for name in plan.preempt:
            running.remove(name)
            waiting.insert(0, name)
            all_jobs[name].computed = all_jobs[name].blocks = 0
        for name in plan.admit:
            waiting.remove(name)
            running.append(name)
            all_jobs[name].blocks = -(-all_jobs[name].known // size)
        decoding = [chunk for chunk in plan.chunks if all_jobs[chunk.request_id].known == chunk.start + 1]
        assert sum(chunk.tokens for chunk in plan.chunks) <= prompt_tokens + len(decoding) and len(running) <= batch
        assert plan.chunks or plan.preempt
        for chunk in plan.chunks:
            job = all_jobs[chunk.request_id]
            assert chunk.start == job.computed and chunk.tokens >= 1
            job.computed += chunk.tokens
            job.blocks = max(job.blocks, -(-job.computed // size))
            if job.computed == job.known:
                job.known += 1
                job.answer -= 1
                if job.answer == 0:
                    running.remove(chunk.request_id)
                    job.blocks = 0
        assert sum(all_jobs[name].blocks for name in running) <= blocks
    assert not running and not waiting
