"""The one training loop: progress, a log, checkpoints, and going on after Ctrl-C or kill -9.

It minimises any loss that is a function of the step and a random generator, and knows nothing of privacy: what it is given
was released before. A checkpoint holds the network, the optimiser and the state of the random numbers, so that a
resumed training ends with the same network as one that was never interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.checkpoints import Checkpoint
from sfumato.progress import Progress


@dataclass
class Training:
    """How to train: the schedule, and where to keep what is needed to go on."""

    steps: int
    learning_rate: float
    rounds: int = 5  # the learning rate is multiplied by `decay` after each of these
    decay: float = 0.9
    seed: int = 0
    checkpoint: Checkpoint | None = None
    checkpoint_seconds: float = 10.0
    log: Callable[[dict[str, Any]], None] = field(default=lambda record: None)
    progress: Progress = field(default_factory=Progress)
    title: str = "Training the generator"

    def rate_at(self, step: int) -> float:
        return self.learning_rate * self.decay ** (step * self.rounds // self.steps)


def train(
    network: nn.Module, loss: Callable[[int, torch.Generator], Tensor], how: Training
) -> None:
    """Minimise `loss(step, generator)` over the network's parameters with Adam, in place; leaves it in eval mode."""
    parameters = list(network.parameters())
    optimiser = torch.optim.Adam(parameters, lr=how.learning_rate, fused=True)
    generator = torch.Generator().manual_seed(how.seed)
    start = 0
    if how.checkpoint is not None:
        start = _restore(how.checkpoint, network, optimiser, generator)
    network.train()
    began = saved = time.monotonic()
    every = max(1, how.steps // 100)
    with how.progress.stage(how.title, how.steps) as stage:
        stage.advance(start)
        for step in range(start, how.steps):
            for group in optimiser.param_groups:
                group["lr"] = how.rate_at(step)
            optimiser.zero_grad(set_to_none=True)
            value = loss(step, generator)
            value.backward()
            optimiser.step()
            now = time.monotonic()
            speed = (step + 1 - start) / max(now - began, 1e-9)
            if (step + 1) % every == 0 or step == how.steps - 1:
                shown = float(value.detach())
                how.log(
                    {
                        "event": "step",
                        "step": step + 1,
                        "steps": how.steps,
                        "loss": shown,
                    }
                )
                stage.advance(0, loss=shown, **{"steps/s": speed})
            stage.advance(1)
            if how.checkpoint is not None and now - saved > how.checkpoint_seconds:
                _keep(how.checkpoint, network, optimiser, generator, step + 1)
                saved = time.monotonic()
    network.eval()


def _keep(
    checkpoint: Checkpoint,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    generator: torch.Generator,
    step: int,
) -> None:
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{name}": value for name, value in state.items()}
    tensors["generator"] = generator.get_state()
    checkpoint.write(step, tensors)


def _restore(
    checkpoint: Checkpoint,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    generator: torch.Generator,
) -> int:
    found = checkpoint.read()
    if found is None:
        return 0
    step, tensors = found
    try:
        network.load_state_dict(
            {
                name.removeprefix("network."): t
                for name, t in tensors.items()
                if name.startswith("network.")
            }
        )
        parameters = list(network.parameters())
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimiser."):
                _, index, key = name.split(".")
                parameter = parameters[int(index)]
                # Fused Adam goes through memory in order: its averages must lie as the weights do (channels last, for one).
                if tensor.shape == parameter.shape:
                    tensor = torch.empty_like(parameter).detach().copy_(tensor)
                state.setdefault(int(index), {})[key] = tensor
        optimiser.load_state_dict(
            {"state": state, "param_groups": optimiser.state_dict()["param_groups"]}
        )
        generator.set_state(tensors["generator"])
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise checkpoint.damaged(error) from error
    return step
