"""Hosts of dcgm-exporter, from series in their documented form."""

import re

import msgspec

from vramtop.monitor.fleet.fleet import HostReading
from vramtop.monitor.fleet.prometheus.prometheus_fleet import dcgm_hosts
from vramtop.monitor.fleet.prometheus.series import Sample, Target

GIB, MIB = 2**30, 2**20
LINE = re.compile(r"(\w+)\{(.*)\} (\S+)")


def hosts(text: str, known: frozenset[str] = frozenset()) -> dict[str, HostReading]:
    """Read the hosts from lines of Prometheus' text format, all scraped by one target."""
    found: dict[str, list[Sample]] = {}
    for name, labels, value in LINE.findall(text):
        metric = dict(re.findall(r'(\w+)="(.*?)"', labels)) | {"job": "gpus"}
        metric.setdefault("instance", "10.0.0.7:9400")
        found.setdefault(name, []).append(msgspec.convert({"metric": metric, "value": [9.0, value]}, Sample))
    seen = {Target("", "gpus", each.metric.instance): 5.0 for samples in found.values() for each in samples}
    return {name: host for (_, name), host in dcgm_hosts(lambda m: found.get(m, []), seen, known).items()}


def test_dcgm_counts_in_mib_and_names_the_pod_that_has_the_gpu() -> None:
    labels = 'gpu="1",UUID="GPU-1",modelName="NVIDIA H100 80GB HBM3",Hostname="node7",{}'
    pod = labels.format('pod="dcgm-exporter-x7",exported_pod="train-0",exported_namespace="ann"')
    text = f"""
        DCGM_FI_DEV_FB_USED{{{pod}}} 30000
        DCGM_FI_DEV_FB_FREE{{{pod}}} 51000
        DCGM_FI_DEV_FB_RESERVED{{{pod}}} 559
    """
    (gpu,) = hosts(text)["node7"].gpus
    assert (gpu.index, gpu.uuid, gpu.name) == (1, "GPU-1", "NVIDIA H100 80GB HBM3")
    assert (gpu.used_bytes, gpu.free_bytes, gpu.reserved_bytes) == (30000 * MIB, 51000 * MIB, 559 * MIB)
    assert gpu.total_bytes == 81559 * MIB
    assert [(each.job, each.used_bytes, each.status) for each in gpu.processes or ()] == [("ann/train-0", None, None)]


def test_dcgms_own_pod_is_no_job_and_its_blank_value_no_figure() -> None:
    labels = 'gpu="0",UUID="GPU-0",Hostname="node7",pod="nvidia-dcgm-exporter-x7"'
    text = f"""
        DCGM_FI_DEV_FB_USED{{{labels}}} 12
        DCGM_FI_DEV_FB_FREE{{{labels}}} 9223372036854775794
    """
    (gpu,) = hosts(text)["node7"].gpus
    assert (gpu.used_bytes, gpu.free_bytes, gpu.total_bytes, gpu.processes) == (12 * MIB, None, None, None)
    assert hosts(text)["node7"].totals.unknown_gpus == 1


def test_dcgms_mig_devices_are_summed_up_for_their_gpu() -> None:
    each = 'gpu="0",UUID="GPU-0",Hostname="node7",GPU_I_PROFILE="3g.40gb",GPU_I_ID="{}",exported_pod="{}"'
    one, two = each.format(1, "a"), each.format(2, "b")
    text = f"""
        DCGM_FI_DEV_FB_USED{{{one}}} 1024
        DCGM_FI_DEV_FB_FREE{{{one}}} 39936
        DCGM_FI_DEV_FB_USED{{{two}}} 2048
        DCGM_FI_DEV_FB_FREE{{{two}}} 38912
    """
    (gpu,) = hosts(text)["node7"].gpus
    assert (gpu.used_bytes, gpu.total_bytes) == (3 * GIB, 80 * GIB)
    assert [(device.label, device.used_bytes) for device in gpu.devices] == [("0:1", GIB), ("0:2", 2 * GIB)]
    assert [process.job for process in gpu.processes or ()] == ["a", "b"]


def test_a_gpu_that_vramtop_exports_is_left_out() -> None:
    text = 'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-0",Hostname="node7"} 12'
    assert hosts(text, known=frozenset(("GPU-0",))) == {}


def test_control_characters_of_labels_are_not_shown() -> None:
    text = 'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-0",Hostname="no\x1b[31mde",modelName="a\x07b"} 1'
    ((name, host),) = hosts(text).items()
    assert name == "node"
    assert "\x07" not in (host.gpus[0].name or "")
