"""A Ray cluster of several raylets on this machine, so that losing a node can be tried for real."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import ray
from ray.cluster_utils import Cluster

from elasmo.config import RayConfig


class LocalCluster:
    """Raylets on this machine, each with `cpus_per_node` CPUs and one `trainer`; a context manager.

    The first raylet is the head: driver, dashboard, run state and the training controller live there. The others can be
    killed like machines.
    """

    def __init__(self, config: RayConfig, dashboard: bool = True) -> None:
        os.makedirs("/tmp/ray", exist_ok=True)
        self.config = config
        health = {
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": config.health_check_period_ms,
            "health_check_timeout_ms": config.health_check_timeout_ms,
            "health_check_failure_threshold": config.health_check_failures,
        }
        head: dict[str, Any] = {"include_dashboard": dashboard, "_system_config": health, **self._node()}
        if dashboard:
            head["dashboard_port"] = 0  # any free port
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._others = [self._cluster.add_node(**self._node()) for _ in range(config.nodes - 1)]

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def connect(self) -> str:
        """Joins this process to the cluster as a driver on the head; returns host:port of the dashboard, "" without."""
        context = ray.init(address=self.address, logging_level=logging.WARNING, log_to_driver=False)
        return str(context.dashboard_url or "")

    def add_node(self) -> str:
        """Starts one more raylet; call it from the main thread. Returns its node id."""
        node = self._cluster.add_node(**self._node())
        self._others.append(node)
        return str(node.node_id)

    def kill_node(self) -> tuple[str, float]:
        """Kills the newest raylet and its workers as a power cut would.

        Returns:
            Its node id and the time of the kill, in unix seconds.
        """
        node = self._others.pop()
        killed = time.time()
        self._cluster.remove_node(node, allow_graceful=False)
        return str(node.node_id), killed

    def close(self) -> None:
        """Ends the driver's connection and every process that this object started."""
        ray.shutdown()
        self._cluster.shutdown()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _node(self) -> Mapping[str, Any]:
        return {
            "num_cpus": self.config.cpus_per_node,
            "resources": {"trainer": 1},
            "object_store_memory": self.config.object_store_mb << 20,
        }
