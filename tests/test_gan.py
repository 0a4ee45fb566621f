"""The adversarial methods: networks that treat records one by one, steps that learn, resumption, bad settings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pictures import shaded
from plans import plan_of
from sfumato.data import Batch, Column, Dataset, Schema
from sfumato.errors import BadInput
from sfumato.generators.gan import (
    HeadedCritic,
    ImageCritic,
    ImageGenerator,
    TableCritic,
    TableGenerator,
    VectorGenerator,
    move_average,
)
from sfumato.methods import Gan, GanFt, GanMi
from sfumato.methods.adversarial_losses import labelled as labelled_inputs
from sfumato.methods.adversarial_losses import looks_generated
from sfumato.privacy import Budget, GradientSum
from sfumato.public.resolve import get_codec

SHAPES = [(1, 28, 28), (3, 32, 32), (1, 8, 8), (3, 10, 6), (3, 64, 64), (1, 128, 128), (1, 17, 33)]
TINY = Gan.TINY
LOOSE = Budget(epsilon=500.0, delta=1e-4)
TIGHT = Budget(epsilon=5.0, delta=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("classes", [0, 3])
def test_critics_judge_images_of_any_size_but_tiny_ones(shape, classes):
    labels = torch.arange(4) % max(1, classes)
    assert ImageCritic(shape, classes, width=4)(torch.rand(4, *shape), labels).shape == (4,)
    with pytest.raises(BadInput, match="at least 4"):
        plan_of(Gan(), Schema(kind="images", shape=(1, 3, 8)), 1.0)


@pytest.mark.parametrize("classes", [0, 3])
def test_critics_pass_the_walls_trial_and_take_the_fast_way(classes):
    schema = Schema(kind="images", shape=(1, 28, 28), classes=tuple("abc"[:classes]))
    critic = ImageCritic((1, 28, 28), classes, width=8)
    gradients = GradientSum(critic, looks_generated, bound=1.0, inputs=labelled_inputs)
    gradients.check(schema)
    assert gradients._fast


TABLE = Schema(
    kind="table",
    columns=(
        Column(name="age", kind="numerical", low=0, high=100),
        Column(name="size", kind="numerical", low=0, high=10, missing=True),
        Column(name="town", kind="categorical", categories=("a", "b", "c")),
    ),
    label="y",
    classes=("no", "yes"),
)


def test_a_tables_critic_passes_the_walls_trial_and_takes_the_fast_way():
    method = Gan(width=2)
    method.schema_ = TABLE
    inputs = method.inputs(torch.nn.Identity())
    gradients = GradientSum(method.critic(TABLE), looks_generated, bound=1.0, inputs=inputs)
    gradients.check(TABLE)
    assert gradients._fast
    # A missing number lies in the middle and says so; a row of no class is dropped by the wall, which sees NaN.
    rows = torch.tensor([[50.0, np.nan, 1.0], [100.0, 10.0, 2.0]])
    seen, labels = inputs(Batch(rows, torch.tensor([1, -1])), torch.Generator())
    assert seen[0].tolist() == [0.5, 0.5, 0, 1, 0, 1, 0] and seen[1].isnan().all()
    assert labels.tolist() == [1, 0]


def test_a_tables_generator_draws_categories_in_training_and_gradients_pass():
    torch.manual_seed(0)
    generator = TableGenerator(1, 2, 3, [8], blocks=[3, 2])
    labels = torch.tensor([0, 1] * 100)
    made = generator(labels, torch.Generator().manual_seed(1))
    hot = made[:, 1:]
    assert set(hot.detach().unique().tolist()) <= {0.0, 1.0}
    assert torch.equal(hot[:, :3].sum(dim=1), torch.ones(200))
    TableCritic(6, 2, 8)(made, labels).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in generator.parameters())
    assert any(bool(p.grad.abs().sum() > 0) for p in generator.layers[-1].parameters())
    generator.eval()
    shares = generator(labels, torch.Generator().manual_seed(1))[:, 1:4].detach()
    assert float(shares.min()) > 0 and torch.allclose(shares.sum(dim=1), torch.ones(200))


def test_with_a_generous_budget_a_table_has_the_records_categories_by_class():
    random = np.random.RandomState(0)
    labels = random.randint(2, size=400)
    town = np.where(random.rand(400) < 0.9, labels, 2).astype(np.float32)
    values = np.stack([20.0 + 60 * labels, np.full(400, 5.0), town], axis=1).astype(np.float32)
    data = Dataset.from_values(values, labels, schema=TABLE)
    settings = {"rate": 0.5, "steps": 60, "critic_steps": 1, "batch": 64, "latent": 4, "width": 4}
    method = Gan(**settings, learning_rate=0.01, critic_rate=0.01, decay=0.8)

    def fits() -> bool:
        sample = method.fit(data, LOOSE).sample(300, seed=0)
        own = [(sample.values[sample.labels == c, 2] == c).mean() for c in (0, 1)]
        ages = [sample.values[sample.labels == c, 0].mean() for c in (0, 1)]
        return min(own) > 0.5 and ages[1] - ages[0] > 30

    assert any(fits() for _ in range(4))  # adversaries swing, and the noise has no seed


def test_labels_matter_to_generator_and_critic():
    torch.manual_seed(0)
    ones, zeros = torch.ones(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    generator, critic = ImageGenerator((1, 8, 8), 2, 4, 4), ImageCritic((1, 8, 8), 2, 4)
    made = [generator(y, torch.Generator().manual_seed(1)) for y in (ones, zeros)]
    assert not torch.allclose(*made)
    assert not torch.allclose(critic(made[0], ones), critic(made[0], zeros))
    vectors = VectorGenerator(6, 2, 4, 8)(ones, torch.Generator().manual_seed(1))
    assert vectors.shape == (3, 6)
    assert HeadedCritic(6, 2, 8)(vectors, ones).shape == (3,)


def test_the_moving_average_moves_by_the_rest_of_the_decay():
    torch.manual_seed(0)
    first, second = (HeadedCritic(2, 0, 3) for _ in range(2))
    before = [p.detach().clone() for p in first.parameters()]
    move_average(first, second, 0.75)
    for kept, old, new in zip(first.parameters(), before, second.parameters(), strict=True):
        assert torch.allclose(kept, 0.75 * old + 0.25 * new)


def brightness(method, data: Dataset | None = None, **more) -> float:
    return float(method.fit(data or shaded(200), LOOSE, **more).sample(60, seed=0).images.mean())


@pytest.mark.parametrize("labelled", [True, False])
def test_with_a_generous_budget_samples_become_as_bright_as_the_records(labelled):
    settings = {**TINY, "steps": 90, "critic_steps": 1, "batch": 32, "decay": 0.8}
    torch.manual_seed(0)  # one start in ten is brighter or darker
    network = ImageGenerator((1, 8, 8), 2, 4, 4)
    start = float(network(torch.zeros(9, dtype=torch.int64), torch.Generator()).detach().mean())
    assert 0.4 < start < 0.6
    method = Gan(**settings, learning_rate=0.01, critic_rate=0.01)
    data = shaded(200, labelled=labelled)
    # Adversaries swing, and the noise has no seed: now and then a fit ends on the way back.
    assert any(brightness(method, data) / 255 > 0.68 for _ in range(4))


def test_fine_tuning_begins_from_public_images():
    settings = {**TINY, "steps": 2, "critic_steps": 1, "decay": 0.0, "batch": 32}
    method = GanFt(**settings, public_steps=90, learning_rate=0.01, critic_rate=0.01)
    assert brightness(method, public=shaded(40, seed=3)) / 255 < 0.4


@pytest.mark.parametrize("same", [True, False])
def test_public_labels_are_used_only_if_the_classes_are_the_same(same):
    public = shaded(40, seed=3, labelled=same)
    fitted = GanFt(**TINY, public_steps=2).fit(shaded(200), TIGHT, public=public)
    assert len(fitted.sample(5, seed=0)) == 5


@pytest.mark.parametrize("at", ["line", "record"])
def test_the_wasserstein_loss_by_hand(at):
    losses = GanMi(codec="dct:16", penalty=3.0, penalty_at=at).losses
    weight = torch.tensor([3.0, 4.0])

    def critic(vectors, labels):
        return (vectors @ weight) * vectors[:, 0]  # slope (6 a + 4 b, 4 a) at (a, b)

    class Constant(torch.nn.Linear):  # a network is asked where it lies
        def forward(self, labels, _):
            return made

    real, made = torch.tensor([[1.0, 0.5]]), torch.tensor([[0.0, 1.0]])
    batch = Dataset.from_arrays(np.zeros((1, 2, 1, 1), np.uint8)).take(np.array([0]))
    inputs = losses.inputs(lambda _: real, Constant(1, 1))(batch, torch.Generator().manual_seed(0))
    a, b = inputs[2][0].tolist()
    assert (a, b) == (1.0, 0.5) if at == "record" else 0 < a < 1 and b == pytest.approx(1 - a / 2)
    norm = ((6 * a + 4 * b) ** 2 + (4 * a) ** 2) ** 0.5
    expected = 0 - 5 + 3 * (norm if at == "record" else (norm - 1) ** 2)
    assert float(losses.of_record(critic, *inputs)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("at", ["line", "record"])
@pytest.mark.parametrize("method", [GanMi, GanFt])
def test_a_record_and_its_companion_are_clipped_as_one(method, at):
    """The sum of one record is no longer than the bound, although the loss of the pair has slopes far beyond it."""
    more = {} if method is GanMi else {"loss": "wasserstein"}
    model = method(codec="dct:16", width=8, latent=4, penalty=1e4, penalty_at=at, **more)
    data = shaded(200)
    model.schema_ = data.schema
    model.build(data.schema)
    model.codec_ = get_codec("dct:16", data.schema)
    critic = model.critic(data.schema)
    inputs = model.losses.inputs(model.encode, model.generator_)
    one = data.take(np.array([5]))
    sums = [
        GradientSum(critic, model.losses.of_record, bound=bound, inputs=inputs)(one)
        for bound in (0.3, 1e6)
    ]
    assert float(sums[0].norm()) == pytest.approx(0.3, rel=2e-3)
    assert float(sums[1].norm()) > 3


@pytest.mark.parametrize("loss", [pytest.param("logistic", marks=pytest.mark.slow), "wasserstein"])
def test_vectors_are_fine_tuned_from_public_vectors(loss):
    settings = {**GanFt.TINY, "steps": 2, "critic_steps": 2, "decay": 0.0, "batch": 64, "width": 16}
    method = GanFt(**settings, codec="dct:4", loss=loss, learning_rate=1e-6, critic_rate=1e-6)
    method.set_params(public_steps=200)
    dark = shaded(40, seed=3)  # the records have 200
    still, moved = (
        brightness(method.set_params(public_rate=rate), public=dark) for rate in (None, 0.01)
    )
    assert still > 110
    assert moved < 80


def test_the_networks_of_gan_ft_and_what_does_not_go_together():
    schema = Schema(kind="images", shape=(3, 32, 32), classes=("a", "b"))
    dense = GanFt(codec="dct:64", width=1024, latent=128, loss="wasserstein")
    dense.build(schema)
    widths = [
        [p.shape[1] for p in n.parameters() if p.ndim == 2]
        for n in (dense.generator_, dense.critic(schema))
    ]
    assert widths == [[130, 1024, 1024, 1024], [64, 1024, 1024, 1024]]
    for wrong, words in (
        ({"loss": "wasserstein"}, "name a codec"),
        ({"network": "resnet9", "codec": "dct:64"}, "leave out one"),
    ):
        with pytest.raises(BadInput, match=words):
            plan_of(GanFt(**wrong), schema, 1.0)


@pytest.mark.parametrize("side", [32, pytest.param(64, marks=pytest.mark.slow)])
def test_the_resnet9_critic_treats_records_one_by_one(side):
    schema = Schema(kind="images", shape=(3, side, side), classes=("a", "b"))
    model = GanFt(network="resnet9", width=5)  # no group of eight channels
    critic = model.critic(schema)
    assert sum(isinstance(m, torch.nn.Conv2d) for m in critic.modules()) == (
        8 if side == 32 else 10
    )
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in critic.modules())
    gradients = GradientSum(critic, model.losses.of_record, bound=1e-5, inputs=labelled_inputs)
    gradients.check(schema)
    assert gradients._fast


def test_the_residual_networks_are_fine_tuned_and_saved(tmp_path):
    settings = {**GanFt.TINY, "network": "resnet9", "clip": 1e-5}
    method = GanFt(**settings).fit(shaded(60), TIGHT, public=shaded(40, seed=3))
    method.save(tmp_path / "run")
    drawn = [m.sample(5, seed=1).images for m in (method, GanFt.load(tmp_path / "run"))]
    assert np.array_equal(*drawn)


def test_a_latent_network_learns_the_vectors_with_a_generous_budget():
    settings = {**TINY, "steps": 240, "critic_steps": 3, "width": 16, "batch": 64, "decay": 0.9}
    method = GanMi(codec="dct:4", **settings, learning_rate=0.01, grain=0.0)
    # Records have 200, the network begins with 137; 199 ± 12 in ten fits.
    assert brightness(method) > 145


@pytest.mark.parametrize("cls", [Gan, GanMi])
def test_each_class_gets_its_own_images(cls):
    light, dark = shaded(220), shaded(30)
    of_class = light.labels == 1
    images = np.where(of_class[:, None, None, None], light.images, dark.images)
    data = Dataset.from_arrays(images, light.labels, classes=2)
    settings = {**TINY, "critic_steps": 1, "batch": 64, "learning_rate": 0.005}
    if cls is GanMi:  # narrow ones forget a class in every seventh fit
        settings |= {"codec": "dct:4", "width": 48, "steps": 250, "decay": 0.95}
    else:
        settings |= {"width": 16, "critic_rate": 0.01, "steps": 150, "decay": 0.5}
    method = cls(**settings, grain=0.0)
    sample = method.fit(data, LOOSE).sample(60, seed=0)
    means = [sample.images[sample.labels == c].mean() for c in (0, 1)]
    assert means[1] - means[0] > 90  # 30 fits each: at least 165


def test_a_second_fit_keeps_nothing_of_the_first():
    method = GanMi(codec="dct:16", **TINY).fit(shaded(200), TIGHT)
    first = method.codec_
    method.left_over_ = torch.ones(3)
    method.set_params(codec="dct:4").fit(shaded(200), TIGHT)
    assert (first.dim, method.codec_.dim) == (16, 4)
    assert method.sample(3, seed=0).images.shape == (3, 1, 8, 8)
    assert not hasattr(method, "left_over_")
