"""The `model` section: decoder, towers, fusion and token ids."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from elasmo.config.section import Positive, PositiveFloat, Seconds, Section


class RopeScalingConfig(Section):
    """How rotary positions reach beyond the context that a model was trained with."""

    kind: Literal["linear", "llama3", "yarn"]
    factor: PositiveFloat
    original_max_seq: Positive = Field(8192, description="context of the training before it was extended")
    low_freq_factor: PositiveFloat = Field(
        1.0, description="llama3: wavelengths above original_max_seq / this are slowed"
    )
    high_freq_factor: PositiveFloat = Field(
        4.0, description="llama3: wavelengths below original_max_seq / this are kept"
    )
    beta_fast: PositiveFloat = Field(32.0, description="yarn: turns above which a dimension is kept")
    beta_slow: PositiveFloat = Field(1.0, description="yarn: turns below which a dimension is slowed")
    attention_factor: PositiveFloat | None = Field(
        None, description="yarn: factor on cosines and sines; null: from factor"
    )

    @model_validator(mode="after")
    def _bands(self) -> RopeScalingConfig:
        bounds = {"llama3": ("low_freq_factor", "high_freq_factor"), "yarn": ("beta_slow", "beta_fast")}
        for kind, (low, high) in bounds.items():
            if self.kind == kind and getattr(self, low) >= getattr(self, high):
                raise ValueError(f"{low}={getattr(self, low):g} must be less than {high}={getattr(self, high):g}")
        read = {*bounds.get(self.kind, ()), *(("attention_factor",) if self.kind == "yarn" else ())}
        ours = {"low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor"}
        for setting in self.unread(ours - read):
            raise ValueError(f"kind={self.kind} takes no {setting}")
        return self


class MoEConfig(Section):
    """Experts in place of feed-forward networks. Top-1 with a capacity is Switch; null capacity drops no token."""

    experts: Positive = 8
    top_k: Positive = 2
    ffn: Positive = 352
    norm_topk: bool = Field(True, description="weights of the chosen experts sum to 1; false keeps probabilities")
    capacity_factor: PositiveFloat | None = Field(
        None, description="an expert takes this many times its even share of a micro-batch, later tokens skip it"
    )
    aux_loss: Annotated[float, Field(ge=0)] = Field(0.01, description="coefficient of the load-balancing loss")
    every: Positive = Field(1, description="every how many layers has experts, the last of each group")
    dense_layers: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="numbers of layers without experts, from 0"
    )

    @model_validator(mode="after")
    def _enough(self) -> MoEConfig:
        if self.top_k > self.experts:
            raise ValueError(f"top_k={self.top_k} must be at most experts={self.experts}")
        return self

    def has_experts(self, layer: int) -> bool:
        return (layer + 1) % self.every == 0 and layer not in self.dense_layers


class DecoderConfig(Section):
    """The token decoder: RMSNorm, RoPE, grouped-query attention, SwiGLU. The flags make it Llama, Qwen2 or Qwen3."""

    hidden: Positive = 128
    layers: Positive = 2
    heads: Positive = 4
    kv_heads: Positive = 2
    head_dim: Positive | None = Field(None, description="hidden / heads when null")
    ffn: Positive = 352
    max_seq: Positive = 256
    rope_theta: Annotated[float, Field(gt=1)] = 10_000.0
    rope_scaling: RopeScalingConfig | None = None
    norm_eps: PositiveFloat = 1e-6
    qkv_bias: bool = Field(False, description="biases on queries, keys and values (Qwen2)")
    out_bias: bool = Field(False, description="bias on the attention's output")
    mlp_bias: bool = Field(False, description="biases in the feed-forward network")
    qk_norm: bool = Field(False, description="RMSNorm on each head's queries and keys (Qwen3)")
    tie_embeddings: bool = True
    moe: MoEConfig | None = None

    @model_validator(mode="after")
    def _divides(self) -> DecoderConfig:
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(f"heads={self.heads} must divide hidden={self.hidden}, or head_dim must be set")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} must divide heads={self.heads}")
        if self.head_size % 2:
            raise ValueError(f"head_dim={self.head_size} must be even for rotary positions")
        return self

    @model_validator(mode="after")
    def _experts_somewhere(self) -> DecoderConfig:
        if self.moe is None:
            return self
        beyond = [layer for layer in self.moe.dense_layers if layer >= self.layers]
        if beyond:
            raise ValueError(f"moe.dense_layers has {beyond[0]}; layers={self.layers} are 0 to {self.layers - 1}")
        if not any(map(self.moe.has_experts, range(self.layers))):
            raise ValueError(
                f"moe.every={self.moe.every} and moe.dense_layers={list(self.moe.dense_layers)} leave none of "
                f"layers={self.layers} with experts; lower moe.every, or set moe to null"
            )
        return self

    @property
    def head_size(self) -> int:
        """Dimensions of a head."""
        return self.hidden // self.heads if self.head_dim is None else self.head_dim


_UNREAD_BY_STEM = {"activation", "norm_eps", "feature_layer", "select", "projector", "mean", "std"}


class VisionConfig(Section):
    """The image encoder: square patches through a small ViT, or CLIP's or SigLIP's. A patch becomes a token."""

    kind: Literal["stem", "clip", "siglip"] = Field("stem", description="stem: convolutions before the patches")
    image_size: Positive = 8
    channels: Literal[1, 3] = 1
    patch: Positive = 4
    stem: Positive = Field(48, description="kind=stem: channels of the convolutions in front of the patches")
    hidden: Positive = 96
    layers: Positive = 2
    heads: Positive = 4
    ffn: Positive = 192
    activation: Literal["gelu", "quick_gelu", "gelu_pytorch_tanh"] = "gelu"
    norm_eps: PositiveFloat = 1e-5
    feature_layer: Annotated[int, Field(le=-1)] = Field(
        -1, description="clip, siglip: layer whose output is used, from the end; -layers-1 is the first one's input"
    )
    select: Literal["patch", "full"] = Field(
        "patch",
        description="clip: patches alone, or the class token as well; siglip has no class token, both are its patches",
    )
    projector: Literal["linear", "mlp"] = "linear"
    mean: tuple[float, ...] = Field((0.5,), description="clip, siglip: of pixels in 0..1, by channel or for all")
    std: tuple[PositiveFloat, ...] = Field((0.5,), description="clip, siglip: of pixels in 0..1, by channel or for all")

    @model_validator(mode="after")
    def _divides(self) -> VisionConfig:
        if self.image_size % self.patch:
            raise ValueError(f"patch={self.patch} must divide image_size={self.image_size}")
        for setting in self.unread(_UNREAD_BY_STEM) if self.kind == "stem" else ():
            raise ValueError(f"kind=stem takes no {setting}; use kind=clip or kind=siglip")
        for setting in self.unread(("stem",)) if self.kind != "stem" else ():
            raise ValueError(f"kind={self.kind} takes no {setting}, which is of kind=stem")
        if not -self.layers - 1 <= self.feature_layer:
            raise ValueError(f"feature_layer={self.feature_layer} must be at least -layers-1={-self.layers - 1}")
        if {len(self.mean), len(self.std)} - {1, self.channels}:
            raise ValueError(f"mean and std must have one number or channels={self.channels}")
        if self.hidden % self.heads:
            raise ValueError(f"heads={self.heads} must divide hidden={self.hidden}")
        return self

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return (self.image_size // self.patch) ** 2 + (self.kind == "clip" and self.select == "full")


class AudioConfig(Section):
    """The audio encoder: log-mel frames through two convolutions and a transformer encoder, ours or Whisper's."""

    kind: Literal["strided", "whisper"] = Field("strided", description="whisper: as Qwen2-Audio uses it")
    max_positions: Positive = Field(1500, description="whisper: positions after the convolutions")
    pool: bool = Field(True, description="whisper: neighbouring positions averaged, as in Qwen2-Audio")
    sample_rate: Positive = 22_050
    n_fft: Annotated[int, Field(ge=2)] = 512
    hop: Positive = 256
    n_mels: Positive = 40
    max_s: Seconds = 2.0
    hidden: Positive = 96
    layers: Positive = 2
    heads: Positive = 4
    ffn: Positive = 192

    @model_validator(mode="after")
    def _divides(self) -> AudioConfig:
        if self.hidden % self.heads:
            raise ValueError(f"heads={self.heads} must divide hidden={self.hidden}")
        if self.kind == "whisper" and self.hidden % 2:
            raise ValueError(f"hidden={self.hidden} must be even for the sinusoids of kind=whisper")
        for setting in self.unread(("max_positions", "pool")) if self.kind != "whisper" else ():
            raise ValueError(f"kind={self.kind} takes no {setting}, which is of kind=whisper")
        if self.kind == "whisper" and self.max_s > self.window_s:
            raise ValueError(
                f"max_s={self.max_s:g} exceeds {self.window_s:g}, the seconds that max_positions={self.max_positions} "
                f"of hop={self.hop} cover at sample_rate={self.sample_rate}"
            )
        return self

    @property
    def window_frames(self) -> int:
        """kind=whisper: mel frames for which there are positions."""
        return 2 * self.max_positions

    @property
    def window_s(self) -> float:
        """kind=whisper: seconds for which there are positions."""
        return self.window_frames * self.hop / self.sample_rate


class TableConfig(Section):
    """The table encoder: one token a field, from its name, its type and its value."""

    hidden: Positive = 64
    frequencies: Positive = 8
    text_buckets: Positive = Field(4096, description="text fields: embeddings that hashed n-grams share")
    text_bytes: Positive = Field(256, description="text fields: longest text in UTF-8 bytes")


class CrossAttentionConfig(Section):
    """Fusion as in Flamingo: gated blocks in the decoder attend to a few latents of each image and clip."""

    latents: Positive = Field(16, description="latents of an image or clip")
    resampler_layers: Positive = 2
    every: Positive = Field(2, description="every how many decoder layers, from the first, a block stands in front")
    heads: Positive = 4
    ffn: Positive | None = Field(None, description="of blocks and resamplers; decoder.ffn when null")

    def has_block(self, layer: int) -> bool:
        """Whether a block stands in front of a decoder layer."""
        return layer % self.every == 0


class TokensConfig(Section):
    """Token ids with a meaning of their own; an imported model brings its own."""

    pad: Annotated[int, Field(ge=0)] = Field(0, description="told to transformers; rows are padded with 0 here")
    end: tuple[Annotated[int, Field(ge=0)], ...] = Field((1,), description="each of them ends an answer")
    never: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0, 2, 3, 4), description="mean nothing in an answer; sampling leaves them and the media's out"
    )
    image: Annotated[int, Field(ge=1)] = 5
    audio: Annotated[int, Field(ge=1)] = 6
    table: Annotated[int, Field(ge=1)] = 7

    @property
    def media(self) -> tuple[int, int, int]:
        """Tokens that hold places of media."""
        return self.image, self.audio, self.table

    @model_validator(mode="after")
    def _apart(self) -> TokensConfig:
        if len({*self.media, *self.end}) < 3 + len(set(self.end)):
            raise ValueError(f"image={self.image}, audio={self.audio}, table={self.table}, end={self.end} must differ")
        return self


class ModelConfig(Section):
    """One multimodal decoder. A tower set to null is left out, and data that needs it is refused."""

    tokens: TokensConfig = TokensConfig()
    decoder: DecoderConfig = DecoderConfig()
    vision: VisionConfig | None = VisionConfig()
    audio: AudioConfig | None = AudioConfig()
    table: TableConfig | None = TableConfig()
    fusion: Literal["sequence", "cross_attention"] = Field(
        "sequence",
        description="sequence: media as tokens (LLaVA); cross_attention: one token an image or clip (Flamingo)",
    )
    cross_attention: CrossAttentionConfig = Field(CrossAttentionConfig(), description="fusion=cross_attention")

    @property
    def attends(self) -> bool:
        """Whether images and clips are attended to instead of standing in the sequence."""
        return self.fusion == "cross_attention"

    @model_validator(mode="after")
    def _divides(self) -> ModelConfig:
        heads, hidden = self.cross_attention.heads, self.decoder.hidden
        if self.attends and hidden % heads:
            raise ValueError(f"cross_attention.heads={heads} must divide decoder.hidden={hidden}")
        if self.attends and self.vision is None and self.audio is None:
            raise ValueError("fusion=cross_attention attends to images and clips, but vision and audio are both null")
        for setting in () if self.attends else self.cross_attention.unread(CrossAttentionConfig.model_fields):
            raise ValueError(f"fusion=sequence takes no cross_attention.{setting}; set fusion=cross_attention as well")
        return self
