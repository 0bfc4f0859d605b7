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
    ],
)
def test_a_bad_override_is_refused_in_one_sentence(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(overrides=[override], env={})
    assert sentence in str(refused.value)
    assert "Traceback" not in str(refused.value) and "pydantic" not in str(refused.value)


def test_every_fault_of_a_file_is_named_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, "train: {stpes: 3, lr: fast}\nserve: {prot: 1}\n")
    with pytest.raises(ConfigError) as refused:
        load(path, env={})
    assert len(str(refused.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1", "is not valid YAML"),
        ("- 1\n- 2\n", "holds a list"),
        ("just words", "holds a str"),
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
        "seed": draw(st.integers(-(2**63), 2**63)),
        "data": {"gold": draw(st.none() | text), "dataset": draw(text)},
        "model": {"vision": draw(st.none() | st.just({"patch": 4})), "decoder": {"norm_eps": draw(finite)}},
        "train": {
            "micro_batch": micro,
            "global_batch": micro * slots,
            "lr": draw(finite),
            "betas": [draw(finite), draw(finite)],
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
