"""Write docs/causes.md from the table of causes and its examples: `python docs/causes.py`."""

# ruff: noqa: INP001 - a script

from pathlib import Path

from causes_examples import EXAMPLES, Example

from gradwatch.non_finite.cause_row import Row
from gradwatch.non_finite.causes import CAUSES

PAGE = Path(__file__).with_suffix(".md")
HEAD = """\
# Causes of a non-finite gradient

*Written by `python docs/causes.py` from the table in `gradwatch/non_finite/cause_rules_*.py`.*

When a gradient turns NaN or Inf, gradwatch runs the micro-batch again, finds the operation the
bad value was born in, looks at what went in and out, and asks this table. The first row that
fits gives the finding its `cause` and `remedy`. Where none fits, the finding carries the evidence
and no guess.

{count} causes. Each example stands in the same small network, and gives one of its parts:

```python
net = nn.Sequential(
    nn.Linear(8, 8),
    nn.Tanh(),
    nn.Linear(8, 8),
    Layer(),
    nn.Linear(8, 8),
    nn.Tanh(),
    nn.Linear(8, 4),
)
loss(net(batch(x)), labels(y)).backward()  # x: 6 samples of 8 features
```

`layer(x)` is the layer in the middle, `loss(out, y)` the loss, `batch(x)` and `labels(y)` what is
done to the batch, `prepare(net)` what is done to the network, and `outside(out, y)` a loss that
stands outside what is recorded. The tests run them all: the first of each pair is named with its
layer, phase and cause, the second is clean.

Two more are told by the numbers of earlier steps and not by the table: gradient norms that grew
for many steps until they overflowed (the learning rate is too high; the finding names the factor
and the step it began at), and weights that were made non-finite by the last update.

A label that is no class at all does not get this far: `cross_entropy` raises on it. A batch norm
of one value a channel raises too.

## How often it is right

`python tests/benchmarks/planted_faults.py` plants eight of these causes at each of twelve places
of a small transformer and of a small convolutional network and trains one step into each, four
ways (accumulated: the second of three micro-batches; checkpointed: every block; compiled:
`torch.compile`). torch 2.13, two CPU cores, about 25 minutes, most of it compiling:

| network | way | faults | layer right | cause right |
|---|---|---|---|---|
| transformer | plain | 96 | 96 | 96 |
| transformer | accumulated | 96 | 96 | 96 |
| transformer | checkpointed | 96 | 96 | 96 |
| transformer | compiled, backend "eager" | 96 | 96 | 96 |
| convolutional | plain | 96 | 96 | 96 |
| convolutional | accumulated | 96 | 96 | 96 |
| convolutional | checkpointed | 96 | 96 | 96 |
| convolutional | compiled, backend "eager" | 96 | 96 | 96 |

## The causes
"""


def page() -> str:
    """Give the whole page."""
    contents = "\n".join(f"- [{row.title}](#{row.name})" for row in CAUSES)
    entries = "\n".join(entry(row, EXAMPLES[row.name]) for row in CAUSES)
    return f"{HEAD.format(count=len(CAUSES))}\n{contents}\n\n{entries}"


def entry(row: Row, example: Example) -> str:
    """Give one cause: where it happens, both examples, what to do."""
    operations = ", ".join(f"`{name}`" for name in sorted(row.operations)) or "any operation"
    remedy = row.remedy.replace("{operation}", "the operation")
    return f"""\
<a id="{row.name}"></a>
### {row.title}

`{row.name}`: in the {row.phase or "forward or backward"} pass of {operations}; shown here in \
{", ".join(example.dtypes)}, blamed on {_place(example)}.

```python{example.broken.rstrip()}
```

Remedy: {remedy}.

```python{example.mended.rstrip()}
```
"""


def _place(example: Example) -> str:
    return f"`{example.place}`" if example.place.startswith("<") else "the layer in the middle"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
