"""Rehearsals of models that Megatron-FSDP shards, and of collectives that run as one."""

import sys
from importlib.util import find_spec

import pytest
from rehearsed import rehearse, trains

pytest.importorskip("torch")

TOGETHER = trains(
    """
net(torch.ones(1, 1024).to(dev)).sum().backward()
gathered = [torch.empty(2 * 1024, 1024).to(dev) for _ in range(2)]
with dist._coalescing_manager(async_ops=True) as together:
    for each in gathered:
        dist.all_gather_into_tensor(each, net.weight.grad)
together.wait()
""",
    "nn.Linear(1024, 1024, bias=False)",
    "import torch.distributed as dist\ndist.init_process_group('nccl')",
)
SHARDED = """
import torch, torch.distributed as dist, torch.nn as nn
from megatron_fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("nccl")
torch.cuda.set_device(0)
mesh = init_device_mesh("cuda", (2, 1), mesh_dim_names=("dp", "tp"))
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(512, 2048, bias=False), nn.Linear(2048, 512, bias=False)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))
net = nn.Sequential(*(Block() for _ in range(4))).cuda()
net, optimizer = fully_shard(
    net, torch.optim.AdamW(net.parameters()), device_mesh=mesh, dp_shard_dim="dp", tp_dim="tp",
    fsdp_unit_modules=[Block], zero_dp_strategy="optim_grads_params", mixed_precision_policy=MixedPrecisionPolicy(),
)
for _ in range(3):
    net(torch.randn(4, 128, 512).cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


def test_collectives_run_together_take_what_each_takes(program) -> None:
    found = rehearse([sys.executable, *TORCHRUN, program(TOGETHER)])
    assert found.answer.phases["optimizer step"].allocated >= 6 * 1024 * 1024 * 4


@pytest.mark.slow
def test_megatron_fsdp_keeps_shards_of_weights_gradients_and_states(program) -> None:
    if find_spec("megatron_fsdp") is None:
        pytest.skip("megatron_fsdp is not installed")
    found = rehearse([sys.executable, *TORCHRUN, program(SHARDED)])
    shard = 4 * 2 * 512 * 2048 * 4 // 2
    kept = found.answer.phases["optimizer step"].components
    assert [kept[name] for name in ("weights", "gradients", "optimizer")] == pytest.approx(
        [shard, shard, 2 * shard], rel=0.01
    )
    assert found.budget.job.parallel.strategy == "megatron-fsdp"
