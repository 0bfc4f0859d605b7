"""Request records as Ray metrics, which Ray exports to Prometheus with the replica's tags."""

from __future__ import annotations

from ray.serve.metrics import Counter, Histogram

from elasmo.serve.request_record import RequestRecord

_MILLISECONDS: list[float] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000]


class Metrics:
    """The ingress's counters and histograms. Made inside a replica."""

    def __init__(self) -> None:
        self._requests = Counter("elasmo_serve_requests", "Finished requests.", ("status",))
        self._tokens = Counter("elasmo_serve_tokens", "Tokens by kind: prompt, completion.", ("kind",))
        self._kv_bytes = Counter("elasmo_serve_kv_bytes", "KV bytes handed from prefill to decode.")
        self._local = Counter("elasmo_serve_local", "Completions whose prompt ran in a decode replica.")
        self._retries = Counter("elasmo_serve_retries", "Prefill and decode calls repeated after a failure.")
        self._ttft = Histogram("elasmo_serve_ttft_ms", "Time to the first token, in ms.", boundaries=_MILLISECONDS)
        self._tpot = Histogram("elasmo_serve_tpot_ms", "Time per later token, in ms.", boundaries=_MILLISECONDS)

    def add(self, record: RequestRecord) -> None:
        """Counts one finished request."""
        self._requests.inc(1, {"status": str(record.status)})
        for kind, tokens in (("prompt", record.prompt_tokens), ("completion", record.completion_tokens)):
            if tokens:
                self._tokens.inc(tokens, {"kind": kind})
        if record.kv_bytes:
            self._kv_bytes.inc(record.kv_bytes)
        if record.local:
            self._local.inc(record.local)
        if record.retries:
            self._retries.inc(record.retries)
        if record.ttft_s is not None:
            self._ttft.observe(record.ttft_s * 1000)
        if record.tpot_s is not None:
            self._tpot.observe(record.tpot_s * 1000)
