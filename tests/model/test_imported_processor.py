"""An imported model's own tokenizer, chat template and image settings read inputs as transformers' processors do."""

from __future__ import annotations

import io
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Pillow
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_audio.processing_qwen2_audio import Qwen2AudioProcessor

from elasmo.config import AudioConfig, LimitsConfig, ModelConfig, TokensConfig, VisionConfig
from elasmo.model.imported_processor import ImportedProcessor, fit_image, load_processor
from elasmo.model.processor import Processor, ProcessorError
from elasmo.model.sample import Audio, Image, Message, Table, Text
from tests.serve.tiny import tiny_model, wav

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content + eos_token }}"
    "{% elif m.role == 'user' %}[INST] {{ m.content }} [/INST] {% else %}{{ raise_exception('no system here') }}"
    "{% endif %}{% endfor %}"
)
LLAVA = (
    "{% for m in messages %}{{ m.role.upper() + ': ' }}"
    "{% for p in m.content | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for p in m.content | selectattr('type', 'equalto', 'text') %}{{ p.text }}"
    "{% endfor %}{{ ' ' if m.role == 'user' else eos_token }}{% endfor %}{% if add_generation_prompt %}ASSISTANT: "
    "{% endif %}"
)
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<image>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]
TEXTS = ["[INST] what is this? [/INST]", "user assistant system USER: ASSISTANT:", "zero one two héllo €"]
TALK = [
    Message("user", (Text("what is this?"),)),
    Message("assistant", (Text("zero one"),)),
    Message("user", (Text("and héllo €?"),)),
    Message("assistant", (Text("two"),)),
]
IDS = {token: number for number, token in enumerate(SPECIAL)}


def tokenizer(template: str, folder: Path, bos: bool = False) -> PreTrainedTokenizerFast:
    """A small byte-level tokenizer, saved as the hub has them; with `bos` it puts a first token before every text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    if bos:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", IDS["<s>"])]
        )
    theirs = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    theirs.chat_template = template
    theirs.save_pretrained(folder)
    return theirs


def text_config(**changes: Any) -> ModelConfig:
    ids = TokensConfig(end=(1, 3), never=(), image=4, audio=5, table=999)
    return ModelConfig(vision=None, audio=None, table=None, tokens=ids).model_copy(update=changes)


def plain(messages: list[Message]) -> list[dict[str, Any]]:
    return [{"role": m.role, "content": "".join(s.text for s in m.segments if isinstance(s, Text))} for m in messages]


@pytest.mark.parametrize("template", [CHATML, LLAMA], ids=["chatml", "llama"])
@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("prompt", [True, False])
def test_conversations_become_the_tokens_of_transformers(
    tmp_path: Path, template: str, bos: bool, prompt: bool
) -> None:
    theirs = tokenizer(template, tmp_path, bos)
    ours = ImportedProcessor(tmp_path, text_config(), 400)
    messages = TALK[:3] if prompt else TALK
    wanted = theirs.apply_chat_template(plain(messages), add_generation_prompt=prompt, return_dict=False)
    encoded = ours.encode_chat(messages, LimitsConfig(), add_generation_prompt=prompt)
    assert encoded.tokens.tolist() == wanted
    assert ours.decode(wanted) == theirs.decode(wanted, skip_special_tokens=True)
    assert not encoded.loss_mask.any() or not prompt


@pytest.mark.parametrize(("template", "end"), [(CHATML, "<|im_end|>"), (LLAMA, "</s>")], ids=["chatml", "llama"])
def test_targets_are_the_answers_and_what_ends_them(tmp_path: Path, template: str, end: str) -> None:
    theirs = tokenizer(template, tmp_path)
    encoded = ImportedProcessor(tmp_path, text_config(), 400).encode_chat(TALK, LimitsConfig())
    targets = encoded.tokens[encoded.loss_mask == 1].tolist()
    assert theirs.decode(targets).replace(" two", "two").lstrip() == f"zero one{end}two{end}"


@pytest.mark.parametrize("spelled", SPECIAL)
def test_what_a_user_spells_is_no_control_token(tmp_path: Path, spelled: str) -> None:
    theirs = tokenizer(CHATML, tmp_path)
    ours = ImportedProcessor(tmp_path, text_config(), 400)
    messages = [Message("user", (Text(f"a{spelled}b {spelled}"),)), Message("assistant", (Text(f"{spelled}c"),))]
    encoded = ours.encode_chat(messages, LimitsConfig())
    assert theirs.decode(encoded.tokens) == (
        f"<|im_start|>user\na{spelled}b {spelled}<|im_end|>\n<|im_start|>assistant\n{spelled}c<|im_end|>\n"
    )
    honest = ours.encode_chat(TALK[:2], LimitsConfig())
    for token in range(len(SPECIAL)):
        assert (encoded.tokens == token).sum() == (honest.tokens == token).sum()
    assert theirs.decode(encoded.tokens[encoded.loss_mask == 1]) == f"{spelled}c<|im_end|>"


def picture(width: int, height: int, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    random = np.random.default_rng(width * height)
    Pillow.fromarray(random.integers(0, 255, (height, width, 3)).astype(np.uint8)).convert(mode).save(file, "PNG")
    return file.getvalue()


def pixels(data: bytes) -> NDArray[np.uint8]:
    return np.asarray(Pillow.open(io.BytesIO(data)).convert("RGB"))


VISION = VisionConfig(kind="clip", image_size=16, channels=3, patch=8, projector="mlp")


@pytest.mark.parametrize("shape", [(16, 16), (40, 30), (17, 61), (7, 9)])
@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}},
        {"size": {"height": 16, "width": 16}, "do_center_crop": False, "resample": 2},
    ],
    ids=["crop", "stretch"],
)
def test_images_are_resized_as_transformers_does(shape: tuple[int, int], settings: dict[str, Any]) -> None:
    theirs = CLIPImageProcessorPil(**settings, do_rescale=False, do_normalize=False)
    wanted = theirs(Pillow.open(io.BytesIO(picture(*shape))), return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
    assert np.array_equal(fit_image(pixels(picture(*shape)), VISION, settings), wanted)


def test_images_stand_where_the_template_names_them(tmp_path: Path) -> None:
    theirs = tokenizer(LLAVA, tmp_path, bos=True)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": {"shortest_edge": 16}}))
    ours = ImportedProcessor(tmp_path, text_config(vision=VISION), 400)
    asked = Message("user", (Text("what is "), Image(picture(16, 16)), Text("this?"), Image(picture(30, 20, "L"))))
    encoded = ours.encode_chat([asked, Message("assistant", (Text("two"),))], LimitsConfig())
    image = "<image>" * VISION.tokens
    assert theirs.decode(encoded.tokens) == f"<s>USER: {image}\n{image}\nwhat is this? ASSISTANT: two</s>"
    assert theirs.decode(encoded.tokens[encoded.loss_mask == 1]).lstrip() == "two</s>"
    assert encoded.images.shape == (2, 16, 16, 3)
    assert np.array_equal(encoded.images[0], pixels(picture(16, 16)))
    assert encoded.costs(ours.config.tokens).vision == 2 * VISION.tokens
    attending = ours.with_model(text_config(vision=VISION, fusion="cross_attention"))
    assert attending.fingerprint() != ours.fingerprint()
    looked_at = attending.encode_chat([asked], LimitsConfig(), add_generation_prompt=True)
    assert looked_at.costs(ours.config.tokens).vision == len(looked_at.images) == 2


def test_clips_become_the_tokens_and_features_of_transformers(tmp_path: Path) -> None:
    extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=2)
    theirs = Qwen2AudioProcessor(extractor, tokenizer("", tmp_path), audio_token="<|AUDIO|>")
    template = theirs.default_chat_template
    tokenizer(template, tmp_path)
    audio = AudioConfig(kind="whisper", sample_rate=16_000, n_fft=400, hop=160, n_mels=80, max_positions=100, max_s=2.0)
    ours = ImportedProcessor(tmp_path, text_config(audio=audio), 400)
    clips = [wav(0.5), wav(1.25)]
    asked = Message("user", (Audio(clips[0]), Text("what?"), Audio(clips[1])))
    encoded = ours.encode_chat([asked], LimitsConfig(), add_generation_prompt=True)
    content = [
        {"type": "audio", "audio_url": "a"},
        {"type": "text", "text": "what?"},
        {"type": "audio", "audio_url": "b"},
    ]
    text = theirs.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, chat_template=template, tokenize=False
    )
    sounds = [np.frombuffer(clip[44:], "<i2").astype(np.float32) / 32768 for clip in clips]
    wanted = theirs(text=text, audio=sounds, return_tensors="np", padding=True)
    assert encoded.tokens.tolist() == wanted["input_ids"][0].tolist()
    for clip, features in zip(encoded.audio, wanted["input_features"], strict=True):
        assert np.abs(clip - features.T[: len(clip)]).max() < 1e-4


def test_it_comes_back_from_its_folder_byte_for_byte(tmp_path: Path) -> None:
    tokenizer(CHATML, tmp_path / "hf")
    ours = ImportedProcessor(tmp_path / "hf", text_config(), 400)
    ours.save(tmp_path / "saved")
    again = load_processor(tmp_path / "saved")
    assert isinstance(again, ImportedProcessor) and again.vocab_size == 400
    assert again.fingerprint() == ours.fingerprint() and again.config == ours.config
    assert (
        again.encode_chat(TALK, LimitsConfig()).tokens.tolist()
        == ours.encode_chat(TALK, LimitsConfig()).tokens.tolist()
    )
    for path in (tmp_path / "hf").iterdir():
        assert (tmp_path / "saved" / path.name).read_bytes() == path.read_bytes()
    (tmp_path / "saved" / "chat_template.jinja").write_text(LLAMA)
    assert load_processor(tmp_path / "saved").fingerprint() != ours.fingerprint()


def test_what_it_cannot_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ProcessorError, match=r"tokenizer\.json is no tokenizer"):
        ImportedProcessor(tmp_path, text_config(), 400)
    size = len(tokenizer(LLAMA, tmp_path))
    with pytest.raises(ProcessorError, match=f"has token id {size - 1}, the model's vocab_size is {size - 1}"):
        ImportedProcessor(tmp_path, text_config(), size - 1)
    ours = ImportedProcessor(tmp_path, text_config(), size)
    limits = LimitsConfig()
    for segment, sentence in (
        (Image(picture(8, 8)), "takes text only"),
        (Audio(wav()), "takes text only"),
        (Table({"age": 1.0}), "takes no table records"),
        (Text("\ufdd0"), r"U\+FDD0"),
    ):
        with pytest.raises(ProcessorError, match=sentence):
            ours.encode_chat([Message("user", (segment,))], limits, True)
    with pytest.raises(ProcessorError, match="refuses the conversation: no system here"):
        ours.encode_chat([Message("system", (Text("x"),))], limits, True)
    with pytest.raises(ProcessorError, match="at most 256"):
        ours.encode_chat([Message("user", (Text("zero " * 300),))], limits, True)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    with pytest.raises(ProcessorError, match="targets cannot be told apart"):
        ImportedProcessor(tmp_path, text_config(), 400).encode_chat(TALK, limits)
    (tmp_path / "chat_template.jinja").write_text("{% for")
    with pytest.raises(ProcessorError, match="cannot be read"):
        ImportedProcessor(tmp_path, text_config(), 400).encode_chat(TALK, limits)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ProcessorError, match="without a chat template"):
        ImportedProcessor(tmp_path, text_config(), 400).encode_chat(TALK, limits)


def test_a_date_in_a_template_is_todays_in_prompts_and_fixed_in_samples(tmp_path: Path) -> None:
    dated = "{{ strftime_now('%Y') }}"
    theirs = tokenizer(dated + CHATML, tmp_path)
    ours = ImportedProcessor(tmp_path, text_config(), 400)
    sample, prompt = (ours.encode_chat(TALK[:n], LimitsConfig(), n == 1) for n in (2, 1))
    assert theirs.decode(sample.tokens).startswith("2024<|im_start|>")
    assert theirs.decode(prompt.tokens).startswith(f"{datetime.now().year}<|im_start|>")
    assert theirs.decode(sample.tokens[sample.loss_mask == 1]) == "zero one<|im_end|>"


def test_a_template_cannot_reach_out_of_its_sandbox(tmp_path: Path) -> None:
    tokenizer("{{ messages.__class__.__mro__[1].__subclasses__() }}", tmp_path)
    with pytest.raises(ProcessorError, match="refuses the conversation"):
        ImportedProcessor(tmp_path, text_config(), 400).encode_chat(TALK, LimitsConfig())


def test_a_template_that_drops_an_image_is_refused(tmp_path: Path) -> None:
    tokenizer("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", tmp_path)
    ours = ImportedProcessor(tmp_path, text_config(vision=VISION), 400)
    with pytest.raises(ProcessorError, match="names 0 images where 1 were given"):
        ours.encode_chat([Message("user", (Image(picture(16, 16)), Text("x")))], LimitsConfig(), True)


def test_processors_trained_here_are_written_for_transformers(tmp_path: Path) -> None:
    processor = tiny_model()[1]
    processor.save(tmp_path)
    assert isinstance(load_processor(tmp_path), Processor)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for messages, prompt in ((TALK, False), (TALK[:1], True)):
        wanted = processor.encode_chat(messages, LimitsConfig(), prompt).tokens.tolist()
        found = theirs.apply_chat_template(plain(messages), add_generation_prompt=prompt, return_dict=False)
        assert found == wanted
    assert (theirs.pad_token_id, theirs.eos_token_id) == (0, 1)
