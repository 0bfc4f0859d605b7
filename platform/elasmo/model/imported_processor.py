"""The input side of an imported model: its own tokenizer, chat template and image settings, read from its own files."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment
from numpy.typing import NDArray
from PIL import Image as Pillow
from pydantic import ValidationError
from tokenizers import Tokenizer

from elasmo.config import LimitsConfig, ModelConfig, VisionConfig
from elasmo.model.encoded import Encoded
from elasmo.model.media import MediaError, decode_audio, decode_image
from elasmo.model.mel import Mel, mel_features
from elasmo.model.processor import Processor, ProcessorError, TableField, audio_tokens
from elasmo.model.sample import Audio, Image, Message, Segment, Text
from elasmo.model.tokenizer import prepare

SETTINGS = "imported.json"
TOKENIZER = "tokenizer.json"
FILES = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
)
"""Files of a Hugging Face folder that say how inputs are read and answers end."""
SAMPLE_DATE = datetime(2024, 7, 26)
"""What templates that state the date state in samples of a dataset, so that these are the same on every day."""
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Noncharacters of Unicode, around what somebody wrote that must not be read as a control token."""


class ImportedProcessor:
    """Reads chats as the model's own files say; the counterpart of `Processor`.

    Args:
        files: folder with those of `FILES` that the model came with.
        vocab_size: rows of its embedding, which may be more than its tokenizer has tokens.

    Raises:
        ProcessorError: there is no tokenizer, one with ids beyond the embedding, or a file that cannot be read.
    """

    table_fields: tuple[TableField, ...] = ()

    def __init__(self, files: Path, config: ModelConfig, vocab_size: int) -> None:
        self.files = files
        self.config = config
        self.vocab_size = vocab_size
        try:
            source = (files / TOKENIZER).read_text(encoding="utf-8")
            self._control_reader, self._text_reader = Tokenizer.from_str(source), prepare(Tokenizer.from_str(source))
        except Exception as error:  # tokenizers raises bare Exception
            raise ProcessorError(f"{files / TOKENIZER} is no tokenizer: {error}.") from None
        highest = max(self._control_reader.get_vocab(with_added_tokens=True).values(), default=0)
        if highest >= vocab_size:
            raise ProcessorError(
                f"{files / TOKENIZER} has token id {highest}, the model's vocab_size is {vocab_size}; resize its "
                "embeddings to its tokenizer before importing it."
            )
        self._settings = self._read("tokenizer_config.json")

    @property
    def tokenizer(self) -> Tokenizer:
        """Reads any text as text; nothing in it is a control token."""
        return self._text_reader

    def with_model(self, config: ModelConfig) -> ImportedProcessor:
        """The same for another model configuration."""
        return ImportedProcessor(self.files, config, self.vocab_size)

    def encode_chat(
        self, messages: Sequence[Message], limits: LimitsConfig, add_generation_prompt: bool = False
    ) -> Encoded:
        """One sample from a conversation, by the model's chat template; see `Processor.encode_chat`.

        What the template writes for an assistant's turn after its generation prompt are the targets. What a user
        wrote is never read as a control token.

        Raises:
            ProcessorError: no template, one that refuses the conversation or does not tell answers apart, media that
                the model does not take, too long.
            MediaError: a medium that is damaged or over a limit.
        """
        turns = [self._turn(message) for message in messages]
        date = datetime.now() if add_generation_prompt else SAMPLE_DATE
        text = self._render(turns, add_generation_prompt, date)
        spans = [] if add_generation_prompt else self._answers(turns, text)
        media = _Media(self.config, limits, [s for m in messages for s in m.segments], self._image_settings)
        tokens, targets = media.fill(*self._tokenize(text, spans))
        limit = self.config.decoder.max_seq
        if len(tokens) > limit:
            raise ProcessorError(
                f"The conversation has {len(tokens)} tokens; the model takes at most {limit} (decoder.max_seq)."
            )
        sample = Encoded.of_tokens(np.array(tokens, np.int32), np.array(targets, np.uint8))
        return media.added_to(sample)

    def encode_text(self, text: str) -> Encoded:
        """A prompt of bare text, without a chat template, behind what the tokenizer puts in front of every text."""
        first = self._control_reader.encode("", add_special_tokens=True).ids
        tokens = [*first, *self._text_reader.encode(text, add_special_tokens=False).ids]
        return Encoded.of_tokens(np.array(tokens, np.int32), np.zeros(len(tokens), np.uint8))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids; control tokens are left out."""
        return str(self._control_reader.decode(list(token_ids), skip_special_tokens=True))

    def fingerprint(self) -> str:
        """SHA-256 over the files and over what of the model decides how media are read."""
        audio, vision = self.config.audio, self.config.vision
        described = [
            self.vocab_size,
            self.config.tokens.model_dump(mode="json"),
            self.config.fusion,
            None if vision is None else [vision.image_size, vision.tokens],
            None if audio is None else [audio.n_mels, audio.max_positions, audio.pool],
            {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self._paths()},
        ]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Writes the model's files, byte for byte, and its settings into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.save_hugging_face(folder)
        settings = {"vocab_size": self.vocab_size, "model": self.config.model_dump(mode="json")}
        (folder / SETTINGS).write_text(json.dumps(settings, indent=1))

    def save_hugging_face(self, folder: Path) -> None:
        """Writes the model's files as they came."""
        for path in self._paths():
            shutil.copyfile(path, folder / path.name)

    @classmethod
    def load(cls, folder: Path) -> ImportedProcessor:
        """Reads what `save` wrote.

        Raises:
            ProcessorError: a file is missing or damaged.
        """
        try:
            settings = json.loads((folder / SETTINGS).read_text())
            config = ModelConfig.model_validate(settings["model"])
            vocab_size = int(settings["vocab_size"])
        except (OSError, KeyError, TypeError, ValueError, ValidationError) as error:
            raise ProcessorError(f"{folder} holds no usable processor: {error}.") from None
        return cls(folder, config, vocab_size)

    def _paths(self) -> Iterator[Path]:
        return (self.files / name for name in FILES if (self.files / name).is_file())

    def _read(self, name: str) -> dict[str, Any]:
        path = self.files / name
        if not path.is_file():
            return {}
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ProcessorError(f"{path} is not JSON: {error}.") from None

    @cached_property
    def _image_settings(self) -> Mapping[str, Any]:
        return image_settings(self._read("preprocessor_config.json"), self._read("processor_config.json"))

    @cached_property
    def _control(self) -> re.Pattern[str]:
        """Matches every text that the tokenizer would read as a control token, and nothing without any."""
        added = self._control_reader.get_added_tokens_decoder().values()
        texts = sorted((token.content for token in added if token.special), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    @cached_property
    def _template(self) -> jinja2.Template:
        path = self.files / "chat_template.jinja"
        source: Any = path.read_text(encoding="utf-8") if path.is_file() else None
        source = source or self._read("chat_template.json").get("chat_template") or self._settings.get("chat_template")
        if isinstance(source, list):
            source = next((item["template"] for item in source if item["name"] == "default"), None)
        if not source:
            raise ProcessorError("The imported model came without a chat template, so it takes no conversation.")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        try:
            return environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ProcessorError(f"The imported chat template cannot be read: {error}.") from None

    @property
    def _takes_media(self) -> bool:
        return self.config.vision is not None or self.config.audio is not None

    def _turn(self, message: Message) -> dict[str, Any]:
        """A message as chat templates take it: plain text, or in multimodal models a list of parts."""
        parts: list[dict[str, str]] = []
        for segment in message.segments:
            if isinstance(segment, Text):
                parts.append({"type": "text", "text": self._guard(segment.text)})
            elif isinstance(segment, Image):
                parts.append({"type": "image"})
            elif isinstance(segment, Audio):
                parts.append({"type": "audio", "audio_url": ""})
            else:
                raise ProcessorError("This model takes no table records; leave the record out.")
        if self._takes_media:
            return {"role": message.role, "content": parts}
        if any(part["type"] != "text" for part in parts):
            raise ProcessorError("This model takes text only; leave the media out.")
        return {"role": message.role, "content": "".join(part["text"] for part in parts)}

    def _guard(self, text: str) -> str:
        if _OPEN in text or _CLOSE in text:
            raise ProcessorError("The text has U+FDD0 or U+FDD1, which are no characters; leave them out.")
        return self._control.sub(lambda found: f"{_OPEN}{found[0]}{_CLOSE}", text)

    def _render(self, turns: Sequence[Mapping[str, Any]], add_generation_prompt: bool, date: datetime) -> str:
        named: dict[str, Any] = {}
        for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
            token = self._settings.get(key)
            named[key] = token["content"] if isinstance(token, dict) else token
        try:
            text = self._template.render(
                messages=turns,
                add_generation_prompt=add_generation_prompt,
                strftime_now=date.strftime,
                tools=None,
                documents=None,
                **named,
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise ProcessorError(f"The model's chat template refuses the conversation: {error}.") from None
        begins = named["bos_token"] is not None and text.startswith(named["bos_token"])
        # Processors of multimodal models put the first token there where templates do not; tokenizers leave it away.
        return text if begins or not self._takes_media else self._first_tokens + text

    @cached_property
    def _first_tokens(self) -> str:
        """What the tokenizer puts in front of a text."""
        return "".join(self._control_reader.encode("", add_special_tokens=True).tokens)

    def _answers(self, turns: Sequence[Mapping[str, Any]], text: str) -> list[tuple[int, int]]:
        """Where in the rendered conversation the assistant's answers stand, with what ends them."""
        spans = []
        for number, turn in enumerate(turns):
            if turn["role"] != "assistant":
                continue
            before = self._render(turns[:number], True, SAMPLE_DATE)
            after = self._render(turns[: number + 1], False, SAMPLE_DATE)
            if not after.startswith(before) or not text.startswith(after.rstrip()):
                raise ProcessorError(
                    f"The model's chat template writes turn {number + 1} differently in a longer conversation, so "
                    "targets cannot be told apart; train on samples with one answer."
                )
            spans.append((len(before), len(after.rstrip())))
        return spans

    def _tokenize(self, text: str, spans: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
        """Token ids, and 1 for each that has a character of one of the spans of the text."""
        tokens: list[int] = []
        targets: list[int] = []
        at = 0
        for part in re.split(f"({_OPEN}[^{_CLOSE}]*{_CLOSE})", text):
            guarded = part.startswith(_OPEN)
            reader = self._text_reader if guarded else self._control_reader
            encoding = reader.encode(part.strip(_OPEN + _CLOSE), add_special_tokens=False)
            for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
                first = at + guarded + start
                tokens.append(token)
                targets.append(int(any(first < high and low < first + stop - start for low, high in spans)))
            at += len(part)
        return tokens, targets


AnyProcessor = Processor | ImportedProcessor


def load_processor(folder: Path) -> AnyProcessor:
    """The processor saved in `folder`, trained here or imported.

    Raises:
        ProcessorError: there is none, or it is damaged.
    """
    return ImportedProcessor.load(folder) if (folder / SETTINGS).is_file() else Processor.load(folder)


def image_settings(preprocessor: Mapping[str, Any], processor: Mapping[str, Any]) -> Mapping[str, Any]:
    """How images are read, from `preprocessor_config.json`, or from its section of newer `processor_config.json`.

    Raises:
        ProcessorError: they are no settings, or of a size that no image can be brought to.
    """
    settings = preprocessor or processor.get("image_processor") or {}
    if not isinstance(settings, Mapping):
        raise ProcessorError(
            f"processor_config.json: image_processor is {settings!r}; it must be a section of settings."
        )
    size = settings.get("size")
    sides = size if isinstance(size, Mapping) else {"shortest_edge": 1 if size is None else size}
    named = {"height", "width"} <= set(sides) or "shortest_edge" in sides
    if not named or not all(type(side) is int and side > 0 for side in sides.values()):
        raise ProcessorError(
            f"The image processor's size is {size!r}; it must be pixels, or shortest_edge, or height and width."
        )
    return settings


def fit_image(pixels: NDArray[np.uint8], vision: VisionConfig, settings: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Pixels at the model's size, uint8 [image_size, image_size, 3], resized and cropped as the settings say."""
    size = vision.image_size
    image = Pillow.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    if settings.get("do_resize", True):
        wanted = settings.get("size", size)
        sides = wanted if isinstance(wanted, dict) else {"shortest_edge": wanted}
        resample = Pillow.Resampling(settings.get("resample", Pillow.Resampling.BICUBIC))
        image = image.resize(_resized(image.size, sides), resample)
    if image.size != (size, size):
        left, top = (image.width - size) // 2, (image.height - size) // 2
        image = image.crop((left, top, left + size, top + size))
    return np.asarray(image, dtype=np.uint8)


def _resized(size: tuple[int, int], wanted: Mapping[str, int]) -> tuple[int, int]:
    """(width, height) after resizing to given sides, or to a shortest side with the same proportions."""
    if "height" in wanted:
        return wanted["width"], wanted["height"]
    edge, (width, height) = wanted["shortest_edge"], size
    short, long = min(size), max(size)
    other = int(edge * long / short)
    return (edge, other) if width <= height else (other, edge)


class _Media:
    """The media of one conversation, in the order in which the template names them."""

    def __init__(
        self, config: ModelConfig, limits: LimitsConfig, segments: Sequence[Segment], settings: Mapping[str, Any]
    ) -> None:
        self.config = config
        self.images = [self._image(s.data, limits, settings) for s in segments if isinstance(s, Image)]
        self.clips = [self._clip(s.data, limits) for s in segments if isinstance(s, Audio)]

    def fill(self, tokens: Sequence[int], targets: Sequence[int]) -> tuple[list[int], list[int]]:
        """Gives each medium as many placeholders as it has embeddings in the sequence, in place of the template's one.

        Raises:
            ProcessorError: the template names fewer or more media than there are.
        """
        ids, audio, vision = self.config.tokens, self.config.audio, self.config.vision
        places = {ids.image: [vision.tokens if vision else 0] * len(self.images)}
        places[ids.audio] = [audio_tokens(len(clip), audio) for clip in self.clips] if audio else []
        if self.config.attends:
            places = {token: [1] * len(counts) for token, counts in places.items()}
        for token, name in ((ids.image, "images"), (ids.audio, "clips")):
            if (named := tokens.count(token)) != len(places[token]):
                raise ProcessorError(
                    f"The model's chat template names {named} {name} where {len(places[token])} were given."
                )
        filled: list[int] = []
        masks: list[int] = []
        for token, target in zip(tokens, targets, strict=True):
            count = places[token].pop(0) if token in places else 1
            filled += [token] * count
            masks += [target if token not in places else 0] * count
        return filled, masks

    def added_to(self, sample: Encoded) -> Encoded:
        """The sample with its media."""
        images = np.stack(self.images) if self.images else sample.images
        return Encoded(
            sample.tokens,
            sample.loss_mask,
            images,
            tuple(self.clips),
            sample.cell_fields,
            sample.cell_values,
            sample.cell_categories,
        )

    def _image(self, data: bytes, limits: LimitsConfig, settings: Mapping[str, Any]) -> NDArray[np.uint8]:
        if self.config.vision is None:
            raise ProcessorError("This model takes no images; leave the image out.")
        return fit_image(decode_image(data, limits), self.config.vision, settings)

    def _clip(self, data: bytes, limits: LimitsConfig) -> Mel:
        audio = self.config.audio
        if audio is None:
            raise ProcessorError("This model takes no audio; leave the audio out.")
        samples = decode_audio(data, limits, audio.sample_rate)
        if len(samples) > audio.max_s * audio.sample_rate:
            seconds = len(samples) / audio.sample_rate
            raise MediaError(f"The audio lasts {seconds:.2f} s; the model takes at most {audio.max_s:g} s.")
        return mel_features(samples, audio)


def _to_json(value: Any, indent: int | None = None) -> str:
    """JSON as chat templates expect it: not escaped for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
