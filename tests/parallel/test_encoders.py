"""The shares of a slot's media, encoded apart, are the slot's media encoded together."""

from __future__ import annotations

import pytest
import torch

from elasmo.config import LimitsConfig
from elasmo.model.batch import pack
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.processor import Processor, TableField
from elasmo.model.sample import Audio, Image, Message, Table, Text
from elasmo.parallel.encoders import share_media
from tests.serve.tiny import CONFIG, png, tiny_model, wav

FIELDS = (TableField("note", "text"), TableField("age", "number"), TableField("seen", "time"))


@torch.no_grad()
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_shares_join_to_the_whole(parts: int) -> None:
    processor = Processor(tiny_model()[1].tokenizer, CONFIG, FIELDS)
    model = MultimodalDecoder(CONFIG, processor.vocab_size, FIELDS)
    model.init_weights(0)
    records = [{"note": "abc", "seen": "2024-03-01T10:00"}, {"age": 3.0}, {"note": "", "seen": "1999-12-31"}]
    segments = (*map(Table, records), Image(png()), Audio(wav(0.2)), Audio(wav(0.1)), Text("x"))
    batch = pack([processor.encode_chat([Message("user", segments)], LimitsConfig())] * 2)
    shares = [model.encode(share_media(batch, parts, part), every_tower=True) for part in range(parts)]
    whole = model.encode(batch)
    assert len(whole) == 3
    for token, values in whole.items():
        torch.testing.assert_close(torch.cat([share[token] for share in shares]), values, rtol=1e-5, atol=1e-5)
