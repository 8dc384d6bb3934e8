"""A chain of sigmoids does not learn: GradWatch says at which layer, and ReLU mends it.

Run: python examples/vanishing.py
"""

import torch
from digits import images
from torch import nn

import gradwatch


def chain(activation: type[nn.Module], depth: int = 12) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(64, 32)]
    for _ in range(depth):
        layers += [activation(), nn.Linear(32, 32)]
    layers += [activation(), nn.Linear(32, 10)]
    return nn.Sequential(*layers)


def train(activation: type[nn.Module], epochs: int) -> None:
    """Train, tell the findings as they come, and the loss at the end."""
    torch.manual_seed(0)
    model = chain(activation)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    print(f"\n== {activation.__name__}")
    with gradwatch.watch(model, optimizer, log_every_n_steps=10) as watched:
        for _ in range(epochs):
            for x_BHW, y_B in images():
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x_BHW), y_B)
                loss.backward()
                optimizer.step()
    named = sorted({finding.layer for finding in watched.findings})
    print(f"loss {loss.item():.3f} (chance is 2.303); layers named: {', '.join(named) or 'none'}")


def main(epochs: int = 6) -> None:
    for activation in (nn.Sigmoid, nn.ReLU):
        train(activation, epochs)


if __name__ == "__main__":
    main()
