"""Serve's request router with prefix affinity: a shell around `affinity`. It runs in the process of the caller."""

from __future__ import annotations

from typing import Any

from ray.serve._private.common import ReplicaID
from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter
from ray.serve._private.request_router.common import PendingRequest
from ray.serve._private.request_router.replica_wrapper import RunningReplica
from ray.serve._private.request_router.request_router import LocalityMixin, MultiplexMixin, RequestRouter

from elasmo.model.encoded import Encoded
from elasmo.serve.affinity import PrefixMap, prefer, prefix_digests


# Not Serve's first-in-first-out router: that one lets a request take the replica that was chosen for another.
class AffinityRouter(LocalityMixin, MultiplexMixin, RequestRouter):
    """Calls whose first argument is a prompt prefer the replica that was sent its beginning; others any of two."""

    def initialize_state(self, prefixes: int = 4096, slack: int = 4) -> None:
        """Serve's hook for `request_router_kwargs`; see `PrefixMap` and `prefer`."""
        self._map: PrefixMap[ReplicaID] = PrefixMap(prefixes)
        self._slack = slack

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Groups of replicas, the preferred one first."""
        others = await PowerOfTwoChoicesRequestRouter.choose_replicas(self, candidate_replicas, pending_request)  # type: ignore[arg-type]
        prompt = _prompt(pending_request)
        if prompt is None:
            return list(others)
        holder, _ = self._map.find(prefix_digests(prompt))
        queues = {
            each.replica_id: self._replica_queue_len_cache.get(each.replica_id) or 0 for each in candidate_replicas
        }
        chosen = prefer(holder, queues, self._slack)
        if chosen is None:
            return list(others)
        return [[each for each in candidate_replicas if each.replica_id == chosen], *others]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Serve's hook, called when a replica took the request."""
        prompt = _prompt(pending_request)
        if prompt is not None:
            self._map.add(prefix_digests(prompt), replica_id)


def _prompt(request: PendingRequest | None) -> Encoded | None:
    first = request.args[0] if request is not None and request.args else None
    return first if isinstance(first, Encoded) else None
