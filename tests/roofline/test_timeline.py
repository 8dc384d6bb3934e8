"""Events given to layers: what the profiler writes on a CPU and on an accelerator."""

from collections.abc import Sequence

import torch

from gradwatch.roofline.assemble import assemble
from gradwatch.roofline.ceilings import Ceilings
from gradwatch.roofline.costs import LayerCost, PhaseCost
from gradwatch.roofline.events import Event
from gradwatch.roofline.evidence import Evidence
from gradwatch.roofline.layer_times import read_layer_times
from gradwatch.roofline.phases import split_steps
from gradwatch.roofline.spans import Span
from gradwatch.roofline.timeline import Owner, Reader, Timeline, find_crossings

MAIN, ENGINE = 1, 2
EVALUATE = "autograd::engine::evaluate_function: "
MACHINE = Ceilings(
    device="toy",
    copy_bytes_per_second=1e9,
    matrix_flops_per_second={"float32": 1e12},
    launch_seconds=0.01,
)


def border(name: str, start: float) -> Event:
    return Event(f"gradwatch|{name}", start, start, MAIN)


def node(name: str, start: float, end: float, sequence: int, thread: int = MAIN) -> Event:
    return Event(EVALUATE + name, start, end, thread, sequence, MAIN, identity=sequence + 1000)


# One step: a root module with a child, the loss, a backward of three nodes, an update.
HOST = [
    border("before_forward", 0.0),
    Event("gradwatch:0:<root>", 0.5, 4.0, MAIN),
    Event("gradwatch:0:fc", 1.0, 3.0, MAIN),
    Event("aten::linear", 1.2, 2.8, MAIN, identity=10),
    Event("aten::t", 1.2, 1.3, MAIN, identity=11),
    Event("aten::addmm", 1.4, 2.7, MAIN, sequence=5, identity=12),
    Event("aten::copy_", 1.5, 1.6, MAIN, identity=13),
    Event("aten::relu", 3.2, 3.8, MAIN, sequence=6, identity=14),
    Event("aten::sum", 4.2, 4.6, MAIN, sequence=7, identity=15),
    border("after_forward", 5.0),
    border("before_backward", 5.0),
    node("SumBackward0", 5.0, 5.5, 7),
    node("ReluBackward0", 5.5, 7.0, 6),
    Event("aten::threshold_backward", 5.6, 6.8, MAIN, identity=16),
    node("AddmmBackward0", 7.0, 9.0, 5),
    Event("aten::mm", 7.1, 8.8, MAIN, identity=17),
    node("torch::autograd::AccumulateGrad", 9.0, 9.5, -1),
    Event("aten::detach", 9.1, 9.2, MAIN, identity=18),
    border("after_backward", 10.0),
    Event("aten::_foreach_add_", 10.2, 10.8, MAIN, identity=19),
    border("after_step", 11.0),
    Event("aten::stack", 11.2, 11.9, MAIN, identity=20),
    border("before_forward", 12.0),
]
MADE_BY = {5: "fc", 6: "<root>", 7: "<loss>"}
DISPATCHED = {"addmm", "relu", "sum", "threshold_backward", "mm"}


def find(number: int, thread: int | None) -> Span:
    return Span(MADE_BY[number], number)


def read(events: Sequence[Event]) -> Timeline:
    (crossings,) = split_steps(find_crossings(events))
    return Reader(find, DISPATCHED).read(events, crossings)


def test_a_forward_belongs_to_the_innermost_module() -> None:
    spent = read(HOST).span_seconds
    assert spent[Owner("fc", "forward")] == 2.0
    assert spent[Owner("<root>", "forward")] == 3.5 - 2.0


def test_what_runs_outside_of_all_modules_is_the_loss() -> None:
    assert round(read(HOST).span_seconds[Owner("<loss>", "forward")], 9) == 0.4


def test_a_backward_belongs_to_the_module_that_made_the_node() -> None:
    spent = read(HOST).span_seconds
    assert spent[Owner("<root>", "backward")] == 1.5
    # The accumulation into the weight comes behind the node that made its gradient.
    assert spent[Owner("fc", "backward")] == 2.5


def test_a_kernel_of_a_cpu_is_the_operation_that_was_dispatched() -> None:
    told = [(own.name, own.owner) for own in read(HOST).launches]
    assert told == [
        ("addmm", Owner("fc", "forward")),
        ("relu", Owner("<root>", "forward")),
        ("sum", Owner("<loss>", "forward")),
        ("threshold_backward", Owner("<root>", "backward")),
        ("mm", Owner("fc", "backward")),
        ("_foreach_add_", Owner("<optimizer>", "optimizer")),
        ("stack", Owner("<input>", "data_wait")),
    ]


def test_a_forward_that_is_recomputed_takes_its_time_from_the_backward_around_it() -> None:
    again = [
        Event("gradwatch:0:fc", 7.2, 8.2, MAIN, identity=30),
        Event("aten::addmm", 7.3, 8.1, MAIN, identity=31),
    ]
    spent = read(sorted([*HOST, *again], key=lambda event: event.start)).span_seconds
    assert spent[Owner("fc", "forward")] == 2.0
    assert spent[Owner("fc", "backward")] == 2.5


def device(name: str, start: float, end: float, launched_by: int) -> Event:
    return Event(name, start, end, launched_by=launched_by, on_device=True)


# Kernels run later than they were launched, and the backward is launched from another thread.
KERNELS = [
    device("sgemm", 2.0, 5.0, 12),
    device("relu_kernel", 5.0, 6.0, 14),
    device("reduce_kernel", 6.0, 6.5, 15),
    device("relu_backward_kernel", 6.5, 8.5, 16),
    device("sgemm_nt", 8.5, 12.5, 17),
    device("sgemm_tn", 14.5, 18.5, 17),
    device("multi_tensor_apply", 18.5, 19.0, 19),
    device("gradwatch:0:fc", 2.0, 5.0, 0),
    # What the driver was called for bears a number of its own, which may be that of another.
    Event("cudaLaunchKernel", 3.4, 3.5, MAIN, identity=12, launched_by=14),
]


def on_engine(event: Event) -> Event:
    backward = 5.0 <= event.start < 10.0 and not event.name.startswith("gradwatch|")
    return event._replace(thread=ENGINE) if backward else event


def test_a_kernel_of_an_accelerator_belongs_to_whoever_launched_it() -> None:
    line = read([*map(on_engine, HOST), *KERNELS])
    assert [(own.name, own.operation, own.owner.layer) for own in line.launches] == [
        ("sgemm", "addmm", "fc"),
        ("relu_kernel", "relu", "<root>"),
        ("reduce_kernel", "sum", "<loss>"),
        ("relu_backward_kernel", "threshold_backward", "<root>"),
        ("sgemm_nt", "mm", "fc"),
        ("sgemm_tn", "mm", "fc"),
        ("multi_tensor_apply", "_foreach_add_", "<optimizer>"),
    ]


def test_on_an_accelerator_the_time_of_a_layer_is_that_of_its_kernels() -> None:
    times = read_layer_times(read([*map(on_engine, HOST), *KERNELS]), device=True)
    assert (times["fc"].forward, times["fc"].backward) == (3.0, 8.0)
    assert times["fc"].kernels == 3


def test_a_gap_before_a_kernel_is_its_layers_wait() -> None:
    times = read_layer_times(read([*map(on_engine, HOST), *KERNELS]), device=True)
    assert times["fc"].idle == 2.0
    assert times["<root>"].idle == 0.0


def test_gradients_that_travel_beside_the_backward_are_hidden() -> None:
    travel = [
        Event("nccl:all_reduce", 8.0, 8.1, ENGINE, identity=40),
        device("ncclDevKernel_AllReduce_Sum", 11.5, 14.0, 40),
    ]
    evidence = Evidence(device=torch.device("cuda"), find_span=find)
    evidence.events = [*map(on_engine, HOST), *KERNELS, *travel]
    evidence.counts.update({("forward", name): 1 for name in DISPATCHED})
    evidence.read_events()
    told = assemble(evidence, MACHINE).phases
    assert (told["communication"], told["communication_hidden"]) == (2.5, 1.0)


def test_the_largest_kernels_come_first_with_what_they_are_for() -> None:
    evidence = Evidence(device=torch.device("cuda"), find_span=find)
    evidence.events = [*map(on_engine, HOST), *KERNELS]
    evidence.costs["fc"] = LayerCost(forward=PhaseCost(matrix_flops={"float32": 1e12}))
    evidence.counts.update({("forward", name): 1 for name in DISPATCHED})
    evidence.read_events()
    profile = assemble(evidence, MACHINE)
    first = profile.kernels[0]
    assert (first.name, first.layer, first.purpose) == ("sgemm_nt", "fc", "matrix product")
    assert {own.layer: own.kind for own in profile.layers}["fc"] == "compute-bound"
    assert len(profile.kernel_seconds) == 7
