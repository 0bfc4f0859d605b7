"""Loading a configuration: who wins over whom, what is refused, and that a printed tree reads back equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasmo.config import Config, ConfigError, dump, load


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_defaults_need_no_file() -> None:
    assert load(env={}) == Config()


def test_arguments_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, "train: {steps: 10, lr: 0.5, global_batch: 128}\nseed: 1\n")
    env = {"ELASMO__TRAIN__STEPS": "20", "ELASMO__TRAIN__LR": "0.25", "ELASMOTHER": "x"}
    config = load(path, overrides=["train.steps=30"], env=env)
    assert (config.train.steps, config.train.lr, config.train.global_batch, config.seed) == (30, 0.25, 128, 1)


def test_the_last_override_wins() -> None:
    assert load(overrides=["seed=1", "seed=2"], env={}).seed == 2


def test_override_values_are_yaml() -> None:
    config = load(overrides=["model.audio=null", "train.betas=[0.8, 0.9]", "train.log.wandb=digits"], env={})
    assert (config.model.audio, config.train.betas, config.train.log.wandb) == (None, (0.8, 0.9), "digits")


def test_an_empty_section_in_the_file_can_be_filled(tmp_path: Path) -> None:
    assert load(write(tmp_path, "train:\n"), overrides=["train.steps=3"], env={}).train.steps == 3


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("train.stpes=3", "Unknown config key 'train.stpes'; did you mean 'train.steps'?"),
        ("trian.steps=3", "Unknown config key 'trian'; did you mean 'train'?"),
        ("micro_batch=3", "Unknown config key 'micro_batch'; did you mean 'train.micro_batch'?"),
        ("model.vision.patches=3", "Unknown config key 'model.vision.patches'; did you mean 'model.vision.patch'?"),
        ("data.limits.zzz=3", "Unknown config key 'data.limits.zzz'; data.limits takes image_bytes, image_pixels,"),
        ("train.steps", "Override 'train.steps' is not of the form section.key=value"),
        ("=3", "Override '=3' is not of the form section.key=value"),
        ("train.steps=many", "train.steps is 'many' (str)"),
        ("train.steps=0", "train.steps is 0 (int): input should be greater than or equal to 1."),
        ("train.steps=1.5", "train.steps is 1.5 (float)"),
        ("train.dtype=float16", "train.dtype is 'float16' (str)"),
        ("train.dtype=float8", "train.dtype: float8 is not there: it takes a GPU of compute capability 8.9"),
        ("train.loss_on=prompts", "train.loss_on is 'prompts' (str): input should be 'answers' or 'all'."),
        ("train.micro_batch=7", "micro_batch=7 must divide global_batch=64"),
        ("train.workers.min=3", "max=2 must be at least min=3"),
        ("model.decoder.heads=3", "heads=3 must divide hidden=128"),
        ("model.vision.projector=mlp", "kind=stem takes no projector=mlp; use kind=clip or kind=siglip"),
        ("name=../escape", "name is '../escape' (str)"),
        ("serve.port=70000", "serve.port is 70000 (int)"),
        ("seed.deep=1", "seed is {'deep': 1} (dict)"),
        ("train.steps={", "is not valid YAML"),
        (
            "train.steps=[1",
            "Value '[1' of train.steps is not valid YAML: expected ',' or ']', but got '<stream end>' in",
        ),
        ("train.steps=2024-13-45", "Value '2024-13-45' of train.steps is not valid YAML: month must be in 1..12"),
        ("train..steps=3", "Override 'train..steps=3' is not of the form section.key=value"),
        ("train.betas=[2, 0.9]", "train.betas[0] is 2 (int): input should be less than 1."),
        ("train.betas=[0.9, -1]", "train.betas[1] is -1 (int): input should be greater than or equal to 0."),
        ("train.betas=[.nan, 0.9]", "train.betas[0] is nan (float): input should be a finite number."),
        ("train.betas=[0.9]", "train.betas is [0.9] (list): the list is too short."),
        ("train.betas=[0.9, 0.9, 0.9]", "train.betas is [0.9, 0.9, 0.9] (list): it takes a list of at most 2 items."),
        ("train.lr=.inf", "train.lr is inf (float): input should be a finite number."),
        ("train.lr=true", "train.lr is True (bool): input should be a number, not true or false."),
        ("train.zero_stage=true", "train.zero_stage is True (bool): input should be a number, not true or false."),
        ("train.layout.tp_sequence=1", "train.layout.tp_sequence is 1 (int): input should be true or false."),
        ("seed=99999999999999999999", "seed is 99999999999999999999 (int): input should fit in a signed integer of 64"),
        ("model.decoder.norm_eps=-1", "model.decoder.norm_eps is -1 (int): input should be greater than 0."),
        ("model.decoder.rope_theta=-5", "model.decoder.rope_theta is -5 (int): input should be greater than 1."),
        (
            "model.decoder.rope_scaling={kind: llama3, factor: 8, low_freq_factor: 4, high_freq_factor: 4}",
            "model.decoder.rope_scaling: low_freq_factor=4 must be less than high_freq_factor=4.",
        ),
        (
            "model.decoder.rope_scaling={kind: llama3, factor: 8, low_freq_factor: 0}",
            "model.decoder.rope_scaling.low_freq_factor is 0 (int): input should be greater than 0.",
        ),
        (
            "model.decoder.rope_scaling={kind: yarn, factor: 8, beta_fast: 1, beta_slow: 32}",
            "model.decoder.rope_scaling: beta_slow=32 must be less than beta_fast=1.",
        ),
        (
            "model.decoder.rope_scaling={kind: linear, factor: 8, beta_fast: 8}",
            "model.decoder.rope_scaling: kind=linear takes no beta_fast=8.0.",
        ),
        (
            "model.decoder.rope_scaling={kind: linear}",
            "model.decoder.rope_scaling is {'kind': 'linear'}, which lacks the key factor; "
            "set model.decoder.rope_scaling.factor.",
        ),
        ("model.vision={kind: clip, std: [0]}", "model.vision.std[0] is 0 (int): input should be greater than 0."),
        ("model.vision={kind: clip, stem: 5}", "model.vision: kind=clip takes no stem=5, which is of kind=stem."),
        ("model.audio.n_fft=1", "model.audio.n_fft is 1 (int): input should be greater than or equal to 2."),
        ("model.audio.pool=false", "model.audio: kind=strided takes no pool=False, which is of kind=whisper."),
        ("model.cross_attention.latents=4", "fusion=sequence takes no cross_attention.latents=4; set fusion=cross_att"),
        (
            "model={fusion: cross_attention, vision: null, audio: null}",
            "model: fusion=cross_attention attends to images and clips, but vision and audio are both null.",
        ),
        ("model.decoder.moe.dense_layers=[99]", "moe.dense_layers has 99; layers=2 are 0 to 1."),
        ("model.decoder.moe.dense_layers=[0, 1]", "leave none of layers=2 with experts; lower moe.every, or set moe"),
        ("model.decoder.moe.every=10", "moe.every=10 and moe.dense_layers=[] leave none of layers=2 with experts"),
        ("model.tokens.image=-1", "model.tokens.image is -1 (int): input should be greater than or equal to 1."),
        ("train.layout.chunks=5", "train.layout: chunks=5 is of pipelines; set pp to 2 or more, or leave it out."),
        ("train.layout.schedule=gpipe", "train.layout: schedule=gpipe is of pipelines; set pp to 2 or more"),
        (
            "train.layout.dp=2",
            "Unknown config key 'train.layout.dp'; data parallel is what tp x pp x sp leave of the number of workers;",
        ),
        ("train.layout.cp=2", "Unknown config key 'train.layout.cp'; train.layout takes tp, pp, sp, ep, tp_sequence,"),
        ("train.layout=5", "train.layout is 5 (int): it is a section, with the keys tp, pp, sp, ep, tp_sequence,"),
        ("train.lora=true", "train.lora is True (bool): it is a section, with the keys rank, alpha, targets."),
        ("train.freeze=vision", "train.freeze is 'vision' (str): it takes a list, such as [vision]."),
        ("train.freeze=null", "train.freeze is None (NoneType): it takes a list, such as []."),
        ("train.betas=[]", "train.betas is [] (list): the list is too short."),
        ("data.mixture=[{weight: 1}]", "data.mixture[0] is {'weight': 1}, which lacks the key dataset; set data.mix"),
        (
            "data.mixture=[{dataset: a, weight: x}]",
            "data.mixture[0].weight is 'x' (str): input should be a number.",
        ),
        ("data.mixture=[{dataset: a, weight: {5: .inf}}]", "data.mixture[0].weight[5] is inf (float): input should be"),
        ("data.mixture=[digits]", "data.mixture[0] is 'digits' (str): it is a section, with the keys dataset, gold, w"),
        (
            "serve.decode.resources={a: .inf}",
            "serve.decode.resources.a is inf (float): input should be a finite number.",
        ),
        ("serve.decode.resources=5", "serve.decode.resources is 5 (int): it takes a mapping, such as {key: value}."),
        ("train={1: 2}", "train[1] is 1 (int): a key is a name, not a number."),
        ("train.lora.targets=[]", "train.lora.targets is [] (list): it takes a list of at least 1 item."),
        ("model.tokens.end=5", "model.tokens.end is 5 (int): it takes a list, such as [5]."),
    ],
)
def test_a_bad_override_is_refused_in_one_sentence(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(overrides=[override], env={})
    assert sentence in str(refused.value)
    assert "Traceback" not in str(refused.value) and "pydantic" not in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_every_fault_of_a_file_is_named_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, "train: {stpes: 3, lr: fast}\nserve: {prot: 1}\n")
    with pytest.raises(ConfigError) as refused:
        load(path, env={})
    assert len(str(refused.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "a: [1",
            r"config.yaml is not valid YAML: expected ',' or '\]', but got '<stream end>' in line 1, column 6\.$",
        ),
        ("- 1\n- 2\n", r"holds \[1, 2\] \(list\) at its top; it must hold sections, such as `train: {steps: 200}`\.$"),
        ("[1]", r"holds \[1\] \(list\) at its top"),
        ("just words", r"holds 'just words' \(str\) at its top"),
        ("\x00", "is not valid YAML"),
    ],
)
def test_a_file_that_is_no_tree_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(write(tmp_path, text), env={})


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml does not exist"):
        load(tmp_path / "absent.yaml", env={})


def test_an_override_below_a_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="goes below train, which holds the value 3"):
        load(write(tmp_path, "train: 3\n"), overrides=["train.steps=3"], env={})


def test_the_tree_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().train.steps = 3  # type: ignore[misc]


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
finite = st.floats(min_value=1e-12, max_value=1e6, allow_nan=False)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    micro, slots = draw(st.integers(1, 64)), draw(st.integers(1, 16))
    workers = sorted(draw(st.lists(st.integers(1, 64), min_size=2, max_size=2)))
    text = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=20)
    return {
        "name": draw(names),
        "seed": draw(st.integers(-(2**63), 2**63 - 1)),
        "data": {"gold": draw(st.none() | text), "dataset": draw(text)},
        "model": {"vision": draw(st.none() | st.just({"patch": 4})), "decoder": {"norm_eps": draw(finite)}},
        "train": {
            "micro_batch": micro,
            "global_batch": micro * slots,
            "lr": draw(finite),
            "betas": [draw(st.floats(0.0, 1.0, exclude_max=True)), draw(st.floats(0.0, 1.0, exclude_max=True))],
            "workers": {"min": workers[0], "max": workers[1]},
        },
    }


@given(trees())
def test_a_printed_tree_reads_back_equal(tree: dict[str, Any]) -> None:
    import tempfile

    config = Config.model_validate(tree)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(dump(config))
        file.flush()
        assert load(file.name, env={}) == config


def test_bfloat16_without_zero_is_refused_before_it_trains() -> None:
    with pytest.raises(ConfigError, match="zero_stage=0 has no checkpoints under dtype=bfloat16; use zero_stage 1"):
        load(None, ["train.zero_stage=0", "train.dtype=bfloat16"], {})
