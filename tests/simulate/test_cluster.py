from __future__ import annotations

from pathlib import Path

import pytest

from elasmo.simulate.accelerator import HardwareError, accelerator
from elasmo.simulate.cluster import load_hardware, parse_cluster
from elasmo.simulate.fabric import Fabric, scale_up


def test_a_cluster_is_written_as_count_times_accelerator() -> None:
    cluster = parse_cluster("64xH100")
    assert (cluster.count, cluster.price_usd_h) == (64, 64 * 4.25)


def test_a_mixed_fleet_adds_its_groups_and_a_price_may_be_stated() -> None:
    cluster = parse_cluster("64xH100 + 32xA100@2.5")
    assert cluster.count == 96
    assert cluster.price_usd_h == 64 * 4.25 + 32 * 2.5
    assert parse_cluster("8xB200").price_usd_h is None


@pytest.mark.parametrize("text", ["H100", "0xH100", "64H100", "x", "64xH100+"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(HardwareError, match="not of the form COUNTxACCELERATOR, such as 64xH100"):
        parse_cluster(text)


def test_a_users_own_hardware_is_read_from_yaml(tmp_path: Path) -> None:
    path = tmp_path / "hardware.yaml"
    path.write_text(
        "accelerators:\n- {name: Mine, peak_tflops: {bf16: 500}, memory_gb: 64, memory_GBps: 2000}\n"
        "fleet:\n- {accelerator: mine, count: 16, price_usd_h: 1.5}\n"
        "- {accelerator: H100, count: 8, power_cap_w: 500, scale_out: {kind: fat-tree, GBps: 25, "
        "oversubscription: 2}}\n"
    )
    own, cluster = load_hardware(path)
    assert cluster is not None and cluster.count == 24
    assert accelerator("mine", own).peak("bf16") == 500e12
    assert cluster.groups[1].out.bandwidth == 25e9 and cluster.groups[1].chip.power_cap_w == 500


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("accelerators:\n- {name: Mine, peak_tflops: {bf16: 500}, hbm: 3}", "accelerators.0.hbm"),
        ("fleet:\n- {accelerator: H900, count: 1}", "accelerator=H900 is not known"),
        ("accelerators:\n- {name: Mine, peak_tflops: {fp6: 500}}", "dtype=fp6 is not known"),
        (": :", "cannot be read"),
    ],
)
def test_a_hardware_yaml_with_a_mistake_is_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "hardware.yaml"
    path.write_text(text)
    with pytest.raises(HardwareError, match=reason):
        load_hardware(path)


def test_a_torus_uses_all_links_and_optical_switches_close_small_slices() -> None:
    plain = Fabric("torus3d", 10.0, 1e-6, 4096, full=(16, 16, 16))
    optical = Fabric("torus3d", 10.0, 1e-6, 4096, full=(16, 16, 16), reconfigurable=True)
    assert plain.slice_shape(64) == (4, 4, 4)
    assert plain.ring_bandwidth(64) == 30.0  # three open dimensions, one way
    assert optical.ring_bandwidth(64) == 60.0  # three rings, both ways
    assert plain.ring_bandwidth(4096) == 60.0


def test_an_oversubscribed_tree_is_slow_only_beyond_a_leaf() -> None:
    tree = Fabric("fat-tree", 40.0, 1e-6, 1 << 30, oversubscription=4, rails=8)
    assert (tree.ring_bandwidth(8), tree.ring_bandwidth(64)) == (40.0, 10.0)


def test_tpu_v4_has_optical_switches_and_v5e_has_not() -> None:
    assert scale_up(accelerator("TPU v4")).reconfigurable
    assert not scale_up(accelerator("TPU v5e")).reconfigurable
