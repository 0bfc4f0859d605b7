"""Encoders have a layout of their own: data parallel over all ranks that compute a slot, whatever the decoder's cuts.

Each rank of the slot encodes its share of the slot's media and all ranks receive all embeddings. So a tower's work is
spread evenly over tensor, sequence and pipeline ranks, no stage waits for another's images, and every rank issues the
same collectives whether its slot has media or not.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

from elasmo.model.batch import Batch
from elasmo.model.multimodal import Media, MultimodalDecoder
from elasmo.parallel.collectives import gather_rows
from elasmo.parallel.mesh import Group
from elasmo.parallel.shards import share


def encode(model: MultimodalDecoder, batch: Batch, group: Group, counted: bool) -> Media:
    """Embeddings of all media of a batch, on every rank of `group`; each rank computed its share.

    Args:
        counted: whether this rank's gradients enter the sum; see `gather_rows`.
    """
    media = model.encode(share_media(batch, group.size, group.rank), every_tower=True)
    if group.size == 1 or not media:
        return media
    counts = torch.tensor([len(values) for values in media.values()], device=batch.tokens.device)
    all_counts = [torch.empty_like(counts) for _ in group.ranks]
    dist.all_gather(all_counts, counts, group=group.handle)
    by_medium = torch.stack(all_counts, dim=1).tolist()
    return {
        token: gather_rows(values, group, rows, counted)
        for (token, values), rows in zip(media.items(), by_medium, strict=True)
    }


def share_media(batch: Batch, parts: int, part: int) -> Batch:
    """The batch with one part of its images, clips and cells; parts differ by at most one of each."""
    images, clips, cells = (
        slice(*share(len(x), parts, part)) for x in (batch.images, batch.mel_lengths, batch.cell_fields)
    )
    own = (batch.cell_detail_of >= cells.start) & (batch.cell_detail_of < cells.stop)
    return replace(
        batch,
        images=batch.images[images],
        mel=batch.mel[clips],
        mel_lengths=batch.mel_lengths[clips],
        cell_fields=batch.cell_fields[cells],
        cell_values=batch.cell_values[cells],
        cell_categories=batch.cell_categories[cells],
        cell_details=batch.cell_details[own],
        cell_detail_of=batch.cell_detail_of[own] - cells.start,
    )
