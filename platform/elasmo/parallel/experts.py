"""Expert parallelism: each rank of a group holds some experts; tokens travel to them and back by all-to-all."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from elasmo.model.moe import Experts, MoE
from elasmo.parallel.collectives import exchange_rows
from elasmo.parallel.mesh import Group
from elasmo.parallel.shards import Shard, cut


class ExpertExchange:
    """Sends every token to the rank of its expert, computes there, and brings the results back in order."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def run(self, experts: Experts, tokens: Tensor, counts: Tensor) -> Tensor:
        """[tokens, hidden] sorted by expert, `counts` int64 [all experts] -> [tokens, hidden] in the same order."""
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts.contiguous(), group=self.group.handle)
        sent = counts.view(self.group.size, -1).sum(dim=1).tolist()
        received = arriving.view(self.group.size, -1)  # [source rank, own expert]
        rows = received.sum(dim=1).tolist()
        here = exchange_rows(tokens, self.group, sent, rows)
        # They arrive by source rank, then expert; the experts want them by expert.
        own = torch.arange(received.shape[1], device=tokens.device).repeat(self.group.size)
        order = own.repeat_interleave(received.flatten()).argsort(stable=True)
        done = experts.compute(here[order], received.sum(dim=0))
        back = torch.zeros_like(done).index_copy(0, order, done)
        return exchange_rows(back, self.group, rows, sent)


def cut_experts(moe: MoE, prefix: str, shards: dict[str, Shard], group: Group) -> None:
    """Keeps this rank's experts and lets tokens travel to the others."""
    for name in ("gate_proj", "up_proj", "down_proj"):
        cut(moe.experts, name, shards, f"{prefix}experts.{name}", 0, group.size, group.rank)
    moe.experts.exchange = ExpertExchange(group)
