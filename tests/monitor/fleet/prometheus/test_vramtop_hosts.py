"""What is read from the metrics of vramtop export, from series in their documented form."""

import re

import msgspec

from vramtop.monitor.fleet.prometheus.series import Sample, Target
from vramtop.monitor.fleet.prometheus.vramtop_hosts import vramtop_hosts

PROCESS = 'uuid="GPU-0",index="0",pid="7",job_name="sft",user="ann"'
SERIES = f"""
    vramtop_host_info{{host="node1"}} 1
    vramtop_sampler_up{{}} 1
    vramtop_host_fault{{reason="NOT_LISTED"}} 1
    vramtop_gpu_info{{uuid="GPU-0",index="0",name="H100"}} 1
    vramtop_gpu_memory_used_bytes{{uuid="GPU-0",index="0"}} 1000
    vramtop_gpu_fault{{uuid="GPU-1",index="1",field="",reason="GPU_IS_LOST"}} 1
    vramtop_gpu_fault{{uuid="GPU-2",index="2",field="",reason="ASLEEP"}} 1
    vramtop_process_memory_used_bytes{{{PROCESS}}} 1000
    vramtop_process_memory_full_seconds{{{PROCESS}}} 1800
    vramtop_process_status{{{PROCESS},vramtop_process_status="growing"}} 1
"""


def ask(query: str) -> list[Sample]:
    """Answer a query for one metric, with the matcher that it may have for its field."""
    name = re.match(r"\w+", query)
    assert name is not None
    found = []
    for metric, labels, value in re.findall(r"(\w+)\{(.*)\} (\S+)", SERIES):
        if metric == name[0] and 'field!=""' not in query:
            facts = dict(re.findall(r'(\w+)="(.*?)"', labels)) | {"instance": "node1:9000", "job": "vramtop"}
            found.append(msgspec.convert({"metric": facts, "value": [9.0, value]}, Sample))
    return found


def test_lost_gpus_and_the_time_to_a_full_one_are_read() -> None:
    (host,) = vramtop_hosts(ask, {Target("", "vramtop", "node1:9000"): 9.0}).values()
    assert [gpu.is_lost for gpu in host.gpus] == [False, True, False]
    assert [gpu.processes is None for gpu in host.gpus] == [False, True, True]
    assert [process.full_seconds for process in host.gpus[0].processes or ()] == [1800.0]
    assert host.unlisted == ("NOT_LISTED",)
    assert host.gpus[1].fault == (
        "it no longer answers; the host's kernel log says why, and it needs a reset or a reboot (GPU_IS_LOST)"
    )
