"""Symptoms of time: what a profile of a few steady steps shows."""

from __future__ import annotations

from statistics import median

from gradwatch.findings import Evidence
from gradwatch.symptoms.row import Row, Seen
from gradwatch.symptoms.signs import Signs

MICROSECOND = 1e-6
# A kernel this short is mostly its launch; on a processor, whose floor differs, twice that floor.
SMALL_SECONDS = 5 * MICROSECOND
MOSTLY = 0.5
WORTH_A_STEP = 0.1
NEAR_THE_CEILING = 0.7
BOUND_SHARE = 0.3
WAITING = 0.15
LEAST_WAIT_SECONDS = 2e-3
MOST_NAMES = 5


def small_kernels(signs: Signs) -> Seen | None:
    """See whether most kernels are hardly longer than their launch."""
    profile = signs.profile
    if profile is None or not profile.kernel_seconds:
        return None
    floor = max(SMALL_SECONDS, 2 * profile.ceilings.launch_seconds)
    small = [seconds for seconds in profile.kernel_seconds if seconds < floor]
    spent = sum(small) + len(small) * profile.ceilings.launch_seconds
    share = len(small) / len(profile.kernel_seconds)
    if share < MOSTLY or spent < WORTH_A_STEP * profile.step_seconds:
        return None
    return Seen(
        {
            "kernels": len(profile.kernel_seconds),
            "small_kernels": len(small),
            "median_us": median(profile.kernel_seconds) / MICROSECOND,
            "small_share_of_step": spent / profile.step_seconds,
        }
    )


def near_the_ceiling(signs: Signs) -> Seen | None:
    """See whether layers that move memory as fast as it goes take much of the step."""
    profile = signs.profile
    if profile is None:
        return None
    ceiling = profile.ceilings.copy_bytes_per_second
    bound = [
        layer
        for layer in profile.layers
        if layer.kind == "bandwidth-bound"
        and layer.achieved_bytes_per_second >= NEAR_THE_CEILING * ceiling
    ]
    seconds = [layer.forward_seconds + layer.backward_seconds for layer in bound]
    if sum(seconds) < BOUND_SHARE * profile.step_seconds or not bound:
        return None
    longest = max(zip(seconds, bound, strict=True), key=lambda each: each[0])[1]
    return Seen(
        {
            "layers": ", ".join(layer.layer for layer in bound[:MOST_NAMES]),
            "count": len(bound),
            "share_of_step": sum(seconds) / profile.step_seconds,
            "achieved_GB_s": longest.achieved_bytes_per_second / 1e9,
            "ceiling_GB_s": ceiling / 1e9,
            "gain_if_fused_share": sum(layer.gain_share for layer in bound),
        },
        longest.layer,
    )


def communication(signs: Signs) -> Seen | None:
    """See whether a step waits for gradients on their way between processes."""
    profile = signs.profile
    if profile is None:
        return None
    total = profile.phases.get("communication", 0.0)
    hidden = profile.phases.get("communication_hidden", 0.0)
    if total - hidden < WAITING * profile.step_seconds:
        return None
    return Seen(
        {
            "communication_ms": 1e3 * total,
            "hidden_ms": 1e3 * hidden,
            "waited_share_of_step": (total - hidden) / profile.step_seconds,
        }
    )


def starved(signs: Signs) -> Seen | None:
    """See whether a step waits for its batch, and how batches are loaded."""
    profile = signs.profile
    if profile is None:
        return None
    waits = [profile.phases.get(phase, 0.0) for phase in ("data_wait", "host_to_device")]
    # What is shorter is the loop's own work, and a worker would only add to it.
    if sum(waits) < max(WAITING * profile.step_seconds, LEAST_WAIT_SECONDS):
        return None
    evidence: dict[str, Evidence] = {
        "data_wait_ms": 1e3 * waits[0],
        "host_to_device_ms": 1e3 * waits[1],
        "waited_share_of_step": sum(waits) / profile.step_seconds,
    }
    if signs.loading is not None:
        evidence |= {
            "workers": signs.loading.workers,
            "persistent_workers": str(signs.loading.persistent),
        }
        # Where there is nothing to copy to, pinning is no matter.
        evidence |= {"pinned": str(signs.loading.pinned)} if signs.loading.accelerated else {}
    return Seen(evidence)


def slower_fused(signs: Signs) -> Seen | None:
    """See whether kernels became faster and the step did not."""
    fused = signs.fused
    if fused is None:
        return None
    kernels = fused.kernel_seconds[1] / fused.kernel_seconds[0]
    step = fused.step_seconds[1] / fused.step_seconds[0]
    if kernels >= 1 or step <= 1:
        return None
    return Seen({"kernel_time_ratio": kernels, "step_time_ratio": step}, fused.layer)


ROWS = (
    Row(
        name="small_kernels",
        symptom="many kernels last hardly longer than their launch",
        cause="many small operations, each launched for itself",
        checked="kernels of a profiled step by length, beside the measured cost of a launch",
        remedy="fuse what follows on one another (torch.compile, gradwatch's fused layers), use "
        "fused or foreach optimizers, make the batch larger, or submit the step as a CUDA graph",
        check=small_kernels,
    ),
    Row(
        name="bandwidth_ceiling",
        symptom="layers that only move memory take much of the step, at the rate memory allows",
        cause="the same data is written and read again from one elementwise operation to the next",
        checked="bytes that must move, over the time they took, beside the measured copy rate",
        remedy="fuse the layers with their neighbours, compute them in half precision, or try "
        "another layout (contiguous, channels_last)",
        check=near_the_ceiling,
    ),
    Row(
        name="communication_share",
        symptom="the step waits for gradients on their way between processes",
        cause="buckets too large or too late to be hidden behind the backward, or a slow link",
        checked="time in collectives less what ran beside the backward, as a share of the step",
        remedy="smaller buckets (DDP bucket_cap_mb), gradient_as_bucket_view, no_sync while "
        "gradients accumulate, static_graph, or a compression hook",
        check=communication,
    ),
    Row(
        name="data_starved",
        symptom="the step waits for its batch",
        cause="batches are loaded between the steps (num_workers=0), or slower than the steps go",
        checked="time between asking for a batch and having it on the device, as a share of the "
        "step; the DataLoader's own settings",
        remedy="num_workers of 2 and more, persistent_workers=True, pin_memory=True with an "
        "accelerator, a larger prefetch_factor, and transforms done once instead of each epoch",
        check=starved,
    ),
    Row(
        name="slower_after_fusing",
        symptom="its kernels became faster and the step slower",
        cause="the fused kernel takes so many registers or so much shared memory that fewer run "
        "at once, or what it delays was hidden before",
        checked="forward and backward of the layer by itself and of the whole step, both without "
        "the change and with it",
        remedy="split the kernel again, or leave this layer as it was: FusedBackward has rolled it "
        "back where it found this",
        check=slower_fused,
    ),
)
