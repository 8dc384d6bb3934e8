"""Memory under a Trainer: the process's own where there is no accelerator."""

from gradwatch import MemorySink
from gradwatch.callbacks import MemoryDeltaMonitor
from tests.kit import Net, build, fit


def test_every_recorded_step_tells_memory_with_its_unit_in_the_name() -> None:
    sink = MemorySink()
    fit(build(Net), [MemoryDeltaMonitor(sinks=[sink])], max_steps=3, log_every_n_steps=1)
    for record in sink.records:
        assert record.scalars["mem/process_MiB"] > 50
        assert {key for key in record.scalars if key.startswith("mem/")} == {
            "mem/process_MiB",
            "mem/process_forward_MiB",
            "mem/process_backward_MiB",
            "mem/process_step_MiB",
            "mem/process_peak_MiB",
        }


def test_no_layer_profile_is_told_where_nobody_watches_gradients() -> None:
    sink = MemorySink()
    fit(build(Net), [MemoryDeltaMonitor(sinks=[sink])], max_steps=2)
    assert [record.flow for record in sink.records] == [None, None]
