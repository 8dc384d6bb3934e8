"""Watch a plain PyTorch loop, without Lightning: one line before it.

Run: python examples/plain_loop.py
"""

import torch
from digits import images
from torch import nn

import gradwatch


def main(epochs: int = 3) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with gradwatch.watch(model, optimizer, log_every_n_steps=10) as watched:
        for _ in range(epochs):
            for x_BHW, y_B in images():
                optimizer.zero_grad()
                loss = watched.loss(nn.functional.cross_entropy(model(x_BHW), y_B))
                loss.backward()
                optimizer.step()
    print(f"loss at the end {loss.item():.3f}, findings: {len(watched.findings)}")


if __name__ == "__main__":
    main()
