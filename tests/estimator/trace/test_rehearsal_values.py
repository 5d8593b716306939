"""Rehearsals of programs that follow values which only a real run knows."""

import sys

import pytest
from rehearsed import rehearse, rehearse_beside_cpu, trains
from slow_cases import quick_every

pytest.importorskip("torch")

GENERATES = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel
dev = sys.argv[1]
model = GPT2LMHeadModel(GPT2Config(vocab_size=2000, n_embd=64, n_layer=2, n_head=2, n_positions=128, eos_token_id=1))
model.to(dev)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
ids = torch.randint(5, 100, (4, 10), device=dev)
for step in range(3):
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=40, pad_token_id=1, suppress_tokens=[1])
    assert out.shape == (4, 50), out.shape
    out = out.clamp(5)
    model(out, labels=out).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_generated_text_ends_at_its_length(program) -> None:
    pytest.importorskip("transformers")
    found = rehearse_beside_cpu(program(GENERATES), rel=0.02)
    assert {each.steps for each in found.answer.steps} == {3}


@pytest.mark.slow
def test_beams_are_searched_to_the_full_length(program) -> None:
    """The program itself asserts how long its text is, which a real run with such weights reaches, too."""
    pytest.importorskip("transformers")
    text = GENERATES.replace("40", "6").replace("50", "16").replace("[1])", "[1], num_beams=3)")
    found = rehearse([sys.executable, program(text), "cuda"])
    assert {each.steps for each in found.answer.steps} == {3}
    assert not any("is assumed" in warning for warning in found.warnings)


PARTLY_KNOWN = """
import torch, torch.nn as nn
net = nn.Linear(64, 64).cuda()
optimizer = torch.optim.LBFGS(net.parameters(), line_search_fn="strong_wolfe")
def closure():
    optimizer.zero_grad()
    loss = net(torch.randn(512, 64).cuda()).square().mean()
    loss.backward()
    return loss
for step in range(3):
    optimizer.step(closure)
    unknown = torch.rand(8, device="cuda") > 0.5
    true = torch.ones(8, device="cuda", dtype=torch.bool)
    false, ones = ~true, true.long()
    {}
"""


CLAIMS = (
    "(unknown | true).all()",
    "not (unknown & false).any()",
    "(unknown | True).all() and not (unknown & False).any()",
    "(~(unknown & false)).all()",
    "(ones & ~(unknown | true)).max() == 0",
    "(unknown.sum() <= 8) and (unknown.sum() >= 0)",
    "not (ones * unknown == 2).any() and (ones * unknown != 2).all()",
    "((1 - unknown.long() * ones) >= 0).all()",
    "torch.cat([unknown, true]).any() and not torch.cat([unknown, false]).all()",
    "false.logical_or_(unknown).logical_or_(true).all()",
    "(unknown | true)[3:].cpu().all()",
    "unknown.logical_or(true).long().sum().item() == 8",
    "torch.cat([torch.ones_like(unknown), unknown.new_ones((2,))]).all()",
    "torch.ones((4, 2), device='cuda', dtype=torch.long).sum() == 8",
)


def test_what_is_known_of_unknown_values_is_followed(program) -> None:
    text = PARTLY_KNOWN.format("\n    ".join(f"assert {claim}" for claim in CLAIMS))
    found = rehearse([sys.executable, program(text), "cuda"])
    assert {each.steps for each in found.answer.steps} == {3}
    asserted = {f"train.py:{15 + at} " for at in range(len(CLAIMS))}
    assert not any(line in each for each in found.answer.doubts for line in asserted)


def test_bounds_end_where_a_tensor_is_written_into(program) -> None:
    lines = (
        "most = true & (torch.arange(8, device='cuda') > 3) | unknown",
        "assert most[5]",
        "most[4:].copy_(torch.rand(4, device='cuda') > 0.5)",
        "if most[5]: pass",
    )
    found = rehearse([sys.executable, program(PARTLY_KNOWN.format("\n    ".join(lines))), "cuda"])
    assert any("train.py:18 branches on a value" in each for each in found.answer.doubts)


GOES_ON = trains("out = net(torch.randn(512, 64).to(dev))\n{}\nout.square().mean().backward()")


@pytest.mark.parametrize(
    "lines",
    quick_every(
        3,
        [
            "assert (out[:, 2:] >= out[:, :62]).all()",
            "assert not (out[:, 2:] < out[:, :62]).any() and out.ndim == 2, 'no boxes'",
            "if not (out > 0).all(): raise ValueError('bad')",
            "if (out > 0).any() or (out < 0).any(): exit(1)",
            "if out.min() < -1 or out.max() > 1: raise ValueError('no picture')",
            "if not out.is_cuda or (out[:, 0] > 0).sum() != 512 or out.ndim != 2: raise ValueError('shapes')",
            "torch._check_tensor_all_with(ValueError, out > 0)",
            "torch.autograd.set_detect_anomaly(True); assert torch.cuda.memory_stats()['segment.all.current'] >= 0",
            "if len(torch.unique(out.argmax(dim=1))) > 64: raise ValueError('more classes than there are')",
            "if len(torch.unique(out.argmin())) > 1: raise ValueError('more values than there are')",
        ],
    ),
)
def test_the_author_s_checks_of_values_pass(program, lines: str) -> None:
    found = rehearse([sys.executable, program(GOES_ON.format(lines)), "cuda"])
    assert {each.steps for each in found.answer.steps} == {3}
    assert not any("branches on a value" in each for each in found.answer.doubts)


def test_one_of_many_values_is_true_unless_the_program_then_leaves(program) -> None:
    lines = (
        "some = (out > 0).any()",
        "if some: kept = out * 2",
        "assert kept.shape == out.shape",
        "for turn in range(4):",
        "    if (out > 1).any(): break",
        "assert turn == 3",
    )
    found = rehearse([sys.executable, program(GOES_ON.format("\n    ".join(lines))), "cuda"])
    assert {each.steps for each in found.answer.steps} == {3}
    assert [each[-14:] for each in found.answer.doubts] == ["yes is assumed", " no is assumed"]


def test_a_mask_that_is_written_into_at_known_places_has_as_many_elements_at_most(program) -> None:
    lines = (
        "chosen = torch.arange(512).cuda() < 42",
        "chosen[chosen.clone()] = torch.rand(42, device='cuda') > 0.5",
        "out = out[chosen] * torch.ones(42, 1, device='cuda')",
    )
    found = rehearse([sys.executable, program(GOES_ON.format("\n    ".join(lines))), "cuda"])
    assert {each.steps for each in found.answer.steps} == {3}
    assert any("train.py:10 makes a tensor whose size depends on values" in each for each in found.answer.doubts)


LOOP = trains("net(torch.randn(512, 64).to(dev)).square().mean().backward()\nwhile {}:\n    pass")


@pytest.mark.parametrize(
    "condition",
    quick_every(
        4,
        [
            "not (torch.rand(8, device='cuda') > 0.2).all()",
            "torch.rand((), device='cuda').item() > 0.5",
            "torch.rand((), device='cuda').item() < 9",
            "(torch.rand(8, device='cuda') > 0.5).sum().item() > 0",
        ],
    ),
)
def test_a_loop_that_only_values_end_is_ended(program, condition: str) -> None:
    found = rehearse([sys.executable, program(LOOP.format(condition)), "cuda"])
    assert {each.steps for each in found.answer.steps} == {3}
    assert any("train.py:8 reads values in a loop" in each for each in found.answer.doubts)


def test_a_mask_takes_as_many_elements_as_its_sum_says(program) -> None:
    text = """
mask = torch.rand(2, 8, device=dev) > 0.5
kept = torch.randn(2, 8, 64, device=dev)[mask]
sum(net(each).square().sum() for each in kept.split(mask.sum(1).tolist())).backward()
"""
    found = rehearse([sys.executable, program(trains(text))])
    assert {each.steps for each in found.answer.steps} == {3}


SAMPLER = """
chosen = []
for labels in torch.randint(0, 2, (2, 4000), device=dev):
    masks = []
    for wanted, most in ((labels >= 1, 128), (labels == 0, 384)):
        places = torch.where(wanted)[0]
        places = places[torch.randperm(places.numel(), device=dev)[: min(places.numel(), most)]]
        mask = torch.zeros_like(labels, dtype=torch.uint8)
        mask[places] = 1
        masks.append(mask)
    chosen.append(torch.where(masks[0] | masks[1])[0])
rows = torch.cat([each[index] for each, index in zip(kept, chosen)])
assert rows.shape == (1024, 64), rows.shape
del chosen, labels, masks, wanted, places, mask
net(rows).exp().mean().backward()
"""


def test_what_a_sampler_marks_in_a_mask_of_zeros_is_counted(program) -> None:
    rehearse_beside_cpu(program(trains(SAMPLER, "nn.Linear(64, 256)", "kept = torch.rand(2, 4000, 64, device=dev)")))


def test_a_known_mask_selects_as_many_of_unknown_values(program) -> None:
    text = """
mask = torch.arange(5).to(dev) < lengths.to(dev).unsqueeze(1)
predicted = net(torch.randn(3, 5, 4).to(dev)).squeeze(-1).masked_select(mask)
target = torch.randn(3, 5).to(dev).masked_select(mask)
nn.functional.mse_loss(predicted, target).backward()
"""
    lengths = "lengths = torch.tensor([3, 5, 2])"
    assert not rehearse([sys.executable, program(trains(text, "nn.Linear(4, 1)", lengths))]).warnings


PLACED = """
class Placed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.ones(2048, 512))
        places = self.rows.new_zeros((3072,), dtype=torch.bool).view(3, -1)
        places[[True, False, True], :] = True
        self.places = places.view(-1)
    def forward(self, x):
        whole = self.rows.new_zeros((len(self.places), 512))
        whole[self.places] = self.rows
        return x @ whole.T
"""


def test_rows_that_a_mask_of_marked_parts_places(program) -> None:
    rehearse_beside_cpu(program(trains("net(torch.ones(8, 512, device=dev)).sum().backward()", "Placed()", PLACED)))


EXPERTS = """
wide, count, chosen, tokens = 128, 8, 2, 1024
class Experts(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form, self.router = form, nn.Linear(wide, count)
        make = lambda: nn.Sequential(nn.Linear(wide, 512), nn.SiLU(), nn.Linear(512, wide))
        self.experts = nn.ModuleList([make() for _ in range(count)])
    def forward(self, x):
        weights, places = self.router(x).softmax(-1).topk(chosen)
        return x + self.form(x, weights, places, torch.zeros_like(x), self.experts)
def of_each_place(x, weights, places, y, experts):
    for at, expert in enumerate(experts):
        token, rank = torch.where(places == at)
        y.index_add_(0, token, expert(x[token]) * weights[token, rank, None])
    return y
def of_places_that_are_hit(x, weights, places, y, experts):
    masks = nn.functional.one_hot(places, num_classes=count).permute(2, 1, 0)
    for at in torch.greater(masks.sum(dim=(-1, -2)), 0).nonzero():
        rank, token = torch.where(masks[at].squeeze(0))
        y.index_add_(0, token, experts[int(at)](x[None, token].reshape(-1, wide)) * weights[token, rank, None])
    return y
def of_any_rank(x, weights, places, y, experts):
    for at, expert in enumerate(experts):
        mask = (places == at).any(dim=-1)
        if mask.any():
            y[mask] += expert(x[mask])
    return y
def sorted_by(counts):
    def run(x, weights, places, y, experts):
        order, counted = places.view(-1).argsort(stable=True), counts(places, weights)
        parts = zip(experts, x[order // chosen].split(counted, dim=0))
        made = torch.cat([expert(part) for expert, part in parts])
        return y.index_add(0, order // chosen, made * weights.view(-1)[order, None])
    return run
COUNTS = (
    lambda places, _: places.view(-1).bincount(minlength=count).tolist(),
    lambda places, _: torch.histc(places.view(-1).float(), bins=count, min=0, max=count - 1).int().tolist(),
    lambda places, _: places.new_zeros((tokens, count)).scatter_(1, places, 1).sum(0).cpu().numpy().tolist(),
    lambda places, w: (w.new_zeros(tokens, count).scatter(1, places, w) > 0).sum(0).tolist(),
)
forms = [of_each_place, of_places_that_are_hit, of_any_rank, *map(sorted_by, COUNTS)]
torch.manual_seed(0)
"""


def test_experts_in_a_loop_share_the_tokens_equally(program) -> None:
    lines = "net(torch.randn(tokens, wide, device=dev)).square().mean().backward()"
    net = "nn.Sequential(*(Experts(form) for form in forms))"
    found = rehearse_beside_cpu(program(trains(lines, net, EXPERTS)))
    assert any("each expert is assumed to get an equal share" in each for each in found.answer.doubts)
    assert not any("largest is assumed" in each for each in found.answer.doubts)
    assert found.budget.peak.allocated_range.high_bytes > found.allocated_bytes * 1.05


def test_shares_that_no_size_depends_on_are_no_doubt(program) -> None:
    text = """
x, labels = torch.randn(256, 64, device=dev), torch.arange(256).to(dev)
weights, places = net(x).softmax(-1).max(-1)
ends = torch.histc(places.float(), bins=8, min=0, max=7).cumsum(0)
y = (x[places.argsort()] @ experts[0]) * weights[:, None]
assert int((labels != -100).sum()) == 256 and not labels.is_shared()
is_bad = y.mean().isnan() | y.mean().isinf()
if is_bad:
    continue
y.square().mean().backward()
"""
    experts = "experts = nn.Parameter(torch.randn(8, 64, 64, device=dev))"
    both = "SGD([*net.parameters(), experts], 0.01)"
    assert not rehearse([sys.executable, program(trains(text, "nn.Linear(64, 8)", experts, both))]).warnings


ANSWERS = """
import os, sys, torch
_, width = os.popen("stty size", "r").read().split()
columns = os.get_terminal_size().columns - int(width)
dev = torch.device(sys.argv[1])
model = torch.nn.Linear(256, 10).to(dev)
optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler(dev.type)
right = columns
for _ in range(3):
    labels = torch.randint(0, 10, (64,)).to(dev)
    logits = model(torch.randn(64, 256).to(dev))
    scaler.scale(torch.nn.functional.cross_entropy(logits, labels)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**16
    torch.save(scaler.state_dict(), "scaler.pt")
    right += logits.max(1)[1].eq(labels).sum().item() + (logits.argmax(1) == labels).sum().item()
"""


def test_right_answers_and_steps_are_counted_without_a_doubt_also_beside_a_bar_as_wide_as_the_terminal(program) -> None:
    assert rehearse([sys.executable, program(ANSWERS), "cuda"]).answer.doubts == []


def test_shares_end_where_a_tensor_is_written_into_and_no_number_overflows(program) -> None:
    lines = (
        "scores = torch.rand(64, 8, device='cuda')",
        "assert not scores.isnan().any() and scores.isinf().sum() == 0",
        "finite, loss = scores.isfinite(), scores.mean()",
        "assert loss.isfinite() and finite.all() and not (~finite).any() and finite.sum() == 512",
        "chances = scores.softmax(-1)",
        "assert chances[3].tolist() == [0.125] * 8 and chances[:, :4].max().cpu().numpy() > 0",
        "weights, experts = scores.topk(2)",
        "mine = (experts == 3).any(-1)",
        "assert weights[mine][experts[mine] == 3].shape == (16,)",
        "chosen = torch.zeros(64, 8, device='cuda').scatter(1, scores.topk(2).indices, 1.0)",
        "assert (chosen > 0).nonzero().shape == (128, 2)",
        "chosen[:32] = torch.rand(32, 8, device='cuda')",
        "assert (chosen > 0).nonzero().shape == (512, 2)",
        "state = torch.zeros(64, 8, device='cuda')",
        "torch._foreach_add_([state], [scores])",
        "assert state.nonzero().shape == (512, 2)",
    )
    rehearse([sys.executable, program(PARTLY_KNOWN.format("\n    ".join(lines))), "cuda"])


@pytest.mark.slow
def test_torchs_own_encoder_evaluates_padded_sequences_and_knows_its_causal_mask(program) -> None:
    lines = (
        "layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)",
        "encoder = nn.TransformerEncoder(layer, 2).cuda().eval()",
        "with torch.no_grad(): made = encoder(torch.randn(2, 8, 64).cuda(), src_key_padding_mask=unknown.expand(2, 8))",
        "assert made.shape == (2, 8, 64)",
        "packed = nn.utils.rnn.pack_padded_sequence(torch.ones(2, 8).long().cuda(), [8, 3], batch_first=True)",
        "assert packed.data.shape == (11,) and packed.batch_sizes.tolist() == [2] * 3 + [1] * 5",
        "looks, hides = nn.modules.transformer._detect_is_causal_mask, nn.Transformer.generate_square_subsequent_mask",
        "assert looks(hides(100).cuda()) and looks(hides(100, device='cuda'))",
        "window = torch.hann_window(64, device='cuda')",
        "waves = torch.stft(torch.randn(2, 640, device='cuda'), 64, 16, window=window, return_complex=True)",
        "assert torch.istft(waves, 64, 16, window=window).shape == (2, 640)",
    )
    rehearse([sys.executable, program(PARTLY_KNOWN.format("\n    ".join(lines))), "cuda"])


STOPS_EARLY = """
import torch, torch.nn as nn
policy, value = nn.Linear(64, 256).cuda(), nn.Linear(64, 1).cuda()
first, second = torch.optim.Adam(policy.parameters()), torch.optim.Adam(value.parameters())
for step in range(99):
    states = torch.randn(32, 64, device="cuda")
    divergence = policy(states).square().mean()
    if divergence.item() < 0.015:
        divergence.backward()
        first.step()
    value(states).mean().backward()
    second.step()
"""


def test_an_optimizer_that_an_assumed_value_keeps_from_stepping_is_named(program) -> None:
    doubts = rehearse([sys.executable, program(STOPS_EARLY)]).answer.doubts
    assert any("(Adam of 16,640 parameters) did not step while another did 60 times" in each for each in doubts)
