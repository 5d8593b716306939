"""Rehearsals of programs with sparse tensors."""

import sys

import pytest
from rehearsed import rehearse, rehearse_beside_cpu, trains
from slow_cases import quick_every

from vramtop.estimator.common.errors import CannotTellError

pytest.importorskip("torch")

EMBEDDING = """
import sys, torch, torch.nn as nn
dev = sys.argv[1]
torch.manual_seed(0)
embedding, out = nn.Embedding(20000, 256, sparse=True).to(dev), nn.Linear(256, 8).to(dev)
optimizers = torch.optim.{}, torch.optim.SGD(out.parameters(), 0.1)
for step in range(3):
    ids = torch.arange(step, 20000, 2)[:6000].reshape(60, 100).to(dev)
    loss = out(embedding(ids)).square().mean()
    loss.backward()
    assert embedding.weight.grad.is_sparse and embedding.weight.grad.device.type == dev
    for each in optimizers:
        each.step()
        each.zero_grad()
"""
BAGS = """
import sys, torch, torch.nn as nn
dev = sys.argv[1]
bag, out = nn.EmbeddingBag(20000, 256, mode="sum", sparse=True).to(dev), nn.Linear(256, 8).to(dev)
optimizers = torch.optim.SGD(bag.parameters(), 0.1), torch.optim.SGD(out.parameters(), 0.1)
for step in range(3):
    ids = torch.arange(step, 20000, 2)[:6000].to(dev)
    out(bag(ids, torch.arange(0, 6000, 2).to(dev))).square().mean().backward()
    for each in optimizers:
        each.step()
        each.zero_grad()
"""
GRAPH = trains(
    """
h = torch.relu(torch.spmm(adjacency, net[0](x)))
h = torch.sparse.mm(other.coalesce(), net[1](h))
h.square().mean().backward()
""",
    "nn.ModuleList([nn.Linear(64, 256), nn.Linear(256, 16)])",
    """
index = torch.stack([torch.arange(4000) // 4, torch.arange(4000) % 1000])
adjacency = torch.sparse_coo_tensor(index, torch.ones(4000), (1000, 1000)).to(dev)
other = torch.sparse_coo_tensor(index.clone().to(dev), torch.ones(4000, device=dev), (1000, 1000), device=dev)
x = torch.randn(1000, 64, device=dev)
""",
    "Adam(net.parameters())",
)
COMPRESSED = trains(
    """
h = torch.relu(made @ net[0](x))
h = torch.sparse.mm(moved, net[1](h))
h = torch.addmm(net[2](h), kept, h) + torch.mm(made.t(), h) + (h.t() @ moved).t()
h.square().mean().backward()
""",
    "nn.ModuleList([nn.Linear(64, 1024), nn.Linear(1024, 16), nn.Linear(16, 16)])",
    """
ends, columns = torch.arange(0, 4001, 4, device=dev), torch.arange(4000, device=dev) % 1000
made = torch.sparse_csr_tensor(ends, columns, torch.ones(4000, device=dev), (1000, 1000), device=dev)
moved = torch.eye(1000).to_sparse_csr().to(dev)
kept = torch.sparse_coo_tensor(torch.stack([columns, columns]), torch.ones(4000, device=dev), (1000, 1000))
kept = kept.coalesce().to_sparse_csr()
assert made.layout is moved.layout is kept.layout is torch.sparse_csr
assert moved.device.type == dev and moved.values().shape == (1000,)
x = torch.randn(1000, 64, device=dev)
""",
    "Adam(net.parameters())",
)
DENSE = trains(
    "torch.sparse.mm(dense, net.weight).sum().backward()",
    before="""
dense = torch.eye(64, device=dev).square().to_sparse_csr()
assert dense.values().shape == (64 * 64,) and dense.to_sparse_csc().ccol_indices().shape == (65,)
""",
)


@pytest.mark.parametrize(
    "text",
    quick_every(
        5,
        [
            EMBEDDING.format("SparseAdam(embedding.parameters())"),
            EMBEDDING.format("SGD(embedding.parameters(), 0.1)"),
            EMBEDDING.format("Adagrad(embedding.parameters())"),
            BAGS,
            GRAPH,
            COMPRESSED,
        ],
    ),
    ids=["SparseAdam", "SGD", "Adagrad", "bags", "graph", "compressed"],
)
def test_sparse_tensors_take_what_their_parts_take(program, text: str) -> None:
    found = rehearse_beside_cpu(program(text))
    assert found.answer.steps[0].steps == 3


def test_a_dense_matrix_on_the_gpu_has_as_many_elements_as_it_can_once_it_is_compressed(program) -> None:
    found = rehearse([sys.executable, program(DENSE)])
    assert any("train.py:3 makes a sparse tensor whose elements depend on values" in each for each in found.warnings)


def test_the_product_of_two_compressed_matrices_ends_with_a_sentence(program) -> None:
    text = "import torch\na = torch.eye(4).to_sparse_csr().cuda()\na @ a\n"
    with pytest.raises(CannotTellError, match="cannot rehearse products of two compressed sparse matrices"):
        rehearse([sys.executable, program(text)])


def test_the_dense_gradient_of_a_sparse_matrix_is_counted_and_not_made(program) -> None:
    """Masking it would run for real on the host, which has no 37 GiB."""
    text = """
import torch
index = torch.stack([torch.arange(1000), torch.arange(1000)])
sparse = torch.sparse_coo_tensor(index, torch.ones(1000), (100_000, 100_000)).cuda().requires_grad_()
torch.sparse.mm(sparse, torch.ones(100_000, 8, device="cuda", requires_grad=True)).sum().backward()
"""
    assert rehearse([sys.executable, program(text)]).allocated_bytes >= 4 * 100_000**2
