from __future__ import annotations

import pytest

from elasmo.simulate.accelerator import accelerator
from elasmo.simulate.calibration import default_calibration
from elasmo.simulate.cluster import group, parse_cluster
from elasmo.simulate.collectives import Links, Span
from elasmo.simulate.published import read_table

CALIBRATION = default_calibration()


def links(name: str = "H100", count: int = 1024) -> Links:
    return Links(group(accelerator(name), count), CALIBRATION)


def test_one_rank_needs_no_communication() -> None:
    assert links().all_reduce(Span(1), 1e9) == links().all_gather(Span(1), 1e9) == links().all_to_all(Span(1), 1e9) == 0


def test_an_all_reduce_moves_twice_what_a_gather_moves() -> None:
    assert links().all_reduce(Span(8), 1e9) == pytest.approx(2 * links().all_gather(Span(8), 1e9), rel=0.01)


def test_the_network_is_shared_by_as_many_links_as_a_domain_has_members() -> None:
    together, alone = links().all_gather(Span(64), 1e10), links().all_gather(Span(8, 8), 1e10)
    assert alone / together == pytest.approx(8, rel=0.05)


def test_large_all_reduces_take_the_time_that_was_measured() -> None:
    """Vidur's H100 and A100 hosts with an NVLink switch, 64 MiB."""
    wanted = ("all_reduce", str(64 << 20), "8", "8")
    columns = ("collective", "size_bytes", "num_workers", "devices_per_node")
    rows = [row for row in read_table("S04_vidur_collectives_a100_h100") if tuple(map(row.get, columns)) == wanted]
    assert {row["node"] for row in rows} == {"a100_dgx", "h100_dgx"}
    for row in rows:
        got = links(row["node"].split("_")[0]).all_reduce(Span(8), 64 << 20)
        assert got == pytest.approx(float(row["median_ms"]) / 1e3, rel=0.25), row["node"]


def test_tokens_that_go_to_many_experts_cross_the_network_once_a_host() -> None:
    spread = links().all_to_all(Span(64), 8e9, copies=8)
    assert spread < 0.8 * links().all_to_all(Span(64), 8e9, copies=1)


def test_a_torus_gathers_over_all_its_dimensions() -> None:
    assert links("TPU v5p").all_gather(Span(512), 1e10) < 0.6 * links("TPU v5e").all_gather(Span(256), 1e10)


def test_an_nvl72_domain_keeps_a_group_of_64_off_the_network() -> None:
    inside, outside = (Links(parse_cluster(text).groups[0], CALIBRATION) for text in ("64xGB200", "64xB200"))
    assert inside.all_to_all(Span(64), 1e9) < 0.25 * outside.all_to_all(Span(64), 1e9)
