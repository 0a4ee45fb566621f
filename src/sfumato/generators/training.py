"""The one training loop, for free steps and for paid ones: progress, a log, checkpoints, and going on after Ctrl-C or kill -9.

    training = run.training("Training the critic", random, generator=generator, critic=critic, adam=adam)
    for step in training(data.steps("critic gradients")):       # or training(self.steps) where steps are free
        ...
        training.facts["loss"] = float(loss)                    # made of answers and public numbers only

The parts are all that changes in the body, by name: modules, optimisers, tensors that are written in place; and `random`. They
are kept every few seconds. What paid steps answered since then is in the run's store (`privacy.store`), so a resumed run sets out
from the last checkpoint, is given the same answers again, and arrives where it was, to the last bit, without reading a row again.

Nothing here knows of privacy: what the loop is given was released before, or is released by the step itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, overload

import torch
from torch import Tensor, nn

from sfumato.checkpoints import Checkpoint
from sfumato.progress import Progress

Part = nn.Module | torch.optim.Optimizer | Tensor
CHECKPOINT_SECONDS = 10.0


class Series(Protocol):
    """Steps that cost something each: those before `start` were taken already, and are not taken again."""

    def __len__(self) -> int: ...

    def begin(self, start: int) -> Iterator[Any]: ...

    def forget(self, before: int) -> None:
        """What the steps before `before` answered is no longer needed: a checkpoint holds what came of it."""


class Training:
    """One stage of a training: what it changes, where it keeps that, and whom it tells."""

    def __init__(
        self,
        title: str,
        random: torch.Generator,
        *,
        checkpoint: Checkpoint | None = None,
        progress: Progress | None = None,
        log: Callable[[dict[str, Any]], None] | None = None,
        **parts: Part,
    ) -> None:
        self.random = random
        self.facts: dict[str, float | Tensor] = {}  # shown, and logged where there is a log
        self._title, self._parts = title, parts
        self._checkpoint, self._progress, self._log = checkpoint, progress or Progress(), log

    @overload
    def __call__(self, steps: int) -> Iterator[int]: ...
    @overload
    def __call__(
        self, steps: Series, beside: Mapping[Series, int] | None = None
    ) -> Iterator[Any]: ...
    def __call__(self, steps: Any, beside: Mapping[Series, int] | None = None) -> Iterator[Any]:
        """The steps, from where an interrupted training of these parts left off.

        `beside`: other series, begun before `steps` in their order, and how many steps of `steps` go to one of theirs; the body
        takes theirs by hand.
        """
        paid, beside = not isinstance(steps, int), beside or {}
        found = self._restore() if self._checkpoint is not None else None
        start, count = found or 0, len(steps) if paid else steps
        for series, every in beside.items():
            series.begin(start // every)
        taken = steps.begin(start) if paid else iter(range(start, count))
        if self._checkpoint is not None and paid and found is None:
            # What was drawn and trained so far belongs to the steps: answers must be applied again to the same numbers.
            self._save(0)
        began = saved = time.monotonic()
        every_so_often = max(1, count // 100)
        with self._progress.stage(self._title, count) as bar:
            bar.advance(start)
            for done, step in enumerate(taken, start + 1):
                yield step
                now, last = time.monotonic(), done == count
                if done % every_so_often == 0 or last:
                    speed = (done - start) / max(now - began, 1e-9)
                    facts = {name: float(value) for name, value in self.facts.items()}
                    bar.advance(0, **facts, **{"steps/s": speed})
                    if self._log is not None:
                        self._log({"event": "step", "step": done, "steps": count, **facts})
                bar.advance(1)
                due = now - saved > CHECKPOINT_SECONDS or (paid and last)
                if self._checkpoint is not None and due:
                    self._save(done)
                    if paid:
                        steps.forget(done)
                    for series, every in beside.items():
                        series.forget(done // every)
                    saved = time.monotonic()

    def _save(self, step: int) -> None:
        stored = {"random": self.random.get_state()}
        for key, part in self._parts.items():
            if isinstance(part, Tensor):
                stored[key] = part
            elif isinstance(part, nn.Module):
                stored |= {f"{key}:{name}": value for name, value in part.state_dict().items()}
            else:
                for index, state in part.state_dict()["state"].items():
                    stored |= {f"{key}:{index}:{n}": torch.as_tensor(v) for n, v in state.items()}
        assert self._checkpoint is not None
        self._checkpoint.write(step, {name: value.cpu() for name, value in stored.items()})

    def _restore(self) -> int | None:
        """Take back what was kept; the number of steps behind it, or None if nothing was."""
        assert self._checkpoint is not None
        kept = self._checkpoint.read()
        if kept is None:
            return None
        step, found = kept
        try:
            self.random.set_state(found.pop("random"))
            for key, part in self._parts.items():
                start = f"{key}:"
                own = {
                    n.removeprefix(start): found.pop(n) for n in list(found) if n.startswith(start)
                }
                if isinstance(part, Tensor):
                    part.copy_(found.pop(key))
                elif isinstance(part, nn.Module):
                    part.load_state_dict(own)
                else:
                    _restore_optimiser(part, own)
            if found:
                raise KeyError(", ".join(found))
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise self._checkpoint.damaged(error) from error
        return step


def _restore_optimiser(optimiser: torch.optim.Optimizer, stored: dict[str, Tensor]) -> None:
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in stored.items():
        index, key = name.split(":")
        like = parameters[int(index)]
        # Fused optimisers go through memory in order: averages must lie as the weights do (channels last, for one).
        if value.shape == like.shape:
            value = torch.empty_like(like).detach().copy_(value)
        state.setdefault(int(index), {})[key] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
