"""Symptoms of numbers and of memory: precision, repeatability, what should fit and does not."""

from __future__ import annotations

from statistics import median

from gradwatch.findings import Evidence
from gradwatch.memory.phases import MIB
from gradwatch.symptoms.row import Row, Seen
from gradwatch.symptoms.signs import Signs

FAR_ABOVE = 1.5
LEAST_MIB = 256.0
COLLAPSED = 1.0
# Of an update as large as this share of the distance between neighbours most numbers round away.
LOST = 0.25
MOSTLY = 0.5
MOST_NAMES = 5


def far_above(signs: Signs) -> Seen | None:
    """See whether the peak is far above what weights and saved activations come to."""
    budget = signs.budget
    if budget is None:
        return None
    expected = budget.weights_bytes + budget.saved_bytes
    extra = budget.peak_bytes - expected
    if budget.peak_bytes < FAR_ABOVE * expected or extra < LEAST_MIB * MIB:
        return None
    return Seen(
        {
            "peak_MiB": budget.peak_bytes / MIB,
            "weights_gradients_state_MiB": budget.weights_bytes / MIB,
            "saved_activations_MiB": budget.saved_bytes / MIB,
            "unexplained_MiB": extra / MIB,
        }
    )


def scale_collapsed(signs: Signs) -> Seen | None:
    """See whether the gradient scaler has backed off to where it scales nothing up."""
    if signs.loss_scale is None or signs.loss_scale > COLLAPSED:
        return None
    return Seen({"loss_scale": signs.loss_scale})


def updates_lost(signs: Signs) -> Seen | None:
    """See whether updates are smaller than the distance between two neighbouring weights."""
    half = {name: own for name, own in signs.precision.items() if own.resolution > 1e-4}  # noqa: PLR2004 - float32 has 1e-7
    lost = {name: own for name, own in half.items() if own.update_ratio < LOST * own.resolution}
    if not lost or len(lost) < MOSTLY * len(half):
        return None
    least = min(lost, key=lambda name: lost[name].update_ratio / lost[name].resolution)
    return Seen(
        {
            "dtype": lost[least].dtype,
            "resolution": lost[least].resolution,
            "update_ratio": lost[least].update_ratio,
            "median_update_ratio": median(own.update_ratio for own in lost.values()),
            "layers": ", ".join(list(lost)[:MOST_NAMES]),
            "count": len(lost),
        },
        least,
    )


def no_float_copy(signs: Signs) -> Seen | None:
    """See whether nobody keeps the weights in float32."""
    return Seen({"dtype": signs.half_copy_only}) if signs.half_copy_only else None


def differs(signs: Signs) -> Seen | None:
    """See whether one step, run twice from the same state, gives other bits."""
    repeat = signs.repeat
    if repeat is None or not (repeat.loss_differs or repeat.parameters):
        return None
    worst = max(repeat.parameters, key=repeat.parameters.__getitem__, default="")
    evidence: dict[str, Evidence] = {
        "loss_differs": str(repeat.loss_differs),
        "gradients_that_differ": len(repeat.parameters),
        "likely": _likely(signs),
        "deterministic_algorithms": str(repeat.deterministic),
    }
    if worst:
        evidence |= {"worst": worst, "relative_difference": repeat.parameters[worst]}
    if repeat.edited:
        evidence |= {"written_over": ", ".join(repeat.edited[:MOST_NAMES])}
    return Seen(evidence, worst.rpartition(".")[0] or worst or "<loss>")


def _likely(signs: Signs) -> str:
    repeat = signs.repeat
    if repeat is not None and repeat.edited:
        return "the step writes over its own batch"
    if repeat is not None and repeat.loss_differs:
        return "the forward: a state that is not the model's, a random generator of its own, a race"
    race = ", or a race between streams" if repeat is not None and repeat.streams else ""
    return f"the backward: sums in no fixed order (atomic additions){race}"


def many_devices(signs: Signs) -> Seen | None:
    """See whether one process drives several devices."""
    return Seen({"devices": signs.devices}) if signs.devices > 1 else None


ROWS = (
    Row(
        name="peak_unexplained",
        symptom="the peak of memory is far above weights, optimizer state and saved activations",
        cause="temporaries live longer than they need to, or far more than one is alive at once",
        checked="the allocator's peak beside parameters, gradients, optimizer state and what the "
        "graph keeps",
        remedy="checkpoint or fuse what makes them, free them early (del), compute the loss in "
        "pieces; memory_temporaries names the phase",
        check=far_above,
    ),
    Row(
        name="loss_scale_collapsed",
        symptom="the gradient scaler has backed off until it scales nothing up",
        cause="gradients overflow again and again: a value that is not finite at any scale, or "
        "activations beyond float16",
        checked="the scaler's scale, read with the step",
        remedy="find what overflows (the non_finite findings name it), use bfloat16, or keep the "
        "layer concerned in float32",
        check=scale_collapsed,
        severity="warning",
    ),
    Row(
        name="updates_lost",
        symptom="its updates are too small for the type of its weights: most of them round away",
        cause="weights are kept in half precision, where two neighbouring numbers are further "
        "apart than the optimizer's steps",
        checked="‖θ′−θ‖/‖θ‖ of true updates beside the distance of neighbouring numbers",
        remedy="keep the weights in float32 and compute in half (precision='bf16-mixed'), or an "
        "optimizer with a float32 copy or with stochastic rounding",
        check=updates_lost,
        severity="warning",
    ),
    Row(
        name="no_float32_copy",
        symptom="the weights are in half precision and nobody keeps a float32 copy",
        cause="the model was cast as a whole (model.half(), precision='bf16-true') and the "
        "optimizer updates the cast weights",
        checked="types of the parameters and of the optimizer's state",
        remedy="precision='bf16-mixed' or '16-mixed', which keep float32 weights; where memory "
        "forbids it, watch updates_lost",
        check=no_float_copy,
    ),
    Row(
        name="differs_run_to_run",
        symptom="the same step from the same state gives other numbers",
        cause="an operation in place that overwrites an input, streams that are not synchronised, "
        "or sums in no fixed order (atomic additions, cuDNN's choice of algorithm)",
        checked="one step run twice from the same weights, batch and random state, bit by bit",
        remedy="copy what is written over (clone()), order streams with events, "
        "torch.use_deterministic_algorithms(True), cudnn.benchmark = False; if the spread is small "
        "and does not grow, it may be left",
        check=differs,
        severity="warning",
    ),
    Row(
        name="one_process_many_devices",
        symptom="one process drives several devices",
        cause="torch.nn.DataParallel copies the model to every device in each step and computes "
        "the loss on one of them, all under one interpreter",
        checked="the model's wrapper",
        remedy="one process a device: DistributedDataParallel, Trainer(strategy='ddp')",
        check=many_devices,
        severity="warning",
    ),
)
