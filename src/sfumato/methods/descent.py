"""The loop of methods that read the private rows while they train: paid steps, with progress, a log, checkpoints and resumption.

    for step in descend(data, charge, state, workspace, title="Training the critic"):
        gradients.assign(step.noisy_gradient(gradients) / expected)
        optimiser.step()

`state` names all that changes in the body: networks, optimisers, a generator of public random numbers. It is saved every few
seconds, and what the paid steps answered since then is in the run's store (`privacy.store`); so a resumed run sets out from the
last checkpoint, is given the same answers again, and arrives where it was, to the last bit, without reading a row again.

What the body notes in `state.facts` is logged, so it must come from answers and public numbers only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sfumato.checkpoints import Checkpoint
from sfumato.methods.base import Workspace
from sfumato.privacy import Charge, PaidSteps, PrivateData, Step


@dataclass
class TrainingState:
    """Everything that a training changes, by name."""

    networks: dict[str, nn.Module]
    optimisers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)  # written in place only
    random: torch.Generator = field(default_factory=torch.Generator)
    facts: dict[str, float] = field(default_factory=dict)

    def save(self, checkpoint: Checkpoint, step: int) -> None:
        stored = {"random": self.random.get_state()}
        stored |= {f"tensor:{name}": tensor for name, tensor in self.tensors.items()}
        for key, network in self.networks.items():
            stored |= {f"network:{key}:{n}": v for n, v in network.state_dict().items()}
        for key, optimiser in self.optimisers.items():
            for index, state in optimiser.state_dict()["state"].items():
                stored |= {
                    f"optimiser:{key}:{index}:{n}": torch.as_tensor(v) for n, v in state.items()
                }
        checkpoint.write(step, stored)

    def restore(self, checkpoint: Checkpoint) -> int | None:
        """Take back what was saved; the number of steps behind it, or None if nothing was."""
        kept = checkpoint.read()
        if kept is None:
            return None
        step, found = kept
        try:
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
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise checkpoint.damaged(error) from error
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
    checkpoint = workspace.checkpoint_of(stage)
    start = state.restore(checkpoint) if checkpoint is not None else None
    steps = _paid(data, charge, start or 0)
    if checkpoint is not None and start is None:
        # What was drawn and trained so far belongs to the steps: answers must be applied again to the same numbers.
        state.save(checkpoint, 0)
    saved = time.monotonic()
    every = max(1, charge.steps // 100)
    with workspace.progress.stage(title, charge.steps) as bar:
        bar.advance(start or 0)
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
                        }
                    )
            bar.advance(1)
            if checkpoint is not None and (last or now - saved > checkpoint_seconds):
                state.save(checkpoint, done)
                steps.forget(done)
                saved = time.monotonic()


def beside(
    data: PrivateData, charge: Charge, workspace: Workspace, *, every: int = 1, stage: str = ""
) -> PaidSteps:
    """A second series, a step of which is taken by hand at the end of every `every`-th step of the series that `descend` runs.

    Call it before `descend`, which is charged after it: a resumed run goes on where the checkpoint of the other series stands.
    """
    checkpoint = workspace.checkpoint_of(stage)
    return _paid(data, charge, 0 if checkpoint is None else checkpoint.step // every)


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
