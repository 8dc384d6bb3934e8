"""Write docs/symptoms.md from the table of symptoms: `python docs/symptoms.py`."""

# ruff: noqa: INP001 - a script

from pathlib import Path

from gradwatch.symptoms import SYMPTOMS, Row

PAGE = Path(__file__).with_suffix(".md")
HEAD = """\
# Symptoms

*Written by `python docs/symptoms.py` from the table in `gradwatch/symptoms/of_*.py`.*

What is seen, what is likely behind it, how it was checked, and what to do. Each row is a rule: a
pure function of plain values (`gradwatch.symptoms.Signs`) that gives a finding when the symptom
shows and says nothing where what it needs is not known.

```python
from gradwatch.symptoms import Signs, find_symptoms, loading_of, run_twice

find_symptoms(Signs(profile=profile, loading=loading_of(loader, "cuda")))  # after a profile
find_symptoms(Signs(repeat=run_twice(model, batch, loss_of)))  # one step, twice
```

`SymptomWatch`, a part like the others, asks the rows that need no profile while training: the
gradient scaler's scale, the true size of updates beside the resolution of the weights' type, and
models under `DataParallel`. `RooflineMonitor` asks those of time. `FusedBackward` asks
`slower_after_fusing` of each change that made the step slower: it is rolled back, and where its
kernels by themselves were faster, this is told. Two are asked by hand: `peak_unexplained`
(`Signs(budget=budget_of(...))`) and `differs_run_to_run` (`run_twice`).

| symptom | likely cause | how it is checked | what to do |
|---|---|---|---|
{rows}

What shows in the autograd graph and in memory has rules of its own:

| rule | what is seen |
|---|---|
| `saturating_chain` | a parameter whose every way to the loss leads through eight or more \
saturating functions in a row, without a shortcut or a normalisation between them; where its \
gradient is measured to fade, `vanishing` tells it with the run |
| `graph_grows`, `graph_carried_over` | a state that is carried from step to step with its graph |
| `graph_cut` | parameters of layers that ran and that the loss does not reach, with the last \
module before the cut |
| `in_place_edit` | a tensor the backward needs, written over before it: told before PyTorch \
raises, with the layer that kept it |
| `graph_used_twice` | a second backward through what the first has let go |
| `graph_not_walked` | a graph of more nodes than are looked at |
| `memory_…`, `graph_kept` | see [memory](memory.md) |

The graph of the first micro-batches is walked once, from the loss (in a plain loop from the
model's outputs), up to 15,000 nodes. More in a row would be a danger: PyTorch 2.13 frees nodes
that Python has looked at from within one another, and some 40,000 overflow the stack. Of one
thread's time a walk took 20 microseconds a node and setting the hooks 40 microseconds a module
(`python -m tests.benchmarks.seldom graph`); both happen in the first two micro-batches only (in the
third too, where the second's graph reaches back into the first's). The run is the same to the bit.
"""


def page() -> str:
    """Give the whole page."""
    return HEAD.format(rows="\n".join(line(row) for row in SYMPTOMS))


def line(row: Row) -> str:
    """Give one row of the table."""
    cells = (f'<a id="{row.name}"></a>{row.symptom} (`{row.name}`)', row.cause, row.checked)
    return f"| {' | '.join(cells)} | {row.remedy} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
