"""For each cause the few lines that bring it about and the mended ones; read by docs/causes.py.

Each stands in the same small network:

    net = nn.Sequential(
        nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), Layer(), nn.Linear(8, 8), nn.Tanh(),
        nn.Linear(8, 4),
    )
    loss(net(batch(x)), labels(y)).backward()

An example gives one of its parts: `layer(x)` is the layer in the middle, `loss(out, y)` the
loss, `batch(x)` and `labels(y)` what is done to the batch, `prepare(net)` what is done to the
network, and `outside(out, y)` a loss that stands outside what is recorded.
"""

# ruff: noqa: INP001 - a script's data

from dataclasses import dataclass

LAYER, LOSS, INPUT, OPTIMIZER = "3", "<loss>", "<input>", "<optimizer>"
FLOAT32 = ("float32",)
HALF = ("float16",)
WIDE = ("float32", "bfloat16")
ALL = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Example:
    """One cause, provoked and mended.

    Attributes:
        broken: Code that brings the cause about.
        mended: The same without the fault.
        phase: Phase the bad value is born in.
        place: Layer that is blamed.
        dtypes: Types in which it happens.
    """

    broken: str
    mended: str
    phase: str = "forward"
    place: str = LAYER
    dtypes: tuple[str, ...] = ALL


EXAMPLES: dict[str, Example] = {
    "bad_input": Example(
        place=INPUT,
        broken="""
def batch(x):
    x[3, 1] = float("nan")  # one reading of one sample is missing
    return x
""",
        mended="""
def batch(x):
    x[3, 1] = float("nan")
    return x.nan_to_num(0.0)
""",
    ),
    "bad_parameter": Example(
        place=OPTIMIZER,
        broken="""
def prepare(net):
    net[2].weight[1] = float("nan")  # what a bad checkpoint or update leaves
""",
        mended="""
def prepare(net):
    net[2].reset_parameters()
""",
    ),
    "bad_buffer": Example(
        broken="""
def prepare(net):
    net[3] = nn.BatchNorm1d(8).eval()
    net[3].running_var[2] = float("nan")  # what one bad batch leaves for good
""",
        mended="""
def prepare(net):
    net[3] = nn.BatchNorm1d(8).eval()
    net[3].reset_running_stats()
""",
    ),
    "bad_loss_gradient": Example(
        place=LOSS,
        phase="backward",
        broken="""
def outside(out, y):
    return (out - out.detach()).pow(2).sum().sqrt()
""",
        mended="""
def outside(out, y):
    return ((out - out.detach()).pow(2).sum() + 1e-3).sqrt()
""",
    ),
    "epsilon_lost": Example(
        dtypes=HALF,
        broken="""
def layer(x):
    dead = x * 0
    variance = dead.pow(2).mean(-1, keepdim=True)
    return x + dead * torch.rsqrt(variance + 1e-8)
""",
        mended="""
def layer(x):
    dead = x * 0
    variance = dead.pow(2).mean(-1, keepdim=True)
    return x + dead * torch.rsqrt(variance + 1e-3)
""",
    ),
    "masked_too_late": Example(
        phase="backward",
        broken="""
def layer(x):
    return torch.where(x > 0, torch.sqrt(x), x)
""",
        mended="""
def layer(x):
    inside = torch.where(x > 0, x, 1.0)
    return torch.where(x > 0, torch.sqrt(inside), x)
""",
    ),
    "out_of_domain": Example(
        place=LOSS,
        broken="""
def labels(y):
    y[2] = -3.0  # a sale that was returned
    return y


def loss(out, y):
    return (out - torch.log1p(y)).pow(2).mean()
""",
        mended="""
def labels(y):
    y[2] = -3.0
    return y.clamp(min=0.0)


def loss(out, y):
    return (out - torch.log1p(y)).pow(2).mean()
""",
    ),
    "softmax_all_masked": Example(
        broken="""
def layer(x):
    padding = torch.arange(6) == 3
    hidden = padding[:, None].expand(6, 6)  # sample 3 may look at nothing
    return torch.softmax((x @ x.T).masked_fill(hidden, float("-inf")), -1) @ x
""",
        mended="""
def layer(x):
    padding = torch.arange(6) == 3
    hidden = padding[:, None].expand(6, 6)
    return torch.softmax((x @ x.T).masked_fill(hidden, -1e4), -1) @ x
""",
    ),
    "logsumexp_all_masked": Example(
        broken="""
def layer(x):
    hidden = torch.zeros(6, 8, dtype=torch.bool)
    hidden[3] = True
    return x - torch.logsumexp(x.masked_fill(hidden, float("-inf")), -1, keepdim=True)
""",
        mended="""
def layer(x):
    hidden = torch.zeros(6, 8, dtype=torch.bool)
    hidden[3, 1:] = True
    return x - torch.logsumexp(x.masked_fill(hidden, float("-inf")), -1, keepdim=True)
""",
    ),
    "softmax_of_inf": Example(
        broken="""
def layer(x):
    hidden = x < 0
    return torch.softmax(x.masked_fill(hidden, float("inf")), -1)
""",
        mended="""
def layer(x):
    hidden = x < 0
    return torch.softmax(x.masked_fill(hidden, -1e4), -1)
""",
    ),
    "all_labels_ignored": Example(
        place=LOSS,
        broken="""
def loss(out, y):
    labels = torch.full((6,), -100)
    return functional.cross_entropy(out, labels)
""",
        mended="""
def loss(out, y):
    labels = torch.full((6,), -100)
    known = (labels != -100).sum().clamp(min=1)
    return functional.cross_entropy(out, labels, reduction="sum") / known
""",
    ),
    "label_behind_mask": Example(
        place=LOSS,
        broken="""
def loss(out, y):
    allowed = torch.tensor([False, True, True, True])
    labels = torch.tensor([1, 2, 0, 3, 1, 2])  # the third is not allowed
    return functional.cross_entropy(out.masked_fill(~allowed, float("-inf")), labels)
""",
        mended="""
def loss(out, y):
    allowed = torch.tensor([False, True, True, True])
    labels = torch.tensor([1, 2, -100, 3, 1, 2])
    return functional.cross_entropy(out.masked_fill(~allowed, float("-inf")), labels)
""",
    ),
    "ctc_too_short": Example(
        place=LOSS,
        dtypes=FLOAT32,
        broken="""
def loss(out, y):
    frames = out.reshape(2, 3, 4).log_softmax(-1)  # two frames, three samples
    words, two = torch.tensor([[1, 1], [1, 2], [2, 3]]), torch.tensor([2, 2, 2])
    return functional.ctc_loss(frames, words, two, two)  # 1, 1 takes three frames
""",
        mended="""
def loss(out, y):
    frames = out.reshape(2, 3, 4).log_softmax(-1)
    words, two = torch.tensor([[1, 1], [1, 2], [2, 3]]), torch.tensor([2, 2, 2])
    return functional.ctc_loss(frames, words, two, two, zero_infinity=True)
""",
    ),
    "kl_with_zeros": Example(
        place=LOSS,
        broken="""
def loss(out, y):
    p, target = torch.softmax(out * 1e3, -1), torch.softmax(y, -1)
    return functional.kl_div(p.log(), target, reduction="batchmean")
""",
        mended="""
def loss(out, y):
    log_p, target = torch.log_softmax(out * 1e3, -1), torch.softmax(y, -1)
    return functional.kl_div(log_p, target, reduction="batchmean")
""",
    ),
    "mean_over_nothing": Example(
        broken="""
def layer(x):
    large = x[x > 1e3]
    return x - large.mean()
""",
        mended="""
def layer(x):
    large = x[x > 1e3]
    return x - large.sum() / max(large.numel(), 1)
""",
    ),
    "spread_of_one": Example(
        broken="""
def layer(x):
    last = x[:1]  # a last batch of one sample
    return x / (last.std(0) + 1e-3)
""",
        mended="""
def layer(x):
    last = x[:1]
    return x / (last.var(0, correction=0) + 1e-3).sqrt()
""",
    ),
    "spread_of_constant": Example(
        broken="""
def layer(x):
    flat = x * 0 + 1  # a constant feature
    return x + (flat - flat.mean(0)) / flat.std(0)
""",
        mended="""
def layer(x):
    flat = x * 0 + 1
    return x + (flat - flat.mean(0)) / (flat.var(0) + 1e-3).sqrt()
""",
    ),
    "normalising_constant": Example(
        broken="""
def layer(x):
    flat = x * 0 + 1
    return x + functional.layer_norm(flat, (8,), eps=0.0)
""",
        mended="""
def layer(x):
    flat = x * 0 + 1
    return x + functional.layer_norm(flat, (8,), eps=1e-5)
""",
    ),
    "zero_vector_norm": Example(
        phase="backward",
        broken="""
def layer(x):
    step = x - x.detach()
    return x + step.pow(2).sum(-1, keepdim=True).sqrt()
""",
        mended="""
def layer(x):
    step = x - x.detach()
    return x + (step.pow(2).sum(-1, keepdim=True) + 1e-3).sqrt()
""",
    ),
    "normalising_zero_vector": Example(
        broken="""
def layer(x):
    silent = x * (x > 1e3)
    return x + silent / silent.norm(dim=-1, keepdim=True)
""",
        mended="""
def layer(x):
    silent = x * (x > 1e3)
    return x + functional.normalize(silent, dim=-1, eps=1e-3)
""",
    ),
    "weight_norm_zero_row": Example(
        dtypes=WIDE,
        broken="""
def prepare(net):
    net[3] = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    net[3].parametrizations.weight.original1.zero_()  # the direction
""",
        mended="""
def prepare(net):
    net[3] = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    net[3].parametrizations.weight.original0.zero_()  # the magnitude
""",
    ),
    "degenerate_decomposition": Example(
        phase="backward",
        dtypes=FLOAT32,
        broken="""
def layer(x):
    round_ = torch.eye(8) * x.sum()  # all singular values are equal
    left, _, _ = torch.linalg.svd(round_)
    return x @ left
""",
        mended="""
def layer(x):
    round_ = torch.eye(8) * x.sum()
    values = torch.linalg.svdvals(round_)
    return x * values
""",
    ),
    "rank_deficient_qr": Example(
        phase="backward",
        dtypes=FLOAT32,
        broken="""
def layer(x):
    alike = x.sum() * torch.ones(8, 8)  # every column the same
    return x + torch.linalg.qr(alike).R[0]
""",
        mended="""
def layer(x):
    alike = x.sum() * torch.ones(8, 8) + torch.eye(8)
    return x + torch.linalg.qr(alike).R[0]
""",
    ),
    "singular_matrix": Example(
        dtypes=FLOAT32,
        broken="""
def layer(x):
    flat = torch.zeros(8, 8) * x.sum()
    return x + torch.linalg.slogdet(flat).logabsdet
""",
        mended="""
def layer(x):
    flat = torch.zeros(8, 8) * x.sum()
    return x + torch.linalg.slogdet(flat + torch.eye(8)).logabsdet
""",
    ),
    "p_log_p": Example(
        broken="""
def layer(x):
    p = torch.softmax(x * 1e3, -1)
    return x - p * p.log()
""",
        mended="""
def layer(x):
    log_p = torch.log_softmax(x * 1e3, -1)
    return x - log_p.exp() * log_p
""",
    ),
    "log_of_zero": Example(
        broken="""
def layer(x):
    return torch.log(torch.relu(x))
""",
        mended="""
def layer(x):
    return torch.log(torch.relu(x) + 1e-3)
""",
    ),
    "log_of_negative": Example(
        broken="""
def layer(x):
    return torch.log(x)
""",
        mended="""
def layer(x):
    return torch.log(functional.softplus(x))
""",
    ),
    "division_by_zero": Example(
        broken="""
def layer(x):
    return x / torch.relu(x)
""",
        mended="""
def layer(x):
    return x / (torch.relu(x) + 1e-2)
""",
    ),
    "sqrt_at_zero": Example(
        phase="backward",
        broken="""
def layer(x):
    distance = (x - x.roll(1, 1)).pow(2) * (x > 0)
    return torch.sqrt(distance)
""",
        mended="""
def layer(x):
    distance = (x - x.roll(1, 1)).pow(2) * (x > 0)
    return torch.sqrt(distance + 1e-3)
""",
    ),
    "sqrt_of_negative": Example(
        broken="""
def layer(x):
    return torch.sqrt(x)
""",
        mended="""
def layer(x):
    return torch.sqrt(x.clamp(min=1e-3))
""",
    ),
    "rsqrt_of_zero": Example(
        broken="""
def layer(x):
    silent = x * 0
    return x + silent * torch.rsqrt(silent.pow(2).mean(-1, keepdim=True))
""",
        mended="""
def layer(x):
    silent = x * 0
    return x + silent * torch.rsqrt(silent.pow(2).mean(-1, keepdim=True) + 1e-3)
""",
    ),
    "pow_of_zero": Example(
        phase="backward",
        broken="""
def layer(x):
    kept = x * (x > 0)
    return kept**0.3
""",
        mended="""
def layer(x):
    kept = x * (x > 0)
    return kept.clamp(min=1e-3) ** 0.3
""",
    ),
    "pow_of_negative": Example(
        broken="""
def layer(x):
    return x**1.5
""",
        mended="""
def layer(x):
    return x.sign() * (x.abs() + 1e-3) ** 1.5
""",
    ),
    "arc_at_one": Example(
        phase="backward",
        broken="""
def layer(x):
    cosine = 1 - (x - x.detach())  # a vector and itself
    return torch.acos(cosine)
""",
        mended="""
def layer(x):
    cosine = 1 - (x - x.detach())
    return torch.acos(cosine * 0.99)
""",
    ),
    "arc_outside": Example(
        broken="""
def layer(x):
    return torch.asin(x * 5)
""",
        mended="""
def layer(x):
    return torch.asin((x * 5).clamp(-0.99, 0.99))
""",
    ),
    "saturated_inverse": Example(
        broken="""
def layer(x):
    action = torch.tanh(x * 100)
    return torch.atanh(action)
""",
        mended="""
def layer(x):
    action = torch.tanh(x * 100)
    return torch.atanh(action.clamp(-0.99, 0.99))
""",
    ),
    "angle_near_zero": Example(
        dtypes=HALF,
        phase="backward",
        broken="""
def layer(x):
    still = (x - x.detach()) + 1e-3
    return x + torch.atan2(still, still)
""",
        mended="""
def layer(x):
    still = (x - x.detach()) + 1e-3
    return x + torch.atan2(still, still + 0.1)
""",
    ),
    "gamma_pole": Example(
        dtypes=WIDE,
        broken="""
def layer(x):
    return x + torch.lgamma(torch.relu(x))
""",
        mended="""
def layer(x):
    return x + torch.lgamma(functional.softplus(x))
""",
    ),
    "exploding_recurrence": Example(
        broken="""
def layer(x):
    for _ in range(200):
        x = x @ (3 * torch.eye(8, dtype=x.dtype))
    return x
""",
        mended="""
def layer(x):
    for _ in range(200):
        x = x @ torch.eye(8, dtype=x.dtype)
    return x
""",
    ),
    "exp_overflow": Example(
        broken="""
def layer(x):
    likely = torch.exp(x * 1e3)
    return likely / likely.sum(-1, keepdim=True)
""",
        mended="""
def layer(x):
    return torch.softmax(x * 1e3, -1)
""",
    ),
    "half_overflow": Example(
        dtypes=HALF,
        broken="""
def layer(x):
    return torch.softmax((x * 1e3) ** 2, -1)
""",
        mended="""
def layer(x):
    return torch.softmax((x.float() * 1e3) ** 2, -1).to(x.dtype)
""",
    ),
    "loss_scale_overflow": Example(
        place=LOSS,
        phase="backward",
        dtypes=HALF,
        broken="""
def loss(out, y):
    scale = torch.tensor(2.0**24)
    return (out.float() - y.float()).pow(2).mean() * scale
""",
        mended="""
def loss(out, y):
    scale = torch.tensor(2.0**10)
    return (out.float() - y.float()).pow(2).mean() * scale
""",
    ),
    "half_gradient_overflow": Example(
        place=LOSS,
        phase="backward",
        dtypes=HALF,
        broken="""
def loss(out, y):
    return ((out.float() - y.float()) * 1e4).pow(2).sum()
""",
        mended="""
def loss(out, y):
    return (out.float() - y.float()).pow(2).mean()
""",
    ),
    "activation_overflow": Example(
        dtypes=WIDE,
        broken="""
def layer(x):
    return (x * 1e30) ** 2
""",
        mended="""
def layer(x):
    return functional.layer_norm(x * 1e3, (8,)) ** 2
""",
    ),
    "zero_times_inf": Example(
        broken="""
def layer(x):
    scores = x.masked_fill(x < 0, float("-inf"))
    return scores * (x > 0)
""",
        mended="""
def layer(x):
    return torch.where(x > 0, x, 0.0)
""",
    ),
    "inf_minus_inf": Example(
        broken="""
def layer(x):
    scores = x.masked_fill(torch.arange(6)[:, None] == 3, float("-inf"))
    return torch.exp(scores - scores.amax(-1, keepdim=True))
""",
        mended="""
def layer(x):
    scores = x.masked_fill(torch.arange(6)[:, None] == 3, -1e4)
    return torch.exp(scores - scores.amax(-1, keepdim=True))
""",
    ),
}
