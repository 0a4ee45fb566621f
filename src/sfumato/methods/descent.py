"""The loop of methods that read the private rows while they train: paid steps, with progress, a log, checkpoints and resumption.

    for step in descend(data, charge, state, workspace, title="Training the critic"):
        gradients.assign(step.noisy_gradient(gradients) / expected)
        optimiser.step()

`state` names all that changes in the body: networks, optimisers, a generator of public random numbers. It is saved every few
seconds, and what the paid steps answered since then is in their journal (`privacy.journal`); so a resumed run sets out from the
last checkpoint, is given the same answers again, and arrives where it was, to the last bit, without reading a row again.

What the body notes in `state.facts` is logged, so it must come from answers and public numbers only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from sfumato.errors import CorruptArtifact
from sfumato.generators import checkpoint_step
from sfumato.methods.base import Workspace
from sfumato.privacy import Charge, PaidSteps, PrivateData, Step
from sfumato.storage import atomic_path


@dataclass
class TrainingState:
    """Everything that a training changes, by name."""

    networks: dict[str, nn.Module]
    optimisers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)  # written in place only
    random: torch.Generator = field(default_factory=torch.Generator)
    facts: dict[str, float] = field(default_factory=dict)

    def save(self, path: Path, step: int) -> None:
        stored = {"random": self.random.get_state()}
        stored |= {f"tensor:{name}": tensor for name, tensor in self.tensors.items()}
        for key, network in self.networks.items():
            stored |= {f"network:{key}:{n}": v for n, v in network.state_dict().items()}
        for key, optimiser in self.optimisers.items():
            for index, state in optimiser.state_dict()["state"].items():
                stored |= {
                    f"optimiser:{key}:{index}:{n}": torch.as_tensor(v) for n, v in state.items()
                }
        with atomic_path(path) as temporary:
            save_file(
                # Copies: networks may share memory, which the format does not allow.
                {name: tensor.detach().contiguous().clone() for name, tensor in stored.items()},
                temporary,
                metadata={"checkpoint": json.dumps({"step": step})},
            )

    def restore(self, path: Path) -> int:
        """Take back what was saved; the number of steps behind it."""
        step = checkpoint_step(path)
        try:
            with safe_open(path, framework="pt") as stored:
                found = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            self.random.set_state(found.pop("random"))
            networks: dict[str, dict[str, Tensor]] = {key: {} for key in self.networks}
            optimisers: dict[str, dict[int, dict[str, Tensor]]] = {k: {} for k in self.optimisers}
            for name, tensor in found.items():
                kind, key, *rest = name.split(":")
                if kind == "tensor":
                    self.tensors[key].copy_(tensor)
                elif kind == "network":
                    networks[key][rest[0]] = tensor
                else:
                    optimisers[key].setdefault(int(rest[0]), {})[rest[1]] = tensor
            for key, values in networks.items():
                self.networks[key].load_state_dict(values)
            for key, state in optimisers.items():
                groups = self.optimisers[key].state_dict()["param_groups"]
                parameters = [p for g in self.optimisers[key].param_groups for p in g["params"]]
                for index, values in state.items():
                    like = parameters[index]
                    # Fused optimisers go through memory in order: averages must lie as the weights do (channels last, for one).
                    for name, value in values.items():
                        if value.shape == like.shape:
                            values[name] = torch.empty_like(like).detach().copy_(value)
                self.optimisers[key].load_state_dict({"state": state, "param_groups": groups})
        except (SafetensorError, KeyError, IndexError, ValueError, RuntimeError, OSError) as error:
            raise CorruptArtifact(
                f"{path} is not a whole checkpoint of this training; restore the file, or begin a new run, which spends the "
                "budget anew."
            ) from error
        return step


def descend(
    data: PrivateData,
    charge: Charge,
    state: TrainingState,
    workspace: Workspace,
    *,
    title: str,
    stage: str = "",
    checkpoint_seconds: float = 10.0,
) -> Iterator[Step]:
    """The paid steps of `charge`, from where an interrupted training of `state` left off.

    A method with several series gives each but the last a `stage` of its own; a series that is through is not begun again.
    """
    path = workspace.checkpoint_of(stage)
    resumed = path is not None and path.exists()
    start = state.restore(path) if path is not None and resumed else 0
    steps = _paid(data, charge, start)
    if path is not None and not resumed:
        # What was drawn and trained so far belongs to the steps: answers must be applied again to the same numbers.
        state.save(path, 0)
    began = saved = time.monotonic()
    every = max(1, charge.steps // 100)
    with workspace.progress.stage(title, charge.steps) as bar:
        bar.advance(start)
        for step in steps:
            yield step
            done, now = step.index + 1, time.monotonic()
            last = done == charge.steps
            if done % every == 0 or last:
                bar.advance(0, **state.facts)
                if not stage:
                    workspace.log(
                        {
                            "event": "step",
                            "step": done,
                            "steps": charge.steps,
                            **state.facts,
                            "seconds": now - began,
                        }
                    )
            bar.advance(1)
            if path is not None and (last or now - saved > checkpoint_seconds):
                state.save(path, done)
                steps.forget(done)
                saved = time.monotonic()


def beside(
    data: PrivateData, charge: Charge, workspace: Workspace, *, every: int = 1, stage: str = ""
) -> PaidSteps:
    """A second series, a step of which is taken by hand at the end of every `every`-th step of the series that `descend` runs.

    Call it before `descend`, which is charged after it: a resumed run goes on where the checkpoint of the other series stands.
    """
    path = workspace.checkpoint_of(stage)
    return _paid(data, charge, checkpoint_step(path) // every if path is not None else 0)


def _paid(data: PrivateData, charge: Charge, start: int) -> PaidSteps:
    return data.poisson_steps(
        charge.rate,
        charge.steps,
        charge.noise_multiplier,
        bound=charge.bound,
        label=charge.label,
        dimension=charge.dimension,
        summands=charge.summands,
        start=start,
    )
