"""Turns messages into what the model computes, and tokens back into text: tokenizer, chat template, media features."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from tokenizers import Tokenizer

from elasmo.config import AudioConfig, LimitsConfig, ModelConfig, TableConfig, VisionConfig
from elasmo.model.cell import days_and_seconds, text_buckets
from elasmo.model.encoded import Encoded
from elasmo.model.media import MediaError, decode_audio, decode_image
from elasmo.model.mel import BORDER, Mel, mel_features, whisper_tokens
from elasmo.model.sample import Audio, Image, Message, Role, Segment, Text, Value
from elasmo.model.tokenizer import ASSISTANT, AUDIO, END, IMAGE, PAD, SPECIAL_TOKENS, SYSTEM, TABLE, USER, prepare

ROLES: Mapping[Role, int] = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}
AUDIO_STRIDE = 4
"""Mel frames that become one audio token."""
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.role == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""The chat template in Jinja, for readers of the published folder; `encode_chat` is what runs."""


class ProcessorError(ValueError):
    """Messages that this model cannot take, in one sentence."""


@dataclass(frozen=True)
class TableField:
    """A field of the records a model knows.

    Attributes:
        kind: a number, one of some categories, any text, or an ISO 8601 date or time.
        mean, std: by which a number is standardised; of a time, in days since 1970.
    """

    name: str
    kind: Literal["number", "category", "text", "time"]
    categories: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0


class Processor:
    """The input side of one model; saved with it, and part of its identity."""

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig, table_fields: Sequence[TableField] = ()) -> None:
        self.tokenizer = prepare(tokenizer)
        self.config = config
        self.table_fields = tuple(table_fields)
        self._field_numbers = {field.name: number for number, field in enumerate(self.table_fields)}

    @property
    def vocab_size(self) -> int:
        """Number of token ids, control tokens included."""
        return int(self.tokenizer.get_vocab_size())

    def encode_chat(
        self, messages: Sequence[Message], limits: LimitsConfig, add_generation_prompt: bool = False
    ) -> Encoded:
        """One sample from a conversation.

        Each message becomes its role's token and its segments; what the assistant said ends with the end token, and
        these tokens are the targets.

        Args:
            messages: turns in order.
            limits: caps checked before a medium is decoded.
            add_generation_prompt: end with the assistant's role token, for the model to go on.

        Raises:
            ProcessorError: too long, a medium the model has no tower for, an unknown table field or category.
            MediaError: a medium that is damaged or over a limit.
        """
        parts = _Parts()
        for message in messages:
            parts.add([ROLES[message.role]])
            said = message.role == "assistant"
            for segment in message.segments:
                self._encode(segment, limits, parts, target=said)
            if said:
                parts.add([END], target=True)
        if add_generation_prompt:
            parts.add([ASSISTANT])
        limit = self.config.decoder.max_seq
        if len(parts.tokens) > limit:
            raise ProcessorError(
                f"The conversation has {len(parts.tokens)} tokens; the model takes at most {limit} (decoder.max_seq)."
            )
        return parts.encoded()

    def encode_text(self, text: str) -> Encoded:
        """A prompt of bare text, without roles, for the model to go on with."""
        tokens = self.tokenizer.encode(text, add_special_tokens=False).ids
        return Encoded.of_tokens(np.array(tokens, np.int32), np.zeros(len(tokens), np.uint8))

    def with_model(self, config: ModelConfig) -> Processor:
        """The same for another model configuration."""
        return Processor(self.tokenizer, config, self.table_fields)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids; control tokens are left out."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def fingerprint(self) -> str:
        """SHA-256 over everything that decides what the model sees: not the sizes of its towers, which it does not."""
        vision, audio = self.config.vision, self.config.audio
        features: list[Any] = [
            None if vision is None else [vision.image_size, vision.channels, vision.patch],
            None if audio is None else [audio.sample_rate, audio.n_fft, audio.hop, audio.n_mels, audio.max_s],
            self.config.table is not None,
        ]
        # Only what differs from the first kinds, whose fingerprints stay what they were.
        if vision is not None and vision.kind != "stem":
            features.append([vision.kind, vision.tokens])
        if audio is not None and audio.kind != "strided":
            features.append([audio.kind, audio.pool, audio.max_positions])
        if self.config.attends:
            features.append("cross_attention")
        if self.config.table is not None and any(field.kind == "text" for field in self.table_fields):
            features.append(["text", self.config.table.text_buckets, self.config.table.text_bytes])
        described = [json.loads(self.tokenizer.to_str()), [asdict(field) for field in self.table_fields], features]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Writes tokenizer, settings and chat template into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.save_hugging_face(folder)
        settings = {
            "model": self.config.model_dump(mode="json"),
            "table_fields": [asdict(field) for field in self.table_fields],
        }
        (folder / "processor.json").write_text(json.dumps(settings, indent=1))

    def save_hugging_face(self, folder: Path) -> None:
        """Writes what transformers' AutoTokenizer reads: tokenizer and chat template, which takes plain text."""
        self.tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        described = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": SPECIAL_TOKENS[PAD],
            "eos_token": SPECIAL_TOKENS[END],
            "model_max_length": self.config.decoder.max_seq,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=1))

    @classmethod
    def load(cls, folder: Path) -> Processor:
        """Reads what `save` wrote.

        Raises:
            ProcessorError: a file is missing or damaged.
        """
        try:
            settings = json.loads((folder / "processor.json").read_text())
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            config = ModelConfig.model_validate(settings["model"])
            fields = [
                TableField(**{**field, "categories": tuple(field["categories"])}) for field in settings["table_fields"]
            ]
        except Exception as error:  # tokenizers raises bare Exception
            raise ProcessorError(f"{folder} holds no usable processor: {error}.") from None
        return cls(tokenizer, config, fields)

    def _encode(self, segment: Segment, limits: LimitsConfig, parts: _Parts, target: bool) -> None:
        if isinstance(segment, Text):
            parts.add(self.tokenizer.encode(segment.text, add_special_tokens=False).ids, target)
        elif isinstance(segment, Image):
            vision = self.config.vision
            if vision is None:
                raise ProcessorError("This model takes no images (model.vision is null); leave the image out.")
            parts.images.append(fit_image(decode_image(segment.data, limits), vision))
            parts.add([IMAGE] * (1 if self.config.attends else vision.tokens))
        elif isinstance(segment, Audio):
            audio = self.config.audio
            if audio is None:
                raise ProcessorError("This model takes no audio (model.audio is null); leave the audio out.")
            samples = decode_audio(segment.data, limits, audio.sample_rate)
            if len(samples) > audio.max_s * audio.sample_rate:
                seconds = len(samples) / audio.sample_rate
                raise MediaError(f"The audio lasts {seconds:.2f} s; the model takes at most {audio.max_s:g} s.")
            mel = mel_features(samples, audio)
            parts.audio.append(mel)
            parts.add([AUDIO] * (1 if self.config.attends else audio_tokens(len(mel), audio)))
        else:
            self._encode_record(segment.record, parts)

    def _encode_record(self, record: Mapping[str, Value], parts: _Parts) -> None:
        if self.config.table is None or not self.table_fields:
            raise ProcessorError("This model takes no table records; leave the record out.")
        for name in record:
            if name not in self._field_numbers:
                known = ", ".join(self._field_numbers)
                raise ProcessorError(f"The record has an unknown field {name!r}; the model knows {known}.")
        for number, field in enumerate(self.table_fields):
            value, category, details = _cell(field, record.get(field.name), self.config.table)
            parts.details += [(detail, len(parts.cells)) for detail in details]
            parts.cells.append((number, value, category))
        parts.add([TABLE] * len(self.table_fields))


def audio_tokens(frames: int, audio: AudioConfig) -> int:
    """Audio tokens of a clip of mel frames, border frames included: strided convolutions, and Whisper's pooling."""
    return -(-frames // AUDIO_STRIDE) if audio.kind == "strided" else whisper_tokens(frames - BORDER, audio.pool)


def fit_image(pixels: NDArray[np.uint8], vision: VisionConfig) -> NDArray[np.uint8]:
    """Pixels at the model's size, uint8 [image_size, image_size, channels]: areas averaged, nothing cropped."""
    size = vision.image_size
    same_size = pixels.shape[:2] == (size, size)
    if same_size and pixels.shape[2] == vision.channels:
        return pixels
    image = Pillow.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image = image.convert("L" if vision.channels == 1 else "RGB")
    if not same_size:
        image = image.resize((size, size), Pillow.Resampling.BOX)
    return np.asarray(image, dtype=np.uint8).reshape(size, size, vision.channels)


class _Parts:
    """A sample while it is put together."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.mask: list[int] = []
        self.images: list[NDArray[np.uint8]] = []
        self.audio: list[Mel] = []
        self.cells: list[tuple[int, float, int]] = []
        self.details: list[tuple[int, int]] = []

    def add(self, tokens: Sequence[int], target: bool = False) -> None:
        self.tokens.extend(tokens)
        self.mask.extend([int(target)] * len(tokens))

    def encoded(self) -> Encoded:
        fields, values, categories = zip(*self.cells, strict=True) if self.cells else ((), (), ())
        details, detail_of = zip(*self.details, strict=True) if self.details else ((), ())
        return Encoded(
            tokens=np.array(self.tokens, np.int32),
            loss_mask=np.array(self.mask, np.uint8),
            images=np.stack(self.images) if self.images else np.zeros((0, 0, 0, 0), np.uint8),
            audio=tuple(self.audio),
            cell_fields=np.array(fields, np.int16),
            cell_values=np.array(values, np.float32),
            cell_categories=np.array(categories, np.int16),
            cell_details=np.array(details, np.int32),
            cell_detail_of=np.array(detail_of, np.int32),
        )


def _cell(field: TableField, value: Value, table: TableConfig) -> tuple[float, int, Sequence[int]]:
    """(value, category, details) as in `Encoded`; (0, -1, none) where the value is missing."""
    if value is None:
        return 0.0, -1, ()
    if field.kind == "number":
        if isinstance(value, str) or not math.isfinite(value):
            raise ProcessorError(f"Field {field.name!r} is {value!r}; it takes a finite number.")
        return (float(value) - field.mean) / (field.std or 1.0), 0, ()
    if field.kind == "category":
        if value not in field.categories:
            raise ProcessorError(f"Field {field.name!r} is {value!r}; it takes one of {', '.join(field.categories)}.")
        return 0.0, 1 + field.categories.index(str(value)), ()
    if not isinstance(value, str):
        wanted = "a text" if field.kind == "text" else "an ISO 8601 date or time in a string"
        raise ProcessorError(f"Field {field.name!r} is {value!r}; it takes {wanted}.")
    if field.kind == "time":
        try:
            days, seconds = days_and_seconds(value)
        except ValueError:
            raise ProcessorError(
                f"Field {field.name!r} is {value!r}; it takes an ISO 8601 date or time such as 2024-03-01T12:30."
            ) from None
        return float(days), 0, (seconds,)
    if (size := len(value.encode("utf-8", "replace"))) > table.text_bytes:
        raise ProcessorError(
            f"Field {field.name!r} has {size} bytes of text; the model takes at most {table.text_bytes} "
            "(model.table.text_bytes)."
        )
    return 0.0, 0, text_buckets(value, table.text_buckets)
