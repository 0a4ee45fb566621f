"""DP-LLM's model: the linear maps, what they say of a record, and the gradient of each record by itself.

Everything in it is public: settings, seed, and weights that were released. Private records are only seen by `Model.gradients`,
inside the wall.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sfumato.data import Batch, Schema
from sfumato.data.sources import Array
from sfumato.privacy import balanced
from sfumato.public.linear import lowest_cosines
from sfumato.public.products import row_product
from sfumato.public.tabular import plain_codec

if TYPE_CHECKING:
    from sfumato.methods.llm import LinearMaps

_FAST, _SLOW = 0.9, 0.999  # Adam's two memories
_MEMORY = 0.1  # share of the steps so far that the averaged weights remember


class Model(nn.Module):
    """M linear maps for each class k over x̃ = [R x, 1], weighed by σ = softmax_m(β g); class scores f_k = Σ_m σ_m^k g_m^k.

    Maps come in `blocks` that see the same inputs: one of all maps, or, where each has a projection R_m of its own, one a map.
    """

    weights: Tensor  # (classes · maps, projected + 1)
    projection: Tensor | None  # R, (blocks, projected, encoded), or None where records are small

    def __init__(self, how: LinearMaps, schema: Schema) -> None:
        super().__init__()
        self.schema, self.beta, self.scale = schema, how.beta, how.input_scale
        self.classes, self.maps = schema.n_classes, how.maps
        self._codec = plain_codec(schema)
        self.names = self._codec.names
        random = torch.Generator().manual_seed(how.seed)
        # Made of the settings again wherever they are: not saved.
        projection = _projection(how, schema, random)
        self.register_buffer("projection", projection, persistent=False)
        self.blocks, projected = block_sizes(how, schema)
        # Different from the start, so that the maps of a class grow apart.
        weights = torch.randn(self.classes * self.maps, projected + 1, generator=random)
        weights /= math.sqrt(projected + 1)
        weights[:, -1] = 0
        self.register_buffer("weights", weights)

    def encode(self, batch: Batch) -> Tensor:
        """Pixels, or a table's numbers in [0, 1] and one-hot categories; (n, encoded)"""
        numbers, hot = self._codec.parts_of(batch)
        return torch.cat([numbers, hot], dim=1) if hot.shape[1] else numbers

    def inputs(self, batch: Batch) -> Tensor:
        """x̃ of every block, (n, blocks, projected + 1)"""
        x = self.encode(batch).to(self.weights.device)
        if self.projection is not None:
            x = row_product(x, self.projection.flatten(0, 1).T)
        if self.scale != 1:
            x = x * self.scale
        x = x.unflatten(1, (self.blocks, -1))
        return torch.cat([x, x.new_ones(*x.shape[:2], 1)], dim=2)

    def activations(self, inputs: Tensor) -> Tensor:
        """g, (n, classes, maps)"""
        g = row_product(inputs.transpose(0, 1), self.by_block(self.weights.T).transpose(0, 1))
        return self.by_class(g.transpose(0, 1).flatten(1))

    def by_block(self, numbers: Tensor) -> Tensor:
        """(n, classes · maps) → (n, blocks, of each)"""
        by_map = numbers.view(len(numbers), -1, self.blocks, self.maps // self.blocks)
        return by_map.transpose(1, 2).flatten(2)

    def by_class(self, numbers: Tensor) -> Tensor:
        """(n, blocks · of each) → (n, classes, maps)"""
        by_map = numbers.view(len(numbers), self.blocks, self.classes, self.maps // self.blocks)
        return by_map.transpose(1, 2).flatten(2)

    def weighted(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """σ, (n, classes, maps), and f, (n, classes)"""
        sigma = torch.softmax(self.beta * g, dim=2)
        return sigma, (sigma * g).sum(dim=2)

    def scores(self, batch: Batch) -> Tensor:
        return self.weighted(self.activations(self.inputs(batch)))[1]

    def filters(self) -> tuple[Array, Array]:
        """The maps in the space of the records: (classes, maps, encoded) and their biases (classes, maps)."""
        shape = (self.classes, self.maps)
        weights = self.weights[:, :-1].view(*shape, -1) * self.scale
        if self.projection is not None:
            weights = torch.einsum(
                "kmp,mpe->kme", weights, self.projection.expand(self.maps, -1, -1)
            )
        return (
            weights.to(torch.float64).numpy().reshape(*shape, -1),
            self.weights[:, -1].to(torch.float64).numpy().reshape(shape),
        )

    def gradients(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Each record's gradient of the cross-entropy with respect to the weights, ∂ loss/∂g ⊗ x̃, as its two factors by block.

        With e = p − y: ∂ loss/∂g_m^k = e_k σ_m^k (1 + β (g_m^k − f_k)). x̃ is scaled to norm 1 and its length put on the other
        factor, whose norm is then that of the whole gradient, √(Σ_m ‖∂ loss/∂g_m‖²·‖x̃_m‖²); the wall clips it. Row-wise, since
        nothing in it sums over records. A record without a known class adds nothing.
        """
        inputs = self.inputs(batch)
        g = self.activations(inputs)  # (n, classes, maps)
        sigma, f = self.weighted(g)
        labels = batch.labels
        assert labels is not None
        hot = (labels[:, None] == torch.arange(self.classes)).to(f)  # (n, classes)
        error = (torch.softmax(f, dim=1) - hot) * hot.sum(dim=1, keepdim=True)
        slopes = error[:, :, None] * sigma * (1 + self.beta * (g - f[:, :, None]))
        return balanced(self.by_block(slopes.flatten(1)).flatten(1), inputs.flatten(1), self.blocks)

    def gradient(self, released: Tensor) -> Tensor:
        """A sum of `gradients`, as the weights lie; (classes · maps, projected + 1)"""
        by_block = released.view(-1, self.weights.shape[1])
        return self.by_class(by_block.T).flatten(1).T


def block_sizes(how: LinearMaps, schema: Schema) -> tuple[int, int]:
    """How many projections there are, and to how many numbers: from public facts. One stands for none as well."""
    wide = plain_codec(schema).dim
    if wide <= how.projection:
        return 1, wide
    return how.maps if how.per_map else 1, how.projection


def _projection(how: LinearMaps, schema: Schema, random: torch.Generator) -> Tensor | None:
    """R, (blocks, projected, encoded), or None where records are small enough. Public: a basis, or drawn from the seed."""
    wide, (blocks, narrow) = plain_codec(schema).dim, block_sizes(how, schema)
    if wide <= narrow:
        return None
    if schema.kind == "table" or how.basis == "random":
        return torch.randn(blocks, narrow, wide, generator=random) / math.sqrt(narrow)
    return lowest_cosines(schema.shape, narrow)[None]


class AveragedAdam:
    """Adam, and the average of the weights it moves. torch's own takes seconds to import, more than a small fit."""

    def __init__(self, weights: Tensor) -> None:
        self.weights, self.average = weights, weights.clone()
        self.mean, self.square = torch.zeros_like(weights), torch.zeros_like(weights)

    def move(self, gradient: Tensor, rate: float, count: int) -> None:
        """The step number `count`, from 1."""
        gradient = gradient.to(self.weights)
        self.mean.lerp_(gradient, 1 - _FAST)
        self.square.mul_(_SLOW).addcmul_(gradient, gradient, value=1 - _SLOW)
        scale = (self.square / (1 - _SLOW**count)).sqrt_().add_(1e-8)
        self.weights.addcdiv_(self.mean, scale, value=-rate / (1 - _FAST**count))
        self.average.lerp_(self.weights, 1 / max(1.0, _MEMORY * count))
