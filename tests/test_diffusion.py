"""The denoiser beside the mixture: its prior by a second route, gradients of single records, what it learns and what it costs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import sfumato
from plans import plan_of
from sfumato.data import Batch, Dataset, Schema
from sfumato.errors import BadInput
from sfumato.generators.denoiser import Denoiser
from sfumato.generators.mixture import GaussianMixture
from sfumato.methods import Diffusion, Method, Mixture
from sfumato.methods.denoised import STEPS
from sfumato.methods.denoising import Noised, denoising_loss, scale, seen
from sfumato.methods.posterior import Gray, Known, LevelPosterior, spaced
from sfumato.methods.presets import find_preset
from sfumato.privacy import Budget, GradientSum, epsilon_of
from sfumato.public.linear import CosineCodec
from sfumato.testing.methods import small_images
from sfumato.testing.sums import adversarial_records, shuffled_records

TINY = Diffusion.TINY
LOOSE = Budget(epsilon=500.0, delta=1e-4)
TIGHT = Budget(epsilon=5.0, delta=1e-4)
SCHEMA = Schema(kind="images", shape=(1, 6, 6), classes=("a", "b", "c"))


def mixture_of(dim: int, *, classes: int = 3, apart: bool = True, seed: int = 0) -> GaussianMixture:
    """Clusters that overlap; a residual that differs from place to place, and is nothing in one."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    width, clusters = 4, 3
    residual = 0.3 * torch.rand(dim, generator=random)
    residual[0] = 0
    return GaussianMixture(
        means=0.3 * normal(classes, dim),
        basis=torch.linalg.qr(normal(dim, width))[0],
        weights=normal(classes, clusters).softmax(1),
        offsets=0.5 * normal(classes, clusters, width),
        factors=0.5 * normal(classes, clusters if apart else 1, width, width),
        residual=residual,
    )


def by_dense_matrices(mixture: GaussianMixture, x: torch.Tensor, label: int, level: float):
    """The second route: every cluster's whole covariance, its density and its own posterior mean, in double precision."""
    logs, means = [], []
    basis = mixture.basis.double()
    for k, weight in enumerate(mixture.weights[label].double()):
        factor = mixture.factors[label, k % mixture.factors.shape[1]].double()
        covariance = basis @ factor @ factor.T @ basis.T + mixture.residual.double().square().diag()
        mean = mixture.means[label].double() + basis @ mixture.offsets[label, k].double()
        whole = covariance + level**2 * torch.eye(len(mean), dtype=torch.float64)
        law = torch.distributions.MultivariateNormal(mean, whole)
        logs.append(weight.log() + law.log_prob(x.double()))
        means.append(mean + (x.double() - mean) @ torch.linalg.solve(whole, covariance))
    return (torch.stack(logs, 1).softmax(1)[..., None] * torch.stack(means, 1)).sum(1)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("level", [0.02, 0.3, 2.0])
def test_the_posterior_mean_is_that_of_the_whole_covariances(apart, level):
    mixture = mixture_of(12, apart=apart)
    x = torch.randn(20, 12, generator=torch.Generator().manual_seed(1))
    for label in range(3):
        found = LevelPosterior(mixture, level).of_class(x, label)
        expected = by_dense_matrices(mixture, x, label, level)
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=2e-4)


def test_the_posterior_mean_is_the_best_guess_at_draws():
    """Tweedie's other half: no shrinking, stretching or shifting of it comes nearer to what was drawn."""
    mixture, random = mixture_of(8), torch.Generator().manual_seed(2)
    drawn = mixture.draw(torch.zeros(20_000, dtype=torch.int64), random)
    noisy = drawn + 0.4 * torch.randn(drawn.shape, generator=random)
    guess = LevelPosterior(mixture, 0.4).of_class(noisy, 0)
    error = float((guess - drawn).square().mean())
    assert error < 0.8 * float((noisy - drawn).square().mean())
    for other in (0.97 * guess, 1.03 * guess, guess + 0.02, 0.95 * guess + 0.05 * noisy):
        assert float((other - drawn).square().mean()) > error


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 5, 4)])
def test_pictures_are_known_in_pixels_alone_or_together(shape):
    schema = replace(SCHEMA, shape=shape)
    codec = CosineCodec(schema)
    mixture = mixture_of(codec.dim)
    levels = [0.7, 0.1]
    prior = Known(mixture, schema, levels)
    noisy = torch.randn(9, *shape, generator=torch.Generator().manual_seed(3))
    labels = torch.arange(9) % 3
    for number, level in enumerate(levels):
        together = prior.mean_at(noisy, labels, number)
        alone = prior.mean(noisy, labels, torch.full((9,), number))
        torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)
        vectors = codec.waves(noisy / 2 + 0.5)
        for row in range(9):
            mean = by_dense_matrices(mixture, vectors[row : row + 1], row % 3, level / 2)
            pixels = 2 * codec.raw(mean.float()).view(shape) - 1
            torch.testing.assert_close(alone[row], pixels, rtol=1e-3, atol=5e-4)
    mixed = prior.mean(noisy, labels, labels % 2)
    assert torch.equal(mixed[4], prior.mean(noisy[4:5], labels[4:5], labels[4:5] % 2)[0])


def test_without_a_mixture_the_prior_is_edms_skip():
    levels = torch.tensor([0.1, 3.0])
    x = torch.randn(2, 1, 4, 4)
    found = Gray(levels.tolist()).mean(x, torch.zeros(2).long(), torch.arange(2))
    for row, level in enumerate(levels.tolist()):
        torch.testing.assert_close(found[row], x[row] * 0.25 / (level**2 + 0.25))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 6, 5), (3, 10, 6), (1, 64, 64)])
@pytest.mark.parametrize("classes", [0, 3])
def test_the_network_takes_images_of_any_size_and_says_nothing_at_first(shape, classes):
    network = Denoiser(shape, classes, width=4)
    looks = torch.randn(2, 2 * shape[0], *shape[1:])
    made = network(looks, torch.tensor([0.1, 1.0]), torch.tensor([0, max(0, classes - 1)]))
    assert made.shape == (2, *shape) and bool((made == 0).all())


def test_labels_matter_above_class_from_and_not_below():
    network = Denoiser((1, 8, 8), 2, width=4, class_from=0.5)
    torch.nn.init.normal_(network.last.weight)
    looks, ones = torch.randn(1, 2, 8, 8), torch.ones(1, dtype=torch.int64)
    for level, same in ((0.4, True), (0.6, False)):
        told = [network(looks, torch.tensor([level]), label) for label in (ones, 0 * ones)]
        assert torch.equal(*told) == same


def test_beside_a_mixture_the_network_is_not_told_the_class_and_alone_it_is():
    looks, ones = torch.randn(1, 2, 6, 6), torch.ones(1, dtype=torch.int64)
    for base, told_from, same in (
        ("mixture", None, True),
        ("none", None, False),
        ("mixture", 0.0, False),
    ):
        network = Diffusion(base=base, class_from=told_from, width=4).network(SCHEMA)
        torch.nn.init.normal_(network.last.weight)
        shown = looks[:, : 1 if base == "none" else 2]
        made = [network(shown, torch.tensor([1.0]), label) for label in (ones, 0 * ones)]
        assert torch.equal(*made) == same


class Drawn:
    """`Noised` with draws that are a record's own, whatever stands beside it: then sums can be compared to the last bit."""

    def __init__(self, noised: Noised) -> None:
        self.noised = noised

    def __call__(self, batch: Batch, random: torch.Generator) -> tuple[torch.Tensor, ...]:
        rows = []
        for i in range(len(batch)):
            labels = None if batch.labels is None else batch.labels[i : i + 1]
            seed = (
                int(batch.values[i].float().nan_to_num(0.5, 2, -2).clamp(-9, 9).sum() * 1e4) + 10**6
            )
            own = torch.Generator().manual_seed(seed)
            rows.append(self.noised(Batch(batch.values[i : i + 1], labels), own))
        return tuple(torch.cat(parts) for parts in zip(*rows, strict=True))


@pytest.fixture(scope="module")
def noised() -> Noised:
    mixture = mixture_of(CosineCodec(SCHEMA).dim)
    return Noised(Known(mixture, SCHEMA, spaced(1.5, 0.05, 5)), 2, 2)


def gradients_of(noised, bound: float) -> GradientSum:
    torch.manual_seed(0)
    network = Denoiser(SCHEMA.shape, 3, width=4)
    torch.nn.init.normal_(network.last.weight, std=0.3)
    made = GradientSum(network, denoising_loss, bound=bound, inputs=noised)
    made.check(SCHEMA)
    assert made._fast and made._rows == 64  # the fast way, many records at a time
    return made


def test_a_record_moves_a_step_by_its_own_summand_and_no_more_than_the_bound(noised):
    gradients = gradients_of(Drawn(noised), 0.01)
    every = adversarial_records(SCHEMA)
    kinds = Batch(every.values[1::3], every.labels[1::3])
    alone = torch.stack(
        [gradients(Batch(kinds.values[[i]], kinds.labels[[i]])) for i in range(len(kinds))]
    )
    lengths = alone.norm(dim=1)
    assert 0.0099 < float(lengths.max()) <= gradients.enforced
    assert bool((lengths[kinds.labels < 0] == 0).all())
    for count in (1, 63, 64, 65):
        batch, chosen = shuffled_records(kinds, count, seed=count)
        assert torch.equal(gradients(batch), alone[chosen].sum(0))


def test_noise_and_levels_are_each_records_own_and_cover_the_range(noised):
    batch = Batch(torch.rand(400, *SCHEMA.shape), torch.arange(400) % 3)
    looks, wanted, levels, _ = noised(batch, torch.Generator().manual_seed(0))
    assert looks.shape == (400, 2, 2, 6, 6) and wanted.shape == (400, 2, 1, 6, 6)
    # One from each half of the range, every prepared level among them.
    middle = float(noised.prior.levels[2])
    assert bool((levels[:, 0] >= middle).all()) and bool((levels[:, 1] <= middle).all())
    assert set(levels.unique().tolist()) == set(noised.prior.levels.tolist())
    # What the network should say gives the picture back.
    level = levels[:, 0]
    noisy = looks[:, 0, :1] * (level.square() + 0.5).sqrt()[:, None, None, None]
    mean = looks[:, 0, 1:]
    assert torch.equal(seen(noisy, mean, level, 2)[:, 1:], mean)
    clean = mean + scale(level) * wanted[:, 0]
    torch.testing.assert_close(clean, 2 * batch.values - 1, rtol=1e-4, atol=1e-4)
    residue = ((noisy - clean) / level[:, None, None, None]).flatten()
    assert abs(float(residue.mean())) < 0.05 and abs(float(residue.std()) - 1) < 0.05


def test_the_mixture_has_its_part_of_the_budget_and_the_steps_the_rest():
    schema = replace(SCHEMA, shape=(1, 28, 28), records=60_000)
    for epsilon, part in ((1.0, 0.6), (10.0, 1 / 3)):
        budget = Budget(epsilon=epsilon, delta=1e-5)
        charges = Diffusion().promise(schema, budget, size=60_000).charges
        assert charges[-1].label == STEPS
        mu = math.fsum(charge.noise_multiplier**-2 for charge in charges[:-1])
        whole = sfumato.privacy.query.gaussian_noise(budget) ** -2
        assert mu / whole == pytest.approx(part, rel=0.01)
        spent = epsilon_of(charges, budget.delta, budget.neighbours)
        assert spent == pytest.approx(epsilon, rel=2e-3) and spent <= epsilon


def test_more_effort_is_more_visits_and_few_records_get_no_step():
    budget = Budget(epsilon=10.0, delta=1e-5)
    sizes = {
        name: Diffusion(effort=name).size(budget, 60_000) for name in ("minutes", "hour", "hours")
    }
    visits = [size.steps * size.rate * size.levels * size.width**2 for size in sizes.values()]
    assert visits == sorted(visits) and visits[2] > 5 * visits[0]
    assert all(size.rate < 0.05 for size in sizes.values())
    few = Diffusion().size(Budget(epsilon=1.0, delta=1e-5), 1_000)
    assert few.steps == 0
    plan = plan_of(Diffusion(), replace(SCHEMA, records=1_000), 1.0)
    assert STEPS not in [charge.label for charge in plan]


def test_without_steps_samples_are_the_mixtures():
    data = small_images(90)
    fitted = Diffusion(seed=3).fit(data, Budget(epsilon=1.0, delta=1e-4))
    assert fitted.begin_ == 0
    sample = fitted.sample(12, seed=1)
    drawn = fitted.drawn_images(torch.from_numpy(sample.labels), torch.Generator().manual_seed(1))
    assert sample.images.shape == tuple(drawn.shape)
    assert abs(float(sample.images.mean()) - float(drawn.float().mean())) < 30


def test_paid_steps_teach_the_network_what_the_prior_does_not_know():
    """A bright square somewhere on black: gray does not know that, and a denoiser soon does."""
    places = np.random.default_rng(0).integers(0, 6, (128, 2))
    pixels = np.zeros((128, 1, 8, 8), dtype=np.uint8)
    for picture, (down, across) in zip(pixels, places, strict=True):
        picture[0, down : down + 3, across : across + 3] = 255
    data = Dataset.from_arrays(pixels, np.arange(128) % 2, classes=2)
    settings = {"base": "none", "rate": 0.5, "steps": 40, "levels": 1, "width": 8, "high": 1.0}
    fitted = Diffusion(**settings, learning_rate=0.01, decay=0.8).fit(data, LOOSE)
    prior = fitted.prior([0.3])
    clean = torch.from_numpy(data.images).float() / 127.5 - 1
    labels = torch.from_numpy(data.labels)
    noisy = clean + 0.3 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    mean, level = prior.mean_at(noisy, labels, 0), torch.full((len(clean),), 0.3)
    with torch.no_grad():
        told = fitted.denoiser_(seen(noisy, mean, level, 1), level, labels)
    before = (clean - mean).square().mean()
    after = (clean - mean - scale(level) * told).square().mean()
    assert float(after) < 0.8 * float(before)


@pytest.mark.parametrize("base", ["mixture", "none"])
def test_coloured_pictures_without_labels_are_fitted_saved_and_loaded(base, tmp_path):
    data = small_images(60, labelled=False, shape=(3, 10, 6))
    fitted = Diffusion(**TINY, base=base).fit(data, TIGHT, out=tmp_path / "run")
    sample = fitted.sample(9, seed=0)
    sample.check()
    assert sample.schema == data.schema
    assert np.array_equal(Method.load(tmp_path / "run").sample(9, seed=0).images, sample.images)


def test_dpdm_is_a_preset():
    with pytest.warns(UserWarning, match="lacks the paper's network"):
        made = Diffusion.preset("dpdm", data="fashion-mnist", width=4)
    assert (made.base, made.levels, made.steps, made.clip) == ("none", 32, 4_395, 1.0)
    assert made.rate == pytest.approx(4096 / 60_000) and (made.low, made.high) == (0.002, 80.0)
    values = find_preset(Diffusion, "dpdm", data="cifar10").values
    assert (values["levels"], values["steps"]) == (8, 12_207) and values["learning_rate"] == 3e-4


def test_settings_that_do_not_go_together_are_a_sentence():
    for wrong in ({"low": 2.0}, {"start": 3.0}, {"start": 0.01}):
        with pytest.raises(BadInput, match="choose low < start ≤ high"):
            plan_of(Diffusion(**wrong), SCHEMA, 1.0)
    with pytest.raises(BadInput, match="at least 4 × 4"):
        plan_of(Diffusion(), replace(SCHEMA, shape=(1, 3, 8)), 1.0)


def test_the_mixture_is_asked_as_much_as_its_part_is_good_for():
    schema = replace(SCHEMA, shape=(1, 28, 28), records=60_000)
    budget = Budget(epsilon=10.0, delta=1e-5)
    whole = {q.label: q.dim for q in Mixture().queries(schema, budget)}
    part = {q.label: q.dim for q in Diffusion().queries(schema, budget)[:-1]}
    assert part.keys() == whole.keys()
    assert part["class second moments"] < whole["class second moments"]
