"""Rehearsals of programs with weights and products of torchao, by its own Python."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from rehearsed import rehearse, rehearse_beside_cpu

pytest.importorskip("torch")
if find_spec("torchao") is None:
    pytest.skip("torchao is not installed", allow_module_level=True)

NET = """
import sys, torch, torch.nn as nn
dev, *real = sys.argv[1:]
net = nn.Sequential(nn.Linear(512, 2048, bias=False), nn.ReLU(), nn.Linear(2048, 512, bias=False))
net = net.to(device=dev, dtype=torch.bfloat16)
"""
NF4 = (
    NET
    + """
from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4
for layer in (net[0], net[2]):
    layer.weight = nn.Parameter(to_nf4(layer.weight.detach()), requires_grad=False)
inner = [getattr(each, name) for each in net.parameters() for name in each.__tensor_flatten__()[0]]
if dev == "cpu":
    print(sum(-(-each.nbytes // 512) * 512 for each in inner))
    sys.exit()
assert torch.cuda.memory_allocated() == int(*real), torch.cuda.memory_allocated()
assert net[0].weight.to("cpu").device.type == "cpu"
"""
)
STEPS = """
adapter = nn.Linear(512, 512, bias=False, device=dev, dtype=torch.bfloat16)
optimizer = torch.optim.SGD(adapter.parameters(), 0.1)
for _ in range(3):
    x = torch.randn(4, 512, dtype=torch.bfloat16, device=dev)
    with torch.no_grad():
        y = net(x)
    assert y.shape == (4, 512)
    (adapter(y) - x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FLOAT8 = (
    NET
    + """
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
convert_to_float8_training(net, config=Float8LinearConfig.from_recipe_name(*real))
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(3):
    net(torch.randn(4, 128, 512, dtype=torch.bfloat16, device=dev)).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)


def test_nf4_weights_take_what_they_take_on_the_cpu(program) -> None:
    name = program(NF4 + STEPS)
    real = subprocess.run([sys.executable, name, "cpu"], capture_output=True, text=True, check=True)
    found = rehearse([sys.executable, name, "cuda", real.stdout.split()[-1]])
    assert found.answer.trained == 512 * 512


@pytest.mark.parametrize("recipe", ["tensorwise", pytest.param("rowwise", marks=pytest.mark.slow)])
def test_training_in_float8_takes_what_it_takes_on_the_cpu(program, recipe: str) -> None:
    rehearse_beside_cpu(program(FLOAT8), recipe, rel=0.001)
