"""The configuration tree. Every section is frozen, every key is typed, and a key that is not here is refused."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from elasmo.config.model import ModelConfig
from elasmo.config.section import Fraction, Positive, PositiveFloat, Seconds, Section

Weight = Annotated[float, Field(ge=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]
LossOn = Literal["answers", "all"]
"""Tokens that are targets: what the assistant says, or all text; places of media never are."""


class LimitsConfig(Section):
    """What a single medium may cost before it is decoded; the same caps guard ingestion and serving."""

    image_bytes: Positive = 4 << 20
    image_pixels: Positive = 4_000_000
    audio_bytes: Positive = 8 << 20
    audio_s: Seconds = 30.0


class SourceConfig(Section):
    """A dataset of a mixture. Keep its place in the list for the life of a run: it is part of its rows' ids."""

    dataset: str
    gold: str | None = Field(None, description="gold snapshot id; the newest one of the dataset when null")
    weight: Weight | dict[Annotated[int, Field(ge=0)], Weight] = Field(
        1.0, description="share in decoder tokens against the others': a number, or the step from which each holds"
    )

    @property
    def weights(self) -> dict[int, float]:
        """First step -> weight from then on."""
        return self.weight if isinstance(self.weight, dict) else {0: self.weight}


class DataConfig(Section):
    """Where the dataset comes from, where its bronze, silver and gold layers live, and how they are streamed."""

    dataset: str = "data/digits"
    lake: str = "runs/lake"
    gold: str | None = Field(None, description="gold snapshot id; the newest one of the dataset when null")
    vocab_size: Annotated[int, Field(ge=300)] = Field(512, description="of the tokenizer trained on the dataset's text")
    processor: str | None = Field(
        None, description="imported or published model whose tokenizer and chat template encode the dataset instead"
    )
    mixture: tuple[SourceConfig, ...] = Field((), description="datasets to train on together, instead of `dataset`")
    engine: Literal["ray", "direct"] = "ray"
    decode_workers: Positive = Field(
        1,
        description="decode tasks of a training rank that run at once; several cost a Ray task for each block of slots",
    )
    decode_cpus: PositiveFloat = 0.25
    block_slots: Positive = Field(
        4, description="micro-batches that a decode task hands over at once; each handing over costs CPU of Ray's own"
    )
    lookahead_mb: Positive = Field(64, description="object store that decoded micro-batches of a rank may fill")
    shuffle_window_shards: Positive = 4
    row_timeout_s: Seconds = Field(60.0, description="how long reading a row may take before another stands in for it")
    max_substitutes: Annotated[int, Field(ge=0)] = Field(
        100, description="rows that may fail to decode on a rank and be replaced by others before the run stops"
    )
    openlineage: str | None = Field(None, description="file or http(s) URL that OpenLineage events are sent to")
    limits: LimitsConfig = LimitsConfig()

    @model_validator(mode="after")
    def _mixture(self) -> DataConfig:
        names = [source.dataset.rstrip("/").rsplit("/", 1)[-1] for source in self.mixture]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"mixture names dataset {name!r} twice; give it one entry, with the sum of weights")
        starts = sorted({0, *(step for source in self.mixture for step in source.weights)}) if self.mixture else []
        for start in starts:
            held = [[w for step, w in sorted(s.weights.items()) if step <= start] for s in self.mixture]
            if not any(weights and weights[-1] > 0 for weights in held):
                raise ValueError(f"mixture has no weight above 0 from step {start} on; give one source a weight there")
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

    @model_validator(mode="after")
    def _stages(self) -> LayoutConfig:
        for setting in self.unread(("schedule", "chunks")) if self.pp == 1 else ():
            raise ValueError(f"{setting} is of pipelines; set pp to 2 or more, or leave it out")
        return self


class LoraConfig(Section):
    """Low-rank adapters (Hu et al. 2021) beside frozen matrices of the decoder."""

    rank: Positive = 8
    alpha: PositiveFloat = Field(16.0, description="adapters count alpha / rank")
    targets: tuple[str, ...] = Field(("q_proj", "v_proj"), min_length=1, description="names of the decoder's matrices")


OnFault = Literal["stop", "skip", "rollback"]


class FaultsConfig(Section):
    """What a step with wrong numbers, on any rank, leads to on all of them."""

    on_non_finite: OnFault = Field(
        "stop", description="of a loss or gradient norm; skip: the optimizer does not move; rollback: to a checkpoint"
    )
    spike_z: PositiveFloat | None = Field(
        None, description="robust deviations above the last losses that make one a spike, such as 10; off when null"
    )
    on_spike: OnFault = "skip"
    window: Annotated[int, Field(ge=8)] = Field(64, description="losses that a spike is measured against")
    max_skips: Annotated[int, Field(ge=0)] = Field(
        10, description="steps that a run may skip, also after rollbacks; the next fault stops it"
    )
    checksum_every: Positive | None = Field(
        None, description="steps between comparisons of the parameters that ranks have copies of; off when null"
    )
    on_corruption: Literal["stop", "restore"] = Field(
        "stop", description="restore: from the newest checkpoint that was written before copies were last equal"
    )


class MemoryConfig(Section):
    """Checkpoints in the object stores of the cluster, between those in storage."""

    every: Positive | None = Field(None, description="steps between copies into memory; none when null")
    budget_mb: Positive = Field(256, description="object store of a node that they may fill; two checkpoints must fit")
    copies: Annotated[int, Field(ge=1, le=2)] = Field(2, description="nodes that hold each one")


class MeterConfig(Section):
    """What a device can do, draws and costs, where the run cannot find out. One device a rank."""

    peak_tflops: PositiveFloat | None = Field(
        None, description="dense peak at train.dtype; null: published for a known GPU, measured on a CPU, else unknown"
    )
    usd_per_device_hour: Annotated[float, Field(ge=0)] | None = Field(
        None, description="price; a run without one has no cost"
    )
    watts_per_device: PositiveFloat | None = Field(
        None, description="mean power, for an estimate where no energy counter can be read"
    )


class ChaosConfig(Section):
    """A fault on purpose, before a step of one rank."""

    step: Positive
    rank: Annotated[int, Field(ge=0)] = 0
    do: Literal["kill", "freeze", "nan", "flip", "corrupt"] = Field(
        description="to the process, to its losses, to a bit of one of its weights, or to the newest checkpoint"
    )
    attempt: Positive = Field(1, description="life of the worker group in which it happens")
    seconds: Seconds = Field(30.0, description="how long it is frozen")


class TrainConfig(Section):
    """Optimisation and elasticity. The global batch is `global_batch` samples in slots of `micro_batch`."""

    steps: Positive = 500
    global_batch: Positive = 64
    micro_batch: Positive = Field(16, description="rows of a slot; with a cap on its tokens their mean, at most")
    slot_tokens: Positive | None = Field(
        None, description="most decoder tokens of a slot: rows are packed by size, and a step may have more slots"
    )
    slot_encoder_tokens: Positive | None = Field(
        None, description="most tokens of a slot that its encoders process together, packed likewise"
    )
    lr: PositiveFloat = 2e-3
    min_lr_ratio: Fraction = 0.1
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    grad_clip: PositiveFloat = 1.0
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
    checkpoint_async: bool = Field(
        True, description="write checkpoints beside the next steps, from a copy in host memory that stays allocated"
    )
    checkpoint_storage: str | None = Field(
        None, description="folder or fsspec URL for checkpoints, such as s3://bucket/runs; the run's folder when null"
    )
    checkpoint_timeout_s: Seconds = Field(
        600.0, description="how long a rank's writer waits for the slowest rank's before the run restarts"
    )
    memory: MemoryConfig = MemoryConfig()
    faults: FaultsConfig = FaultsConfig()
    meter: MeterConfig = MeterConfig()
    chaos: tuple[ChaosConfig, ...] = Field((), description="faults on purpose, for drills")
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
        if self.zero_stage == 3 and self.faults.checksum_every is not None:
            raise ValueError("faults.checksum_every has nothing to compare under zero_stage=3; use 0, 1 or 2")
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
    prefill_tokens: Positive = Field(512, description="tokens of prompts computed in one step, beside those decoded")
    prefix_cache: bool = Field(True, description="share the KV of prompts that begin alike, media included")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of weights and KV while serving")
    threads: Positive = 1


class PoolConfig(Section):
    """One pool of Serve replicas."""

    replicas: Positive = 1
    cpus: Annotated[float, Field(ge=0)] = 0.25
    gpus: Annotated[float, Field(ge=0)] = 0.0
    resources: dict[str, PositiveFloat] = Field(
        {}, description="custom Ray resources a replica reserves, to hold the pool to nodes that have them"
    )
    max_ongoing: Positive = 64


class FetchConfig(Section):
    """Whether, and from where, media that a request names by URL are fetched."""

    allow: bool = Field(False, description="fetch http(s) URLs of image parts; false takes data URIs only")
    hosts: tuple[str, ...] = Field(
        (), description="hosts, with their subdomains, to fetch from; any public one when empty"
    )
    per_request: Positive = Field(8, description="URLs that one request may name")
    redirects: Annotated[int, Field(ge=0, le=10)] = 3
    timeout_s: Seconds = 10.0


class KeyConfig(Section):
    """An API key and what its requests may take; a limit that is null is the server's own."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="of the key, in hex: the key itself is nowhere")
    weight: PositiveFloat = Field(1.0, description="its share of the places, against other keys that wait")
    max_in_flight: Positive | None = Field(None, description="completions at a time, those that wait included")
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = Field(None, description="of prompts and answers together")
    admin: bool = Field(False, description="may read /v1/elasmo/stats")


class ServeConfig(Section):
    """The OpenAI-compatible endpoint and its pools."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65_535)] = 8000
    model_name: str | None = Field(None, description="name in /v1/models; the published model's name when null")
    published: str | None = Field(None, description="folder written by `elasmo publish`")
    max_tokens: Positive = Field(32, description="default completion length")
    max_queue: Positive = Field(256, description="completions in flight, those that wait included, before 503")
    max_running: Positive | None = Field(
        None, description="completions on the pools at a time; what the decode replicas take at once when null"
    )
    request_timeout_s: Seconds = 60.0
    retries: Annotated[int, Field(ge=0)] = Field(3, description="replacement replicas tried for one request")
    kv_mb: Positive = Field(64, description="object store that the requests of an ingress may fill; others wait")
    body_bytes: Positive = Field(32 << 20, description="largest request body; media travel in it as base64")
    text_chars: Positive = Field(1_000_000, description="characters of text, tools and schema that a request may have")
    media_per_request: Positive = Field(16, description="images and sounds of one request")
    keys: dict[str, KeyConfig] = Field({}, description="API keys by name; anybody may ask when there are none")
    mode: Literal["auto", "split", "local"] = Field(
        "split", description="where prompts run: in the prefill pool, in the decode replica, or what costs least"
    )
    handover_tokens: Positive = Field(
        128, description="for mode=auto: prompt tokens that a replica computes in the time a hand-over of KV takes"
    )
    affinity_slack: Annotated[int, Field(ge=0)] = Field(
        4, description="requests that the replica with a prompt's beginning may have more than the idlest to get it"
    )
    coalesce_ms: Annotated[float, Field(ge=0)] = Field(
        8.0, description="how long tokens after the first wait to share a message; 0 sends each step's token alone"
    )
    reconnect_s: Annotated[float, Field(ge=0)] = Field(
        0.0, description="how long a stream that lost its client goes on, for it to come back with Last-Event-ID"
    )
    engine: EngineConfig = EngineConfig()
    ingress: PoolConfig = PoolConfig()
    prefill: PoolConfig = PoolConfig()
    decode: PoolConfig = PoolConfig()
    limits: LimitsConfig = LimitsConfig()
    fetch: FetchConfig = FetchConfig()

    @model_validator(mode="after")
    def _keys_differ(self) -> ServeConfig:
        named = {key.sha256: name for name, key in self.keys.items()}
        for name, key in self.keys.items():
            if named[key.sha256] != name:
                raise ValueError(f"keys {name!r} and {named[key.sha256]!r} have the same sha256; give each its own key")
        return self

    @property
    def running_limit(self) -> int:
        """Completions that one ingress replica has on the pools at a time."""
        if self.max_running is not None:
            return self.max_running
        return max(1, self.decode.replicas * self.decode.max_ongoing // self.ingress.replicas)


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
