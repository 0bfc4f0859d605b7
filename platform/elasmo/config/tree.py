"""The configuration tree. Every section is frozen, every key is typed, and a key that is not here is refused."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
LossOn = Literal["answers", "all"]
"""Tokens that are targets: what the assistant says, or all text; places of media never are."""
Seconds = Annotated[float, Field(gt=0.0)]


class Section(BaseModel):
    """A frozen part of the tree that accepts the keys it names and no others."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), validate_default=True)


class LimitsConfig(Section):
    """What a single medium may cost before it is decoded; the same caps guard ingestion and serving."""

    image_bytes: Positive = 4 << 20
    image_pixels: Positive = 4_000_000
    audio_bytes: Positive = 8 << 20
    audio_s: Seconds = 30.0


class DataConfig(Section):
    """Where the dataset comes from, where its bronze, silver and gold layers live, and how they are streamed."""

    dataset: str = "data/digits"
    lake: str = "runs/lake"
    gold: str | None = Field(None, description="gold snapshot id; the newest one of the dataset when null")
    vocab_size: Annotated[int, Field(ge=300)] = Field(512, description="of the tokenizer trained on the dataset's text")
    processor: str | None = Field(
        None, description="imported or published model whose tokenizer and chat template encode the dataset instead"
    )
    engine: Literal["ray", "direct"] = "ray"
    decode_workers: Positive = Field(1, description="Ray Data decode actors for each training rank")
    decode_cpus: Annotated[float, Field(gt=0)] = 0.25
    lookahead_mb: Positive = Field(64, description="object store that decoded micro-batches of a rank may fill")
    shuffle_window_shards: Positive = 4
    limits: LimitsConfig = LimitsConfig()


class RopeScalingConfig(Section):
    """How rotary positions reach beyond the context that a model was trained with."""

    kind: Literal["linear", "llama3", "yarn"]
    factor: Annotated[float, Field(gt=0)]
    original_max_seq: Positive = Field(8192, description="context of the training before it was extended")
    low_freq_factor: float = Field(1.0, description="llama3: wavelengths above original_max_seq / this are slowed")
    high_freq_factor: float = Field(4.0, description="llama3: wavelengths below original_max_seq / this are kept")
    beta_fast: float = Field(32.0, description="yarn: turns above which a dimension is kept")
    beta_slow: float = Field(1.0, description="yarn: turns below which a dimension is slowed")
    attention_factor: float | None = Field(None, description="yarn: factor on cosines and sines; null: from factor")


class MoEConfig(Section):
    """Experts in place of feed-forward networks. Top-1 with a capacity is Switch; null capacity drops no token."""

    experts: Positive = 8
    top_k: Positive = 2
    ffn: Positive = 352
    norm_topk: bool = Field(True, description="weights of the chosen experts sum to 1; false keeps probabilities")
    capacity_factor: Annotated[float, Field(gt=0)] | None = Field(
        None, description="an expert takes this many times its even share of a micro-batch, later tokens skip it"
    )
    aux_loss: Annotated[float, Field(ge=0)] = Field(0.01, description="coefficient of the load-balancing loss")
    every: Positive = Field(1, description="every how many layers has experts, the last of each group")
    dense_layers: tuple[int, ...] = Field((), description="numbers of layers without experts, from 0")

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
    rope_theta: float = 10_000.0
    rope_scaling: RopeScalingConfig | None = None
    norm_eps: float = 1e-6
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
    norm_eps: float = 1e-5
    feature_layer: Annotated[int, Field(le=-1)] = Field(
        -1, description="clip, siglip: layer whose output is used, from the end; LLaVA 1.5 takes -2"
    )
    select: Literal["patch", "full"] = Field("patch", description="clip: patches alone, or the class token as well")
    projector: Literal["linear", "mlp"] = "linear"
    mean: tuple[float, ...] = Field((0.5,), description="clip, siglip: of pixels in 0..1, by channel or for all")
    std: tuple[float, ...] = Field((0.5,), description="clip, siglip: of pixels in 0..1, by channel or for all")

    @model_validator(mode="after")
    def _divides(self) -> VisionConfig:
        if self.image_size % self.patch:
            raise ValueError(f"patch={self.patch} must divide image_size={self.image_size}")
        ignored = _UNREAD_BY_STEM & self.model_fields_set if self.kind == "stem" else set()
        for name in sorted(ignored):
            if (value := getattr(self, name)) != VisionConfig.model_fields[name].default:
                raise ValueError(f"kind=stem takes no {name}={value}; use kind=clip or kind=siglip")
        if not -self.layers <= self.feature_layer:
            raise ValueError(f"feature_layer={self.feature_layer} must be at least -layers={-self.layers}")
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
    n_fft: Positive = 512
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
        return self


class WorkersConfig(Section):
    """The elastic range of training workers and what each one reserves."""

    min: Positive = 1
    max: Positive = 2
    use_gpu: bool = False
    trainer: Annotated[float, Field(ge=0)] = Field(
        1.0, description="custom Ray resource `trainer` a worker reserves, on clusters whose nodes offer it"
    )
    cpus: Annotated[float, Field(ge=0)] = Field(
        0.1, description="CPUs a worker reserves where it reserves no trainer and no GPU; most are left to Ray Data"
    )
    threads: Positive = Field(1, description="torch intra-op threads of a worker")
    max_failures: Annotated[int, Field(ge=0)] = 8
    health_check_s: Seconds = 0.3
    start_timeout_s: Seconds = 30.0
    wait_s: Seconds = Field(300.0, description="how long a run waits for `min` workers before it gives up")
    collective_timeout_s: Seconds = 60.0

    @model_validator(mode="after")
    def _range(self) -> WorkersConfig:
        if self.max < self.min:
            raise ValueError(f"max={self.max} must be at least min={self.min}")
        return self


class LogConfig(Section):
    """Where metrics go besides the run log, Ray's metrics and the report."""

    tensorboard: bool = True
    wandb: str | None = Field(None, description="Weights & Biases project; needs the wandb package")
    mlflow: str | None = Field(None, description="MLflow tracking URI; needs the mlflow package")


class LayoutConfig(Section):
    """How ranks share a model; the rest of the ranks, whatever their number, are data parallel."""

    tp: Positive = Field(1, description="tensor parallel: heads, feed-forward channels, vocabulary")
    pp: Positive = Field(1, description="pipeline parallel: stages of decoder layers")
    sp: Positive = Field(1, description="Ulysses sequence parallel: tokens of a slot")
    ep: Positive = Field(1, description="expert parallel: experts over ranks that share a model")
    tp_sequence: bool = Field(False, description="Megatron sequence parallel: norms and residuals sharded over tp")
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero-bubble"] = "1f1b"
    chunks: Positive = Field(1, description="stages of a rank; more than 1 for interleaved, 2 for zero-bubble")
    recompute: Literal["none", "selective", "full"] = "none"


class LoraConfig(Section):
    """Low-rank adapters (Hu et al. 2021) beside frozen matrices of the decoder."""

    rank: Positive = 8
    alpha: Annotated[float, Field(gt=0)] = Field(16.0, description="adapters count alpha / rank")
    targets: tuple[str, ...] = Field(("q_proj", "v_proj"), min_length=1, description="names of the decoder's matrices")


class TrainConfig(Section):
    """Optimisation and elasticity. The global batch is `global_batch` samples in slots of `micro_batch`."""

    steps: Positive = 500
    global_batch: Positive = 64
    micro_batch: Positive = 16
    lr: Annotated[float, Field(gt=0)] = 2e-3
    min_lr_ratio: Fraction = 0.1
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    dtype: Literal["float32", "bfloat16"] = "float32"
    loss_on: LossOn = Field("answers", description="targets: what the assistant says, or all text (pretraining)")
    zero_stage: Literal[0, 1, 2, 3] = 1
    offload: Literal["none", "optimizer", "all"] = Field(
        "none", description="what ZeRO keeps in host memory: optimizer state (stage 1 and up), weights too (stage 3)"
    )
    layout: LayoutConfig = LayoutConfig()
    freeze: tuple[str, ...] = Field(
        (), description="parts that are not trained, such as vision or decoder.layers.0; '!*.projector' excepts"
    )
    lora: LoraConfig | None = Field(
        None, description="trains adapters, and besides them only what train.freeze excepts with '!'"
    )
    init_from: tuple[str, ...] = Field(
        (), description="folders of published models, runs or checkpoints whose weights training starts from"
    )
    stop_after: Positive | None = Field(
        None, description="commit no step beyond this one; the schedule still spans `steps`"
    )
    report_every: Positive = Field(10, description="steps between `ray.train.report` calls, each a barrier of ~0.2 s")
    eval_every: Positive = 100
    checkpoint_every: Positive = 20
    keep_checkpoints: Positive = 2
    storage: str = "runs"
    workers: WorkersConfig = WorkersConfig()
    log: LogConfig = LogConfig()

    @field_validator("dtype", mode="before")
    @classmethod
    def _no_float8(cls, dtype: object) -> object:
        if isinstance(dtype, str) and re.fullmatch(r"(float8|fp8)\w*", dtype):
            raise ValueError(
                f"{dtype} is not there: it takes a GPU of compute capability 8.9, where nothing here was tested; "
                "use bfloat16"
            )
        return dtype

    @model_validator(mode="after")
    def _slots(self) -> TrainConfig:
        if self.global_batch % self.micro_batch:
            raise ValueError(f"micro_batch={self.micro_batch} must divide global_batch={self.global_batch}")
        if self.zero_stage == 0 and self.dtype == "bfloat16":
            raise ValueError("zero_stage=0 has no checkpoints under dtype=bfloat16; use zero_stage 1, 2 or 3")
        needed = {"none": 0, "optimizer": 1, "all": 3}[self.offload]
        if self.zero_stage < needed:
            raise ValueError(f"offload={self.offload} needs zero_stage {needed} or more, not {self.zero_stage}")
        return self

    @property
    def slots(self) -> int:
        """Micro-batch slots in a global batch."""
        return self.global_batch // self.micro_batch

    @property
    def last_step(self) -> int:
        """Steps committed when the run is done."""
        return self.steps if self.stop_after is None else min(self.steps, self.stop_after)


class EngineConfig(Section):
    """The torch inference engine: paged KV cache and continuous batching."""

    block_size: Positive = Field(16, description="tokens in a KV page")
    blocks: Positive = Field(1024, description="KV pages of a decode replica")
    max_batch: Positive = Field(16, description="sequences decoded in one step")
    threads: Positive = 1


class PoolConfig(Section):
    """One pool of Serve replicas."""

    replicas: Positive = 1
    cpus: Annotated[float, Field(ge=0)] = 0.25
    gpus: Annotated[float, Field(ge=0)] = 0.0
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="custom Ray resources a replica reserves, to hold the pool to nodes that have them"
    )
    max_ongoing: Positive = 64


class ServeConfig(Section):
    """The OpenAI-compatible endpoint and its pools."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65_535)] = 8000
    model_name: str | None = Field(None, description="name in /v1/models; the published model's name when null")
    published: str | None = Field(None, description="folder written by `elasmo publish`")
    max_tokens: Positive = Field(32, description="default completion length")
    max_queue: Positive = Field(256, description="requests in flight before 503")
    request_timeout_s: Seconds = 60.0
    retries: Annotated[int, Field(ge=0)] = Field(3, description="replacement replicas tried for one request")
    kv_mb: Positive = Field(64, description="object store that the KV of an ingress's requests may fill before 503")
    body_bytes: Positive = Field(32 << 20, description="largest request body; media travel in it as base64")
    coalesce_ms: Annotated[float, Field(ge=0)] = Field(
        8.0, description="how long tokens after the first wait to share a message; 0 sends each step's token alone"
    )
    engine: EngineConfig = EngineConfig()
    ingress: PoolConfig = PoolConfig()
    prefill: PoolConfig = PoolConfig()
    decode: PoolConfig = PoolConfig()
    limits: LimitsConfig = LimitsConfig()


class RayConfig(Section):
    """The Ray cluster: `local` starts an emulated one in this process, `auto` joins the running one."""

    address: str = Field("auto", description="`auto`, `local`, or host:port")
    nodes: Positive = Field(2, description="raylets of a local cluster, each with one `trainer`")
    cpus_per_node: Positive = 2
    object_store_mb: Annotated[int, Field(ge=80)] = 256
    health_check_period_ms: Positive = 1000
    health_check_timeout_ms: Positive = 2000
    health_check_failures: Positive = 3


class Config(Section):
    """The whole tree. The same object drives the CLI, the SDK and job scripts."""

    name: str = Field("digits", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    seed: int = 0
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    serve: ServeConfig = ServeConfig()
    ray: RayConfig = RayConfig()
