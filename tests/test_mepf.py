"""DP-MEPF: the promise, the loss by a second route, early stopping, resuming, and refusals before a row is read."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from pictures import striped
from plans import plan_of
from sfumato.data import Dataset
from sfumato.errors import BadInput
from sfumato.generators import ConvGenerator, training
from sfumato.generators.embedding import MeanEmbedding
from sfumato.methods import Method, mepf, mepf_matching, private_encoder
from sfumato.methods.base import Workspace
from sfumato.methods.matched import minimise
from sfumato.methods.mepf import Mepf
from sfumato.methods.mepf_matching import PerceptualDistance, Target
from sfumato.methods.saved import learnt
from sfumato.privacy import Budget, Neighbours, RunStore, bounding
from sfumato.progress import Progress
from sfumato.public.perceptual import (
    NetworkEncoder,
    PerceptualFeatures,
    ScatteringEncoder,
    clouds,
    public_rows,
    weighed_axes,
)
from sfumato.public.pretrained import SmallResNet, load_extractor, save_extractor
from sfumato.public.weights import get_network
from sfumato.testing.methods import small_images

TINY = {"steps": 6, "batch": 12, "hidden": 16, "width": 4, "latent": 8, "stop_records": 30}
BUDGET = Budget(epsilon=2.0, delta=1e-4)
LOOSE = Budget(epsilon=50.0, delta=1e-4)


@pytest.fixture(autouse=True)
def _few_records(monkeypatch):
    monkeypatch.setattr(mepf, "_METRIC_RECORDS", 60)
    monkeypatch.setattr(Mepf, "FINAL", (mepf_matching.FINAL_SEED, 60))
    monkeypatch.setattr(mepf_matching, "_RULE_RECORDS", 60)
    monkeypatch.setattr(mepf_matching, "_RULE_AGREES", 0.0)


def target_of(*, seed: int = 0) -> Target:
    phi = PerceptualFeatures(ScatteringEncoder((1, 8, 8)))
    random = torch.Generator().manual_seed(seed)
    mean = torch.rand(3, phi.dim, generator=random) / phi.dim**0.5
    return Target(phi, MeanEmbedding(mean, torch.tensor([0.5, 0.3, 0.2]), 1e-3))


class Constant(nn.Module):
    """A generator whose images are its parameters."""

    def __init__(self, n: int = 6) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(5)
        self.pixels = nn.Parameter(torch.rand(n, 1, 8, 8, generator=random))

    def forward(self, labels, generator):
        return self.pixels[: len(labels)]


def distance_of(target, stopping=None, **settings) -> PerceptualDistance:
    return PerceptualDistance(Constant(), target, stopping, **{"batch": 6, "steps": 100} | settings)


# -- the loss ----------------------------------------------------------------------------------------------------------


def test_the_loss_is_the_unbiased_mmd_of_the_embedding():
    part = target_of()
    matching = distance_of(part)
    rows = part.phi.of(matching.generator.pixels.detach()).view(3, 2, -1)
    sums, squares = rows.sum(1), rows.square().sum(2).mean(1)
    second = part.embedding.mmd2(sums, 2, squares, slice(None), part.embedding.emphasis)
    found = matching.loss(0, torch.Generator()).detach()
    assert float(found) == pytest.approx(float(second), rel=1e-4)


def test_the_moving_average_is_adam_on_a_free_vector():
    part = target_of()
    matching = distance_of(part, loss="moving-average", average_rate=0.02)
    rows = part.phi.of(matching.generator.pixels).detach()
    means = part.embedding.shares[:, None] * rows.view(3, 2, -1).mean(1)
    gap = (part.embedding.mean - means) * 3 * math.sqrt(part.phi.dim)
    free = torch.zeros_like(gap, requires_grad=True)
    adam = torch.optim.Adam([free], lr=0.02, betas=(0.5, 0.999))
    for step in range(5):
        loss = matching.loss(step, torch.Generator())
        adam.zero_grad()
        (0.5 * (free - gap).square().sum()).backward()
        adam.step()
    assert torch.allclose(matching.average, free.detach(), atol=1e-4)
    emphasis = part.embedding.emphasis[:, None]
    wanted = 2 * (emphasis * free.detach() * gap).sum() / (9 * part.phi.dim)
    assert float(loss) == pytest.approx(float(wanted), rel=1e-3)


@pytest.mark.parametrize("loss", ["mmd", "averaged", "moving-average"])
@pytest.mark.parametrize("weighed", [False, True])
def test_training_brings_the_embedding_nearer(loss, weighed):
    part = target_of()
    if weighed:
        rows = public_rows(part.phi, clouds((1, 8, 8), 50), 50)
        part = replace(part, metric=weighed_axes(rows, 30, 0.5, 0.0))
    matching = distance_of(part, loss=loss, average_rate=0.05)
    aim = part.seen(part.embedding.mean)

    def distance() -> float:
        rows = part.seen(part.phi.of(matching.generator.pixels))
        return float(matching._distance(rows, 2, part, aim))

    before, run = distance(), Workspace(RunStore(), Progress())
    rate = lambda step: 0.02 * 0.9 ** (step * 5 // 60)  # noqa: E731
    minimise(matching, matching.loss, run, steps=60, seed=0, rate=rate)
    assert distance() < 0.7 * before


class Spread(nn.Module):
    """Pictures of a convolution, so that there is something to compute in short numbers."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(5)
        self.pixels = nn.Parameter(torch.rand(6, 1, 8, 8, generator=random))
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        with torch.no_grad():
            self.conv.weight.normal_(0, 0.3, generator=random)
            self.conv.bias.fill_(0.5)
        self.kinds: set[torch.dtype] = set()

    def forward(self, labels, generator):
        made = self.conv(self.pixels[: len(labels)])
        self.kinds.add(made.dtype)
        return made


def test_short_numbers_are_for_the_networks_alone_and_change_little():
    part, slopes = target_of(), {}
    for precision in ("float32", "bfloat16"):
        short = precision == "bfloat16"
        network = Spread()
        matching = PerceptualDistance(network, part, batch=6, steps=100, short=short)
        loss = matching.loss(0, torch.Generator())
        assert network.kinds == {torch.bfloat16 if short else torch.float32}
        assert loss.dtype == torch.float32
        loss.backward()
        slopes[precision] = network.conv.weight.grad.flatten()
        assert slopes[precision].dtype == torch.float32
        # What chooses among generators is as exact as without.
        network.kinds.clear()
        matching.final(torch.Generator().manual_seed(0), 6)
        assert network.kinds == {torch.float32}
    near = torch.cosine_similarity(slopes["float32"], slopes["bfloat16"], dim=0)
    assert 0.98 < float(near) < 1.0
    assert not torch.equal(slopes["float32"], slopes["bfloat16"])


# -- the promise -------------------------------------------------------------------------------------------------------


def test_the_second_release_is_a_tenth_as_sharp_as_the_first():
    budget = Budget(epsilon=2, delta=1e-4, neighbours=Neighbours.REPLACE_ONE)
    embedding, stopping = Mepf(**TINY, stop=True).fit(small_images(), budget).statement_.charges
    assert stopping.noise_multiplier == pytest.approx(10 * embedding.noise_multiplier)
    assert embedding.replace_ratio == stopping.replace_ratio == pytest.approx(math.sqrt(2))
    assert embedding.dimension == stopping.dimension == 3 * (2 * (4 + 64 + 256) + 1)
    other = Mepf(**TINY, encoder="scattering", stop=True, stop_encoder="alexnet")
    plan = plan_of(other, small_images(shape=(3, 40, 40)).schema, 1.0)
    assert [c.label for c in plan] == ["perceptual embedding", "early stopping"]


def test_the_smaller_sensitivity_buys_less_noise():
    budget = Budget(epsilon=1, delta=1e-5, neighbours=Neighbours.REPLACE_ONE)
    plain, signed = (  # centred features have signs
        Mepf(**TINY, centre=centre).promise(small_images().schema, budget).charges[0]
        for centre in (False, True)
    )
    ratio = signed.noise_multiplier / plain.noise_multiplier
    assert ratio == pytest.approx(math.sqrt(2), rel=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"moments": 1, "balance": True},
        {"loss": "moving-average"},
        {"centre": True, "stop": True},
        {"centre": True, "radius": 0.5},
        {"network": "resnet", "device": "auto"},
    ],
)
@pytest.mark.parametrize("labelled", [True, False])
def test_every_variant_fits_samples_and_is_loaded_with_its_rule(settings, labelled, tmp_path):
    public = small_images(40, seed=2) if settings.get("centre") else None
    fitted = Mepf(**TINY, **settings).fit(striped(300, labelled=labelled), LOOSE, public=public)
    assert math.isfinite(fitted.loss_)
    assert fitted.log_[-1] == {"event": "matched", "training_seed": 0, "loss": fitted.loss_}
    # and no weights of the encoder
    found = learnt(fitted, but=("statement_", "schema_", "log_"))
    assert set(found) == {"generator_", "shares_", "loss_", "rule_", "tone_"}
    again = Method.load(fitted.save(tmp_path / "run"))
    assert again.loss_ == fitted.loss_
    assert (again.rule_ is not None) == labelled
    assert np.array_equal(again.sample(30, seed=0).images, fitted.sample(30, seed=0).images)


def test_without_noise_to_speak_of_classes_come_out_as_they_are():
    labels = np.arange(400) % 2
    pixels = np.random.default_rng(0).integers(0, 30, (400, 1, 8, 8), dtype=np.uint8)
    pixels[labels == 0, :, :4] += 200
    pixels[labels == 1, :, :, 4:] += 200
    method = Mepf(**{**TINY, "steps": 150, "batch": 20}, learning_rate=0.01, moments=1)
    data = Dataset.from_arrays(pixels, labels, classes=2)
    sample = method.fit(data, Budget(epsilon=100, delta=1e-5)).sample(200, seed=0)
    for label in (0, 1):
        found = sample.images[sample.labels == label].mean(0)
        wanted, other = (pixels[labels == c].mean(0) for c in (label, 1 - label))
        assert np.abs(found - wanted).mean() < 0.5 * np.abs(found - other).mean()


def test_of_several_generators_the_nearest_to_the_release_is_kept(tmp_path):
    fitted = Mepf(**TINY, restarts=3).fit(small_images(), BUDGET, out=tmp_path / "run")
    losses = {r["training_seed"]: r["loss"] for r in fitted.log_ if r["event"] == "matched"}
    assert sorted(losses) == [0, 1, 2]
    assert fitted.loss_ == min(losses.values())
    best = Mepf(**TINY, training_seed=min(losses, key=losses.get)).refit(tmp_path / "run")
    assert best.loss_ == fitted.loss_
    assert np.array_equal(best.sample(20, seed=0).images, fitted.sample(20, seed=0).images)


# -- early stopping ----------------------------------------------------------------------------------------------------


def test_early_stopping_leaves_the_generator_nearest_to_the_second_release():
    matching = distance_of(target_of(), target_of(seed=9), steps=20)
    scores = []
    honest = matching._score

    def noted(target, *arguments):
        score = honest(target, *arguments)
        if target is matching.stopping:
            scores.append(score)
        return score

    matching._score = noted
    seen = {}
    for step in range(20):
        with torch.no_grad():
            matching.generator.pixels.fill_(0.9 if step < 15 else 0.1 * (step - 15)).add_(
                0.05 * torch.rand(6, 1, 8, 8)
            )
        matching.loss(step, torch.Generator())
        if len(scores) > len(seen):
            seen[len(scores) - 1] = matching.generator.pixels.detach().clone()
    matching.final(torch.Generator(), 60)
    assert len(scores) == 21  # 20 on the way, from step 0 on, the last at the end
    best = int(np.argmin(scores[:-1]))
    assert scores[best] < scores[-1] or best == len(scores) - 2
    assert torch.equal(matching.generator.pixels, seen[best])


def test_the_papers_early_stopping_releases_4097_numbers_of_all_classes_together():
    schema = small_images(shape=(3, 32, 32)).schema
    for taps in (None, "pool3"):
        how = Mepf(**TINY, stop=True, stop_encoder="fid-inception", stop_taps=taps, moments=1)
        training, stopping = plan_of(how, schema, 1.0)
        assert stopping.dimension == 2 * 2048 + 1
        assert training.dimension % 3 == 0 and training.dimension > stopping.dimension
        assert stopping.noise_multiplier == pytest.approx(10 * training.noise_multiplier)
        assert stopping.bound == pytest.approx(math.sqrt(2 + mepf._COUNT**2), rel=1e-3)
        assert stopping.replace_ratio == pytest.approx(math.sqrt(2))  # averages of ReLUs


@pytest.fixture
def extractor(tmp_path) -> str:
    torch.manual_seed(3)
    settings = {"classes": 3, "width": 8, "repeats": 1, "stride": 1}
    card = {"about": "a test", "trained_on": [], "licence": "none needed"}
    return str(save_extractor(tmp_path / "x.safetensors", SmallResNet(**settings), settings, card))


def spied(monkeypatch) -> list[PerceptualDistance]:
    made: list[PerceptualDistance] = []
    plain = PerceptualDistance.__init__
    monkeypatch.setattr(
        PerceptualDistance,
        "__init__",
        lambda self, *a, **k: made.append(self) or plain(self, *a, **k),
    )
    return made


def test_named_layers_give_both_moments_of_all_records_by_hand(extractor, monkeypatch):
    made, data = spied(monkeypatch), small_images()
    how = {
        "stop": True,
        "stop_encoder": extractor,
        "stop_taps": "stem",
        "moments": 1,
        "balance": True,
    }
    Mepf(**TINY, **how).fit(data, Budget.none(delta=1e-5))
    found = made[0].stopping.embedding
    network, seen = load_extractor(Path(extractor)), []
    for image in data.images:
        pixels = torch.from_numpy(image)[None].float() / 255
        (rows,) = NetworkEncoder(network, ("stem",), data.schema.shape)(pixels)
        seen.append(rows[0].double())
    first = torch.stack([e / e.norm() for e in seen]).mean(0)
    second = torch.stack([e**2 / (e**2).norm() for e in seen]).mean(0)
    assert found.mean.shape == (1, 2 * len(first)) and found.shares.tolist() == [1.0]
    assert torch.allclose(found.mean[0].double(), torch.cat([first, second]), atol=1e-3)


@pytest.mark.slow  # and fetches Inception where it is not there
def test_the_papers_early_stopping_runs_with_inception_itself(monkeypatch):
    monkeypatch.setattr(
        bounding, "_SIZES", (16,)
    )  # 1,200 fewer pictures to find good sizes of batches
    made, data = spied(monkeypatch), small_images(30)
    how = {"stop": True, "stop_encoder": "fid-inception", "stop_checks": 2, "stop_records": 12}
    fitted = Mepf(**{**TINY, **how, "checked": False}).fit(data, Budget.none(delta=1e-5))
    assert len(fitted.sample(4)) == 4 and made[0].checks == {0, 3}
    found = made[0].stopping.embedding
    network = get_network("fid-inception")
    with torch.no_grad():
        e = network(data.take(np.arange(30)).pixels()).double()
    assert e.shape == (30, 2048)
    first, second = (x / x.norm(dim=1, keepdim=True) for x in (e, e**2))
    wanted = torch.cat([first.mean(0), second.mean(0)])
    assert found.mean.shape == (1, 4096) and found.shares.tolist() == [1.0]
    assert torch.allclose(found.mean[0].double(), wanted, atol=1e-4)


def test_of_all_classes_together_the_distance_is_that_of_their_mixture():
    part = target_of()
    random = torch.Generator().manual_seed(4)
    mean = torch.rand(1, part.phi.dim, generator=random) / part.phi.dim**0.5
    together = Target(part.phi, MeanEmbedding(mean, torch.ones(1), 2e-3))
    matching = distance_of(part, together)
    rows, labels = matching.made(together, torch.Generator(), 6)
    assert labels.tolist() == [0, 0, 0, 1, 1, 2]  # by the shares 0.5, 0.3 and 0.2
    found = matching._score(together, mean, torch.Generator(), 6)
    pairs = [rows[i] @ rows[j] for i in range(6) for j in range(6) if i != j]
    wanted = sum(pairs) / 30 - 2 * rows.mean(0) @ mean[0] + mean[0] @ mean[0]
    assert found == pytest.approx(float(wanted) - part.phi.dim * 2e-3**2, rel=1e-3)


def test_a_run_stops_early_where_training_goes_wrong(extractor, monkeypatch):
    made, scores, states = spied(monkeypatch), [], []
    plain = PerceptualDistance._score

    def noted(self, target, *arguments):
        score = plain(self, target, *arguments)
        if target is self.stopping:
            scores.append(score)
            states.append({k: v.clone() for k, v in self.generator.state_dict().items()})
        return score

    monkeypatch.setattr(PerceptualDistance, "_score", noted)
    how = {**TINY, "steps": 12, "stop_checks": 6, "learning_rate": 1.0, "decays": 1}
    how |= {"stop": True, "stop_encoder": extractor, "stop_taps": "stem", "checked": False}
    fitted = Mepf(**how).fit(small_images(), LOOSE)
    assert made[0].checks == {0, 2, 4, 6, 8, 10} and len(scores) == 7
    best = int(np.nanargmin(scores))
    assert best < 6  # a learning rate of 1 spoils the generator, which may end in NaN
    for name, value in fitted.generator_.state_dict().items():
        assert torch.equal(value, states[best][name])
    assert any(not torch.equal(v, states[-1][k]) for k, v in states[best].items())


# -- going on and going again ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"loss": "moving-average"}, {"stop": True}])
def test_an_interrupted_fit_goes_on_to_the_same_generator(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    method = partial(Mepf, **{**TINY, "steps": 20}, **settings)
    honest = PerceptualDistance.loss

    def failing(self, step, generator):
        if step == 13:
            raise KeyboardInterrupt
        return honest(self, step, generator)

    monkeypatch.setattr(PerceptualDistance, "loss", failing)
    with pytest.raises(KeyboardInterrupt):
        method().fit(small_images(), BUDGET, out=tmp_path / "run")
    monkeypatch.setattr(PerceptualDistance, "loss", honest)
    resumed = method().fit(small_images(), BUDGET, out=tmp_path / "run", resume=True)
    whole = method().refit(tmp_path / "run")  # from the same release, without a break
    assert np.array_equal(resumed.sample(20, seed=0).images, whole.sample(20, seed=0).images)
    assert resumed.loss_ == whole.loss_


# -- refusals ----------------------------------------------------------------------------------------------------------


class Unread(Dataset):
    def batches(self, size):
        raise AssertionError("a row was read")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"radius": 1.0}, "radius"),
        ({"taps": "order0"}, "takes no layers"),
        ({"stop_encoder": "vgg16"}, "stop"),
        ({"stop_taps": "pool3"}, "stop_taps goes with stop=true"),
        ({"stop": True, "stop_taps": "pool3"}, "takes no layers"),
        ({"stop": True, "stop_encoder": "alexnet", "stop_taps": "pool3"}, "pool3"),
        ({"encoder": "nonet"}, "nonet"),
        ({"encoder": "private", "size": 32}, "size"),
        ({"stop": True, "stop_encoder": "private"}, "stop_encoder must be a public"),
        ({"encoder": "vgg16", "taps": "relu9_9", "size": 32}, "relu9_9"),
        ({"centre": True}, "public"),
        ({"device": "cuda"}, "device=auto"),
    ],
)
def test_senseless_settings_are_refused_before_a_row_is_read(settings, message):
    if "device" in settings and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    data = small_images()
    with pytest.raises(BadInput, match=message):
        Mepf(**{**TINY, **settings}).fit(Unread(data._source, data.schema, data.name), BUDGET)


# -- the metric and the texture ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [12, 200])  # fewer rows than features, and more
def test_full_weighing_gives_every_direction_of_the_public_images_the_same_variance(n):
    rows = torch.randn(n, 30, generator=torch.Generator().manual_seed(1)) * torch.linspace(1, 2, 30)
    metric = weighed_axes(rows, 8, 1.0, 0.0)
    assert metric.shape == (8, 30)
    seen = (rows - rows.mean(0)) @ metric.T
    variances = seen.square().mean(0)
    # the ridge takes a little off
    assert torch.allclose(variances, variances[0].expand(8), rtol=2e-3)
    assert float(metric[0].norm()) == pytest.approx(1.0, abs=1e-5)


def test_directions_that_are_only_noise_are_not_stretched():
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(1)) * torch.tensor(
        [1.0, 0.5, 1e-3, 1e-4]
    )
    lengths = weighed_axes(rows, 4, 1.0, 100.0).norm(dim=1)
    assert torch.allclose(lengths, torch.ones(4), atol=1e-2)


def test_the_noise_in_the_metric_is_what_noise_has_there():
    part = target_of()
    metric = torch.randn(7, part.phi.dim, generator=torch.Generator().manual_seed(2))
    part = replace(part, metric=metric)
    noise = 1e-3 * torch.randn(2000, part.phi.dim, generator=torch.Generator().manual_seed(3))
    assert part.noise == pytest.approx(float(part.seen(noise).square().sum(1).mean()), rel=0.1)


def test_the_running_mean_keeps_its_share():
    part = target_of()
    matching = distance_of(part, loss="averaged")
    means = []
    for step in range(4):
        with torch.no_grad():
            matching.generator.pixels.mul_(0.9)
        rows = part.phi.of(matching.generator.pixels.detach()).view(3, 2, -1).mean(1)
        means.append(part.embedding.shares[:, None] * rows)
        loss = matching.loss(step, torch.Generator())
    running = (means[0] + means[1]) / 2
    running = running * (2 / 3) + means[2] / 3
    running = 0.7 * running + 0.3 * means[3]
    assert torch.allclose(matching.running, running, atol=1e-6)
    weights = part.embedding.emphasis[:, None]
    wanted = 2 * (weights * (running - part.embedding.mean) * means[3]).sum()
    assert float(loss.detach()) == pytest.approx(float(wanted), rel=1e-4)


@pytest.mark.parametrize("classes", [0, 3])
def test_texture_is_drawn_anew_and_learnt_by_class(classes):
    network = ConvGenerator((1, 10, 6), classes, 4, 8, texture=True).eval()
    assert network.texture is not None
    with torch.no_grad():
        network.texture.fine.fill_(-30.0)
        network.texture.coarse.fill_(-30.0)
        network.texture.fine[-1].fill_(2.0)
    labels = torch.full((400,), max(0, classes - 1))
    draw = network.texture(labels, torch.Generator().manual_seed(0))
    assert draw.shape == (400, 1, 12, 8)
    assert float(draw.std()) == pytest.approx(math.log1p(math.exp(2.0)), rel=0.05)
    if classes:
        assert float(network.texture(labels * 0, torch.Generator()).abs().max()) < 1e-9


def test_clouds_are_images_of_all_shades_and_the_same_each_time():
    found = clouds((3, 12, 8), 40).images
    assert found.shape == (40, 3, 12, 8)
    assert np.array_equal(found, clouds((3, 12, 8), 40).images)
    assert found.mean(axis=(1, 2, 3)).std() > 0.1


# -- an encoder of the private data's own, and one that must not be -----------------------------------------------------

PRIVATE = {**TINY, "encoder": "private", "encoder_steps": 5, "encoder_rate": 0.3}


def test_training_a_private_encoder_is_charged_first_and_not_again(tmp_path, monkeypatch):
    data, honest = striped(300), mepf.embedded
    monkeypatch.setattr(mepf, "embedded", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Mepf(**PRIVATE).fit(data, LOOSE, out=tmp_path / "run")
    monkeypatch.setattr(mepf, "embedded", honest)
    fitted = Mepf(**PRIVATE).fit(data, LOOSE, out=tmp_path / "run", resume=True)
    training, embedding = fitted.statement_.charges
    assert (training.label, training.steps, training.rate) == ("private encoder", 5, 0.3)
    # Seven tenths of the squared budget for the embedding, three for five steps at rate 0.3.
    spent = [1 / embedding.noise_multiplier**2, 5 * (0.3 / training.noise_multiplier) ** 2]
    assert [s / sum(spent) for s in spent] == pytest.approx([0.7, 0.3])
    assert fitted.statement_.epsilon <= LOOSE.epsilon
    again = Method.load(tmp_path / "run")
    assert again.rule_ is not None
    assert np.array_equal(again.sample(30, seed=0).images, fitted.sample(30, seed=0).images)
    with pytest.raises(BadInput, match="while it trains"):
        Mepf(**PRIVATE, training_seed=3).refit(tmp_path / "run")
    with pytest.raises(BadInput, match="tell classes apart"):
        Mepf(**PRIVATE).fit(small_images(labelled=False), BUDGET)


def test_a_private_encoder_is_row_wise_and_learns():
    data = striped(300)
    fitted = Mepf(**PRIVATE | {"encoder_steps": 60}).fit(data, Budget(epsilon=1e4, delta=1e-5))
    pixels = torch.from_numpy(data.images) / 255
    with torch.no_grad():
        right = fitted.extractor_(pixels).argmax(1).numpy() == data.labels
    assert right.mean() > 0.8
    encoder = NetworkEncoder(fitted.extractor_, private_encoder.LAYERS, (1, 8, 8))
    for together, alone in zip(encoder(pixels[:5]), encoder(pixels[:1]), strict=True):
        assert torch.allclose(together[:1], alone, atol=1e-6)


def test_a_network_that_was_trained_on_the_private_set_is_refused():
    data = small_images(shape=(3, 8, 8))
    data.published_as = "cifar10:train"
    with pytest.raises(BadInput, match="trained on cifar10"):
        Mepf(**TINY, encoder="resnet18-cifar10", taps="relu").fit(data, BUDGET)
