"""DP-HP whole: what is charged, how rounds are drawn, tables, and that it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from plans import plan_of
from sfumato.data import Column, Dataset, Schema
from sfumato.errors import BadInput
from sfumato.generators import ClassedGenerator, ConvGenerator
from sfumato.generators.embedding import CountedByClass, MeanEmbedding
from sfumato.methods import Hp, SavedRun
from sfumato.methods.distances import HermiteDistance
from sfumato.privacy import Budget, enforced_bound
from sfumato.privacy.store import packed
from sfumato.public.hermite import Hermite, SumKernel
from sfumato.public.tabular import Block, plain_codec
from sfumato.testing.methods import small_images

BUDGET = Budget(epsilon=5.0, delta=1e-4)
TINY = {"order": 6, "product_order": 3, "rounds": 3, "steps": 15, "batch": 20, "hidden": 16}
POINTS = Schema(
    kind="table",
    columns=(
        Column(name="x", kind="numerical", low=-1, high=5),
        Column(name="y", kind="numerical", low=-1, high=5),
        Column(name="colour", kind="categorical", categories=("red", "green", "blue")),
        Column(name="size", kind="categorical", categories=("s", "m", "l")),
    ),
)


# -- what is charged -----------------------------------------------------------------------------------------------


def test_every_round_is_charged_and_the_shares_are_of_the_squared_budget():
    plan = plan_of(Hp(**TINY, product_share=0.25), small_images().schema, 2.0)
    assert [c.label for c in plan] == ["sum kernel"] + [f"product kernel {r}" for r in (1, 2, 3)]
    parts = [(2.0 / c.noise_multiplier) ** 2 for c in plan]
    assert parts == pytest.approx([0.75] + [0.25 / 3] * 3)


def test_the_sharper_bound_is_the_one_that_is_charged():
    schema = Schema(kind="images", shape=(1, 28, 28), classes=tuple("0123456789"))
    plan = plan_of(Hp(length_scale=0.005), schema, 1.0)
    assert plan[0].bound == pytest.approx(math.sqrt(0.6868 + 0.01), rel=2e-3)
    assert plan[1].bound == pytest.approx(0.3573, rel=3e-3)
    assert plan[0].dimension == 10 * (101 * 784 + 1)
    assert plan[1].dimension == 10 * 441
    kernel, products = Hp(length_scale=0.005)._kernels(schema)
    assert plan[0].bound == enforced_bound(CountedByClass(kernel, 10, 0.1))
    assert plan[1].bound == enforced_bound(products[0])


def test_rounds_draw_different_coordinates_by_the_public_seed_alone():
    drawn = [
        tuple(k.parts for k in Hp(**TINY, seed=s)._kernels(small_images().schema)[1])
        for s in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 3
    assert all(len(set(parts)) == 2 for parts in drawn[0])


def test_a_table_of_few_columns_has_as_many_rounds_as_there_are_choices():
    two = Schema(kind="table", columns=POINTS.columns[:2])
    assert len(plan_of(Hp(**TINY), two, 1.0)) == 2
    one = Schema(kind="table", columns=POINTS.columns[:1])
    (only,) = plan_of(Hp(**TINY), one, 1.0)
    assert only.noise_multiplier == 1.0
    assert len(plan_of(Hp(**{**TINY, "rounds": 0}), small_images().schema, 1.0)) == 1
    products = Hp(**{**TINY, "rounds": 6})._kernels(POINTS)[1]
    assert {type(part) for kernel in products for part in kernel.parts} == {int, Block}


# -- the loss ------------------------------------------------------------------------------------------------------


class _Fixed(torch.nn.Module):
    def __init__(self, made: torch.Tensor) -> None:
        super().__init__()
        self.made = made

    def forward(self, labels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return self.made


def test_the_loss_on_the_grid_is_the_squared_distance_of_embeddings():
    rng = torch.Generator().manual_seed(0)
    encoding = plain_codec(POINTS)
    kernel = SumKernel(encoding, Hermite(25, 0.05, 4.0))
    made = torch.rand(2, 6, encoding.numbers, generator=rng)
    hot = torch.nn.functional.one_hot(torch.randint(3, (2, 6, 2), generator=rng), 3).flatten(2)
    made = torch.cat([made, hot.float()], dim=2)  # (classes, 6, numbers + places)
    mean = torch.randn(2, kernel.dim, generator=rng) * 0.05
    # Only what a record's features can reach is compared: put the target there.
    embedding = MeanEmbedding(mean, torch.tensor([0.6, 0.4]), 0.0)
    matching = HermiteDistance(_Fixed(made.flatten(0, 1)), kernel, embedding, [], (2.0, 1.0), 12)
    numbers, orders = encoding.numbers, 26
    by_number = mean[:, : orders * numbers].view(2, orders, numbers).transpose(1, 2).double()
    reach = matching.grid.rotation
    turned = (by_number @ reach @ reach.T).transpose(1, 2).flatten(1)
    target = torch.cat([turned.float(), mean[:, orders * numbers :]], dim=1)
    terms = kernel.features(made[..., :numbers]).permute(0, 1, 3, 2).flatten(2)
    features = torch.cat([terms, made[..., numbers:]], dim=2) * kernel.scale
    expected = 0.0
    for c in range(2):
        gram = features[c] @ features[c].T
        pairs = (gram.sum() - gram.trace()) / 30
        cross = (features[c].mean(dim=0) * target[c]).sum()
        weight = float(embedding.shares[c])
        term = weight**2 * pairs - 2 * weight * cross + target[c].square().sum()
        expected += float(embedding.emphasis[c] * term)
    found = float(matching.loss(0, rng))
    assert found == pytest.approx(2.0 * expected, rel=5e-3)


# -- learning ------------------------------------------------------------------------------------------------------


def pairs_of_points(n: int = 20_000) -> Dataset:
    """Two clusters; colour and size agree always, which no marginal shows."""
    rng = np.random.default_rng(0)
    side = rng.integers(0, 2, n)
    where = np.where(side[:, None] == 1, [4.0, 0.0], [0.0, 4.0]) + 0.2 * rng.standard_normal((n, 2))
    colour = rng.integers(0, 3, n)
    values = np.c_[where.clip(-1, 5), colour, colour]
    return Dataset.from_values(values, None, schema=POINTS)


def test_the_product_kernel_teaches_what_marginals_cannot():
    settings = {"order": 20, "product_order": 8, "length_scale": 0.02, "hidden": 48, "batch": 200}
    method = Hp(**settings, rounds=6, product_share=0.5, gamma=1.0, steps=500)
    values = method.fit(pairs_of_points(), BUDGET).sample(3000, seed=0).values
    together = np.mean((values[:, 0] > 2) != (values[:, 1] > 2))
    assert together > 0.85
    assert np.mean(values[:, 2] == values[:, 3]) > 0.7
    assert 0.3 < np.mean(values[:, 0] > 2) < 0.7


@pytest.mark.parametrize(("network", "made"), [("conv", ConvGenerator), ("auto", ClassedGenerator)])
def test_runs_from_before_and_after_classes_had_their_own_layers_open(network, made):
    fitted = Hp(**TINY, network=network).fit(small_images(), BUDGET)
    weights = fitted.generator_.state_dict()
    old = Hp(**TINY)  # network=auto, as runs of 0.1.0 and 0.2 have it
    old.schema_ = fitted.schema_
    state = {f"network.{name}": value for name, value in weights.items()}
    old._take_back(packed({**state, "shares": fitted.shares_}))
    assert type(old.generator_) is made
    labels = torch.tensor([0, 1, 1])
    drawn = [m.generator_(labels, torch.Generator().manual_seed(1)) for m in (fitted, old)]
    assert torch.equal(*drawn)


def test_a_release_of_a_version_with_more_settings_serves_if_they_were_as_they_are_built_in(
    tmp_path, monkeypatch
):
    Hp(**TINY).fit(small_images(), BUDGET, out=tmp_path / "run")
    told = SavedRun(tmp_path / "run").config

    def again(**former) -> Hp:
        edited = {**told, "settings": {**told["settings"], **former}}
        monkeypatch.setattr(SavedRun, "config", edited)
        return Hp(**TINY).refit(tmp_path / "run")

    again(product_dims=2, stretch=None)
    with pytest.raises(BadInput, match="product_dims=3"):
        again(product_dims=3)


def test_products_of_several_columns_are_drawn_within_the_limit(monkeypatch):
    """Each round multiplies product_dims columns; a product that is too wide is drawn again, and if all are that is told."""
    from sfumato.public import hermite

    numbers = [Column(name=f"n{i}", kind="numerical", low=0.0, high=1.0) for i in range(6)]
    words = tuple(f"w{i}" for i in range(9))
    categories = [Column(name=f"c{i}", kind="categorical", categories=words) for i in range(3)]
    schema = Schema(kind="table", columns=(*numbers, *categories))
    for dims in (2, 3, 5):
        products = Hp(product_order=2, product_dims=dims, rounds=4)._kernels(schema)[1]
        assert len(products) == 4 and all(len(kernel.parts) == dims for kernel in products)
        for kernel in products:
            assert kernel.left * kernel.right == math.prod(map(kernel._width, kernel.parts))
    monkeypatch.setattr(hermite, "_MOST_NUMBERS", 3**5)
    for kernel in Hp(product_order=2, product_dims=5, rounds=4)._kernels(schema)[1]:
        assert kernel.left * kernel.right <= 3**5
    monkeypatch.setattr(hermite, "_MOST_NUMBERS", 10)
    with pytest.raises(BadInput, match="smaller product_dims"):
        Hp(product_order=2, product_dims=5)._kernels(schema)


def test_by_default_tables_have_products_of_five_columns_cut_to_what_exact_noise_can_do():
    numbers = [Column(name=f"n{i}", kind="numerical", low=0.0, high=1.0) for i in range(6)]
    words = tuple(f"w{i}" for i in range(200))
    wide = [Column(name=f"c{i}", kind="categorical", categories=words) for i in range(6)]
    five = Hp()._kernels(Schema(kind="table", columns=tuple(numbers)))[1]
    assert {len(kernel.parts) for kernel in five} == {5}
    assert len({kernel.parts for kernel in five}) == len(five) == 6  # of six columns there are six
    for columns in ((*numbers, *wide), tuple(wide)):
        cut = Hp()._kernels(Schema(kind="table", columns=columns, label="y", classes=("a", "b")))[1]
        assert len(cut) == 8 and {len(kernel.parts) for kernel in cut} <= {2, 3, 4, 5}
        assert all(2 * kernel.left * kernel.right <= 2**18 for kernel in cut)
        whole = Hp()._kernels(Schema(kind="table", columns=columns, label="y", classes=("a", "b")))
        assert [kernel.parts for kernel in whole[1]] == [kernel.parts for kernel in cut]
    # A pair may have more: it is all that is left of its columns.
    huge = tuple(f"w{i}" for i in range(600))
    pairs = [Column(name=f"c{i}", kind="categorical", categories=huge) for i in range(2)]
    (kernel,) = Hp()._kernels(Schema(kind="table", columns=tuple(pairs)))[1]
    assert kernel.left * kernel.right == 600**2


@pytest.mark.parametrize("wanted", [True, False])
def test_self_pairs_are_counted_in_both_kernels_or_in_neither(wanted):
    """With them the loss is ‖μ̃ − mean φ‖² less the noise's energy, by the features themselves."""
    model = Hp(**TINY, self_pairs=wanted).fit(small_images(), BUDGET)
    embeddings = [model._embedding, *(embedding for _, embedding in model._products)]
    assert [embedding.self_pairs for embedding in embeddings] == [wanted] * 4
    phi, target = model._products[0]
    made = torch.rand(15, 64)  # five of each of three classes
    distance = model.distance(model.generator_)
    (loss,) = [float(distance._product_distance(made, 5, phi, target))]
    left, right = phi.of(made, made[:, :0])
    features = (left[:, :, None] * right[:, None, :]).flatten(1).view(3, 5, -1)
    mean = target.mean.flatten(1)
    apart = features.mean(dim=1) * target.shares[:, None] - mean
    terms = apart.square().sum(dim=1) - mean.shape[1] * target.noise_std**2
    if not wanted:  # b of b² pairs are taken out, and what is left is an average over b(b − 1)
        whole, own = features.sum(dim=1).square().sum(dim=1), features.square().sum(dim=(1, 2))
        terms = terms + target.shares.square() * ((whole - own) / 20 - whole / 25)
    assert loss == pytest.approx(float((target.emphasis * terms).sum()), rel=1e-3, abs=1e-6)


def test_gamma_weighs_the_kernel_that_it_is_put_on():
    """γ on the product is 1 ÷ γ on the sum, but for the factor γ."""
    data = small_images(60)
    model = Hp(**TINY).fit(data, Budget(epsilon=1.0, delta=1e-5), allow_empty=True)
    losses = {}
    for gamma, on in ((4.0, "sum"), (0.25, "product")):
        model.gamma, model.gamma_on = gamma, on
        distance = model.distance(model.generator_)
        with torch.no_grad():
            first = float(distance.loss(0, torch.Generator().manual_seed(1)))
            losses[on] = [first, distance.final(torch.Generator().manual_seed(1), 100)]
    assert losses["sum"] == pytest.approx([4 * x for x in losses["product"]], rel=1e-4)
