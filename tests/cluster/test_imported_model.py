"""A model of transformers, with its own tokenizer: imported, tuned by LoRA on Ray, served, and given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from elasmo.config import ConfigError, EngineConfig, LimitsConfig, ServeConfig, load
from elasmo.data.gold import GoldError
from elasmo.engine.sampling import SamplingParams
from elasmo.ingest.ingest import ingest
from elasmo.model import published
from elasmo.model.hugging_face import export_model, import_model
from elasmo.model.sample import Message, Text
from elasmo.serve.load_engine import load_engine
from elasmo.serve.served_model import read_served_model
from elasmo.train.driver import fit
from elasmo.train.local_cluster import LocalCluster
from elasmo.train.publication import publish
from elasmo.train.run_folder import events
from tests.model.test_imported_processor import CHATML, plain, tokenizer
from tests.pets import write_dataset

ANSWERS = ["zero", "one", "two"]


def dataset(folder: Path) -> Path:
    """Sixty questions; the answer is a number's remainder."""
    contract = {"modalities": ["text"], "media": {}, "record": {}}
    rows: list[dict[str, Any] | str] = []
    for number in range(60):
        messages = [
            {"role": "user", "segments": [{"text": f"what is this? {number}"}]},
            {"role": "assistant", "segments": [{"text": ANSWERS[number % 3]}]},
        ]
        rows.append({"id": f"row-{number}", "messages": messages, "split": "heldout" if number % 6 == 5 else "train"})
    return write_dataset(folder, rows, {}, contract)


def imported(folder: Path) -> Path:
    """A tiny Llama with a chat template, imported into a sibling folder."""
    torch.manual_seed(0)
    theirs = tokenizer(CHATML, folder)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(theirs) + 7,
        max_position_embeddings=128,
        eos_token_id=theirs.convert_tokens_to_ids("<|im_end|>"),
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    out = folder.with_name("imported")
    import_model(folder, out, "tiny-llama")
    return out


@pytest.mark.full
def test_an_imported_model_is_tuned_served_and_given_back(tmp_path: Path) -> None:
    base, rows = imported(tmp_path / "hf"), dataset(tmp_path / "numbers")
    overrides = [
        f"model.from={base}",
        f"data.processor={base}",
        f"data.dataset={rows}",
        f"data.lake={tmp_path / 'lake'}",
        f"train.init_from=[{base}]",
        "train.lora={rank: 4}",
        "train.steps=12",
        "train.lr=0.01",
        "train.warmup_steps=2",
        "train.eval_every=12",
        "train.checkpoint_every=6",
        f"train.storage={tmp_path / 'runs'}",
        "ray.address=local",
    ]
    config = load(None, overrides, {})
    ingest(config, rows)
    with LocalCluster(config.ray, dashboard=False) as cluster:
        cluster.connect()
        run = fit(config)
    losses = [event["loss"] for event in events(run.folder, "step")]
    assert run.receipts.match and losses[-1] < losses[0] - 0.1

    folder = publish(run.folder).folder
    export_model(folder, tmp_path / "back")
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32)
    reader = AutoTokenizer.from_pretrained(tmp_path / "back")
    served, processor = read_served_model(folder, ServeConfig())
    assert served.context == 128
    asked = [Message("user", (Text("what is this? 4"),))]
    prompt = processor.encode_chat(asked, LimitsConfig(), add_generation_prompt=True)
    ids = reader.apply_chat_template(plain(asked), add_generation_prompt=True, return_dict=False)
    assert prompt.tokens.tolist() == ids
    engine = load_engine(str(folder), EngineConfig(block_size=8, blocks=32, max_batch=2))
    ours = engine.generate(prompt, SamplingParams(max_tokens=8))
    wanted = theirs.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids) :].tolist()
    assert ours == wanted
    untuned = published.load(base).model
    assert not torch.allclose(
        untuned.decoder.layers[0].self_attn.q_proj.weight, theirs.model.layers[0].self_attn.q_proj.weight
    )
    assert torch.equal(untuned.embed_tokens.weight, theirs.model.embed_tokens.weight)


def test_a_processor_that_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    base, rows = imported(tmp_path / "hf"), dataset(tmp_path / "numbers")
    lake = f"data.lake={tmp_path / 'lake'}"
    with pytest.raises(GoldError, match=f"set model.from={base}"):
        ingest(load(None, [lake, f"data.processor={base}"], {}), rows)
    with pytest.raises(GoldError, match=r"data\.processor: .* holds no usable processor"):
        ingest(load(None, [lake, f"data.processor={tmp_path / 'absent'}"], {}), rows)
    with pytest.raises(ConfigError, match="holds no published model; name a folder"):
        load(None, ["model.from=absent"], {})
    taken = load(None, [f"model.from={base}", "model.decoder.max_seq=64"], {}).model
    assert taken.decoder.max_seq == 64 and taken.decoder.kv_heads == 2 and taken.vision is None
