"""Random training programs of PyTorch, as text: ``random_program(seed)``."""

from __future__ import annotations

import re
from random import Random

ACTIVATIONS = """
ReLU ReLU6 LeakyReLU(0.2) ELU CELU SELU SiLU Hardswish Hardtanh Hardsigmoid Mish GELU GELU('tanh') Sigmoid Tanh
Softplus Softsign LogSigmoid Softshrink Hardshrink Tanhshrink PReLU Threshold(0.1,0.0) RReLU
""".split()  # noqa: SIM905 - shorter
IN_PLACE = {"ReLU", "ReLU6", "LeakyReLU", "ELU", "CELU", "SELU", "SiLU", "Hardswish", "Hardtanh", "Hardsigmoid", "Mish"}
OPTIMIZERS = (
    "SGD(P, 0.01, foreach=B)",
    "SGD(P, 0.01, momentum=0.9, nesterov=True, foreach=B)",
    "SGD(P, 0.01, momentum=0.9, weight_decay=0.1, foreach=B)",
    "Adam(P, foreach=B)",
    "Adam(P, amsgrad=True, foreach=B)",
    "Adam(P, weight_decay=0.1, foreach=B)",
    "AdamW(P, foreach=B)",
    "AdamW(P, amsgrad=True, foreach=B)",
    "NAdam(P, foreach=B)",
    "RAdam(P, foreach=B)",
    "Adamax(P, foreach=B)",
    "Adadelta(P, foreach=B)",
    "Adagrad(P, foreach=B)",
    "RMSprop(P, foreach=B)",
    "RMSprop(P, momentum=0.9, centered=True, foreach=B)",
    "Rprop(P, foreach=B)",
    "ASGD(P, foreach=B)",
    "Adafactor(P, foreach=B)",
    "LBFGS(P, max_iter=2, history_size=3)",
)
HEAD = """
import copy, sys, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
dev = sys.argv[1]
torch.manual_seed(0)
"""


class _Writer:
    """Writes a network layer by layer; ``shape`` is that of ``x`` without the batch."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.layers: list[str] = []
        self.lines: list[str] = []
        self.may_overwrite = False
        """Nothing that was saved for the backward pass is overwritten if ``x`` is."""

    def layer(self, made: str) -> str:
        self.layers.append(f"nn.{made}")
        return f"self.l[{len(self.layers) - 1}]"

    def call(self, made: str, may_overwrite: bool = False) -> None:
        self.lines.append(f"x = {self.layer(made)}(x)")
        self.may_overwrite = may_overwrite

    def activation(self) -> None:
        chosen = self.random.choice(ACTIVATIONS)
        name, _, rest = chosen.partition("(")
        words = [rest.rstrip(")")] if rest else []
        if self.may_overwrite and name in IN_PLACE and self.random.random() < 0.5:
            words.append("inplace=True")
        self.call(f"{name}({', '.join(words)})")

    def dropout(self, kind: str = "Dropout") -> None:
        in_place = ", inplace=True" if self.may_overwrite and self.random.random() < 0.3 else ""
        self.call(f"{kind}({self.random.choice((0.1, 0.5))}{in_place})")

    def residual(self, block: list[str], how: str) -> None:
        """``x`` and what a block makes of it."""
        name = f"h{len(self.lines)}"
        self.lines += [f"{name} = x", *block, how.format(name)]
        self.may_overwrite = "torch.cat" in how or " + " in how


def _spatial(w: _Writer, shape: list[int]) -> list[int]:  # noqa: PLR0912, PLR0915 - one branch for each layer
    """Layers over (channels, sizes...) with 1, 2 or 3 sizes."""
    random, n = w.random, len(shape) - 1
    c, *sizes = shape
    act = random.random() < 0.4
    choice = random.choice(
        ["conv"] * 5 + ["transposed", "norm", "norm", "group", "instance", "max", "avg", "adaptive", "pad", "up",
                        "shuffle", "dropout", "residual", "cat", "act", "channels"]
    )  # fmt: skip
    o = random.choice((8, 16, 24, 32))
    if choice == "conv":
        k, s = random.choice((1, 3)), random.choice((1, 1, 2))
        groups = 8 if c % 8 == 0 and random.random() < 0.2 else 1
        bias = random.random() < 0.7
        mode = random.choice(("zeros", "zeros", "zeros", "reflect", "circular"))
        dilation = random.choice((1, 1, 2)) if k == 3 and s == 1 and min(sizes) > 4 else 1
        p = dilation * (k // 2)
        if min(sizes) <= p:
            mode = "zeros"
        w.call(f"Conv{n}d({c}, {o}, {k}, {s}, {p}, {dilation}, {groups}, {bias}, '{mode}')", True)
        shape = [o, *((size + 2 * p - dilation * (k - 1) - 1) // s + 1 for size in sizes)]
    elif choice == "transposed" and max(sizes) <= 16:
        w.call(f"ConvTranspose{n}d({c}, {o}, 4, 2, 1)", True)
        shape = [o, *(2 * size for size in sizes)]
    elif choice == "norm":
        w.call(f"BatchNorm{n}d({c})", True)
    elif choice == "group" and c % 4 == 0:
        w.call(f"GroupNorm(4, {c})", True)
    elif choice == "instance" and max(sizes) > 1:
        w.call(f"InstanceNorm{n}d({c}, affine={random.random() < 0.5})")
    elif choice == "max" and min(sizes) >= 4:
        w.call(f"MaxPool{n}d(2)")
        shape = [c, *(size // 2 for size in sizes)]
    elif choice == "avg" and min(sizes) >= 4:
        w.call(random.choice((f"AvgPool{n}d(2)", f"LPPool{n}d(2, 2)")))
        shape = [c, *(size // 2 for size in sizes)]
    elif choice == "adaptive":
        w.call(f"Adaptive{random.choice(('Avg', 'Max'))}Pool{n}d(4)")
        shape = [c, *([4] * n)]
    elif choice == "pad" and min(sizes) > 1:
        w.call(f"{random.choice(('Zero', 'Reflection', 'Replication', 'Circular'))}Pad{n}d(1)", True)
        shape = [c, *(size + 2 for size in sizes)]
    elif choice == "up" and max(sizes) <= 16:
        mode = random.choice(("nearest", ("linear", "bilinear", "trilinear")[n - 1]))
        w.call(f"Upsample(scale_factor=2, mode='{mode}')", True)
        shape = [c, *(2 * size for size in sizes)]
    elif choice == "shuffle" and n == 2 and c % 4 == 0 and max(sizes) <= 16:
        w.call("PixelShuffle(2)")
        shape = [c // 4, *(2 * size for size in sizes)]
    elif choice == "channels" and n == 2 and c % 4 == 0:
        w.call("ChannelShuffle(4)")
    elif choice == "dropout":
        w.dropout(random.choice(("Dropout", f"Dropout{n}d", "AlphaDropout")))
    elif choice in ("residual", "cat"):
        first, second = w.layer(f"Conv{n}d({c}, {c}, 3, padding=1)"), w.layer(f"BatchNorm{n}d({c})")
        block = [f"x = F.relu({second}({first}(x)))"]
        if choice == "cat" and c <= 32:
            w.residual(block, "x = torch.cat([x, {}], 1)")
            shape = [2 * c, *sizes]
        else:
            w.residual(block, random.choice(("x = x + {}", "x = x * {}", "x = x - 0.5 * {}")))
    else:
        act = True
    if act:
        w.activation()
    return shape


def _tokens(w: _Writer, shape: list[int]) -> list[int]:
    """Layers over (length, channels)."""
    random = w.random
    length, c = shape
    act = random.random() < 0.3
    choice = random.choice(
        ["linear", "linear", "norm", "rms", "attention", "attention", "encoder", "gru", "lstm", "residual", "dropout",
         "cat", "act", "decoder"]
    )  # fmt: skip
    if choice == "linear":
        o = random.choice((32, 48, 64))
        w.call(f"Linear({c}, {o}, bias={random.random() < 0.7})", True)
        c = o
    elif choice in ("norm", "rms"):
        kind = "RMSNorm" if choice == "rms" else "LayerNorm"
        w.call(f"{kind}({c}, elementwise_affine={random.random() < 0.7})", choice == "norm")
    elif choice == "attention":
        drop = random.choice((0.0, 0.1))
        made = w.layer(f"MultiheadAttention({c}, 4, dropout={drop}, batch_first=True)")
        needs = random.choice(("need_weights=False", "need_weights=True", "average_attn_weights=False"))
        w.residual([f"x = {made}(x, x, x, {needs})[0]"], "x = x + {}")
    elif choice == "encoder":
        first = random.random() < 0.5
        activation = random.choice(("relu", "gelu"))
        w.call(
            f"TransformerEncoderLayer({c}, 4, {2 * c}, {random.choice((0.0, 0.1))}, '{activation}', batch_first=True,"
            f" norm_first={first})"
        )
    elif choice == "decoder":
        made = w.layer(f"TransformerDecoderLayer({c}, 4, {2 * c}, 0.1, batch_first=True)")
        w.lines.append(f"x = {made}(x, x)")
        w.may_overwrite = False
    elif choice in ("gru", "lstm") and length <= 16:
        both = random.random() < 0.3
        made = w.layer(f"{choice.upper()}({c}, 32, {random.choice((1, 2))}, batch_first=True, bidirectional={both})")
        w.lines.append(f"x = {made}(x)[0]")
        w.may_overwrite = False
        c = 64 if both else 32
    elif choice == "residual":
        first, second = w.layer(f"Linear({c}, {4 * c})"), w.layer(f"Linear({4 * c}, {c})")
        w.residual([f"x = {second}(F.gelu({first}(x)))"], "x = x + {}")
    elif choice == "cat" and c <= 64:
        made = w.layer(f"Linear({c}, 32)")
        w.residual([f"x = {made}(x)"], "x = torch.cat([x, {}], -1)")
        c += 32
    elif choice == "dropout":
        w.dropout()
    else:
        act = True
    if act:
        w.activation()
    return [length, c]


def random_program(seed: int) -> str:  # noqa: PLR0912, PLR0915 - in the order of the program
    """Return a program: ``train.py cpu|cuda``, which prints nothing and takes three steps of its optimizers."""
    random = Random(seed)  # noqa: S311 - the same program every time
    w = _Writer(random)
    batch = random.choice((4, 8, 16))
    kind = random.choice(("image", "image", "signal", "volume", "tokens", "tokens", "bag", "flat"))
    make = _tokens if kind == "tokens" else _spatial
    depth = random.randint(3, 9)
    if kind in ("tokens", "bag"):
        length = random.choice((8, 16, 32))
        vocabulary, c = random.choice((100, 500)), random.choice((32, 64))
        data = f"torch.randint(0, {vocabulary}, ({batch}, {length}), device=dev)"
        if kind == "bag":
            mode = random.choice(("sum", "mean", "max"))
            w.call(f"EmbeddingBag({vocabulary}, {c}, mode='{mode}')")
            shape, depth = [c], 0
        else:
            w.call(f"Embedding({vocabulary}, {c})")
            shape = [length, c]
    elif kind == "flat":
        shape, depth = [random.choice((32, 100, 200))], 0
        data = f"torch.randn({batch}, {shape[0]}, device=dev)"
    else:
        n = {"signal": 1, "image": 2, "volume": 3}[kind]
        shape = [random.choice((3, 8, 16)), *([{1: 64, 2: 16, 3: 8}[n]] * n)]
        data = f"torch.randn({batch}, {', '.join(map(str, shape))}, device=dev)"
    if random.random() < 0.3 and "randn" in data:
        data = data.replace(", device=dev)", ").to(dev)")
    starts: list[int] = []
    for _ in range(depth):
        starts.append(len(w.lines))
        if random.random() < 0.25:
            w.may_overwrite = False
        shape = make(w, shape)
    if kind == "image" and random.random() < 0.15 and min(shape[1:]) >= 2:
        w.call("Unfold(2, stride=2)")
        patches = (shape[1] // 2) * (shape[2] // 2)
        w.lines.append("x = x.transpose(1, 2)")
        shape = [patches, shape[0] * 4]
    dims = len(shape)
    if dims > 1:
        if random.random() < 0.5:
            w.lines.append("x = x.mean(1)" if kind == "tokens" or dims == 2 else "x = x.flatten(2).mean(2)")
            shape = [shape[-1] if kind == "tokens" or dims == 2 else shape[0]]
        else:
            w.call("Flatten()")
            total = 1
            for each in shape:
                total *= each
            shape = [total]
        w.may_overwrite = False
    (features,) = shape
    for _ in range(random.randint(0, 3)):
        o = random.choice((32, 64, 128))
        w.call(f"Linear({features}, {o})", True)
        features = o
        kind_of_norm = random.random()
        if kind_of_norm < 0.3:
            w.call(f"BatchNorm1d({features})", True)
        elif kind_of_norm < 0.4:
            w.call(f"LayerNorm({features})", True)
        w.activation()
        if random.random() < 0.3:
            w.dropout()
    classes = random.choice((2, 5, 10, 50))
    w.call(f"Linear({features}, {classes})", True)
    return HEAD + _network(w, random) + _training(random, data, batch, classes)


def _network(w: _Writer, random: Random) -> str:
    lines = [f"            {each},\n" for each in w.layers]
    text = (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.l = nn.ModuleList([\n"
    )
    text += "".join(lines) + "        ])\n"
    body = w.lines
    how = random.choice((None, None, "True", "False"))
    middle = random.randrange(1, len(body)) if len(body) > 1 else 0
    unsplit = {name for name in (line.split(" = ")[0] for line in body) if name.startswith("h")}
    for name in unsplit:  # a block and its residual stay together
        at = [index for index, line in enumerate(body) if re.search(rf"\b{name}\b", line)]
        if at and min(at) < middle <= max(at):
            middle = max(at) + 1
    if how and 0 < middle < len(body) and not any("inplace" in each for each in w.layers):
        run = "".join(f"        {each}\n" for each in body[:middle])
        rest = "".join(f"        {each}\n" for each in body[middle:])
        text += f"    def part(self, x):\n{rest}        return x\n"
        text += f"    def forward(self, x):\n{run}        return checkpoint(self.part, x, use_reentrant={how})\n"
    else:
        text += "    def forward(self, x):\n" + "".join(f"        {each}\n" for each in body) + "        return x\n"
    return text


def _training(random: Random, data: str, batch: int, classes: int) -> str:
    number = f"torch.randn({batch}, {classes}, device=dev)"
    share = f"torch.rand({batch}, {classes}, device=dev)"
    label = f"torch.randint(0, {classes}, ({batch},), device=dev)"
    sign = f"torch.randn({batch}, {classes}, device=dev).sign()"
    loss = random.choice([
        ("MSELoss()", "y, " + number), ("L1Loss()", "y, " + number), ("SmoothL1Loss()", "y, " + number),
        ("HuberLoss()", "y, " + number), ("BCEWithLogitsLoss()", "y, " + share),
        ("BCELoss()", "y.sigmoid().nan_to_num(), " + share),
        ("CrossEntropyLoss()", "y, " + label), ("CrossEntropyLoss(label_smoothing=0.1)", "y, " + label),
        ("NLLLoss()", "F.log_softmax(y, 1), " + label), ("MultiMarginLoss()", "y, " + label),
        ("KLDivLoss(reduction='batchmean')", "F.log_softmax(y, 1), " + share), ("PoissonNLLLoss()", "y, " + share),
        ("GaussianNLLLoss()", f"y, {number}, {share} + 0.1"), ("SoftMarginLoss()", "y, " + sign),
        ("MultiLabelSoftMarginLoss()", "y, " + share), ("HingeEmbeddingLoss()", "y, " + sign),
        ("CosineEmbeddingLoss()", f"y, {number}, torch.ones({batch}, device=dev)"),
        ("MarginRankingLoss()", f"y, {number}, {sign}"), ("TripletMarginLoss()", f"y, {number}, {number}"),
        ("CrossEntropyLoss(reduction='sum')", "y, F.softmax(" + number + ", 1)"),
    ])  # fmt: skip
    chosen = random.random()
    foreach = "True" if chosen < 0.25 else "None" if chosen < 0.75 else "False"
    made = random.choice(OPTIMIZERS)
    two = random.random() < 0.15 and "LBFGS" not in made
    none = random.choice(("", "", "set_to_none=False"))
    make = f"torch.optim.{made.replace('=B', f'={foreach}')}"
    text = f"net = Net().to(dev)\nloss_of = nn.{loss[0]}.to(dev)\n"
    names = ["o"]
    if two:
        names = ["o", "o2"]
        text += "ps = list(net.parameters())\n"
        text += f"o = {make.replace('P', 'ps[::2]', 1) if '(P' not in make else make.replace('(P', '(ps[::2]')}\n"
        text += "o2 = torch.optim.SGD(ps[1::2], 0.01, momentum=0.9, foreach=False)\n"
    else:
        text += f"o = {make.replace('(P', '(net.parameters()')}\n"
    average = random.random() < 0.2
    if average:
        text += "ema = copy.deepcopy(net).requires_grad_(False)\n"
    clip = random.choice(("", "", f"nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach={foreach})",
                          f"nn.utils.clip_grad_value_(net.parameters(), 0.5, foreach={foreach})"))  # fmt: skip
    evaluates = random.random() < 0.2
    parts = random.choice((1, 1, 2))
    text += "for step in range(3):\n"
    step = [f"{each}.step()" for each in names]
    zero = [f"{each}.zero_grad({none})" for each in names]
    if "LBFGS" in made:
        text += f"    x = {data}\n    def closure():\n        o.zero_grad({none})\n        y = net(x)\n"
        text += (
            f"        loss = loss_of({loss[1]})\n        loss.backward()\n        return loss\n    o.step(closure)\n"
        )
        return text
    first = random.random() < 0.5
    lines = list(zero) if first else []
    inner = [f"x = {data}", "y = net(x)", f"loss = loss_of({loss[1]})", "loss.backward()"]
    if random.random() < 0.2:
        inner.append("del x, y, loss")
    if parts == 1:
        lines += inner
    else:
        lines += [f"for part in range({parts}):", *(f"    {each}" for each in inner)]
    lines += [clip] if clip else []
    if evaluates:
        lines += ["net.eval()", "with torch.no_grad():", f"    z = net({data})", "net.train()"]
    lines += step
    lines += [] if first else zero
    if average:
        lines += ["with torch.no_grad():", "    for p, q in zip(ema.parameters(), net.parameters()):",
                  "        p.lerp_(q, 0.01)"]  # fmt: skip
    return text + "".join(f"    {each}\n" for each in lines)
