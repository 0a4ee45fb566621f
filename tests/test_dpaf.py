"""DPAF: the length of normalised features, what one record can do to an aggregate, conv2's gradients, both phases, the claim."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import optimize, stats
from torch.nn import functional

from pictures import shaded
from plans import plan_of
from sfumato.cli.main import app
from sfumato.data import Batch, Dataset, Schema
from sfumato.errors import BadInput
from sfumato.files import read_json
from sfumato.generators.dpaf import Discriminator, Encoder, simplified_instance_norm
from sfumato.methods import Dpaf, get_method, list_methods
from sfumato.methods.dpaf_phases import (
    CONV1,
    JOINT,
    PUBLISHED_FEATURES,
    FilterGradients,
    compressed,
    features_and_label,
    features_by_class,
)
from sfumato.privacy import (
    BoundedSum,
    Budget,
    Charge,
    Neighbours,
    enforced_bound,
    epsilon_of,
)
from sfumato.privacy.gate import _map_of
from sfumato.privacy.query import plan
from sfumato.report import write_report
from sfumato.report.grid import run_cell
from sfumato.testing.sums import check_map

SHAPES = [(1, 28, 28), (3, 32, 32), (1, 8, 8), (3, 10, 6), (3, 64, 64), (1, 128, 128), (1, 4, 100)]
TINY = {**Dpaf.TINY, "first_phase": "random", "first_steps": 4}
LABELLED = Schema(kind="images", shape=(1, 8, 8), classes=("a", "b"))
UNLABELLED = Schema(kind="images", shape=(1, 8, 8))
BUDGET = Budget(epsilon=5.0, delta=1e-4)


def encoder(shape=(1, 8, 8), maps=4) -> Encoder:
    torch.manual_seed(0)
    return Encoder(shape, maps)


def asked(label: str, rows, **settings):
    """Rows as the wall takes them: by the query that the method promises."""
    promised = Dpaf(maps=4, **settings).queries(LABELLED, BUDGET)
    return _map_of(next(q for q in promised if q.label == label), rows)


# -- networks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_the_parts_fit_together_for_images_of_any_size(shape):
    network = Discriminator(shape, 3, maps=4)
    features = network.encoder(torch.rand(2, *shape))
    assert features.shape == (2, *network.encoder.shape)
    assert max(features.shape[2:]) <= 8
    assert features[0, 0].numel() >= 2  # a map of one number has no variance
    assert network(torch.rand(2, *shape)).shape == (2, 3)
    assert network.logit(features, torch.tensor([0, 2])).shape == (2,)


NUMBERS = st.one_of(st.sampled_from([0.0, 1.0, -5.0, 1e-40, 1e12]), st.floats(-1e3, 1e3, width=32))


@given(hnp.arrays(np.float32, (2, 3, 4, 5), elements=NUMBERS))
@settings(max_examples=80, deadline=None)
def test_every_normalised_map_has_the_one_length_or_none(maps):
    norms = simplified_instance_norm(torch.from_numpy(maps)).double().flatten(2).norm(dim=2)
    whole = torch.full_like(norms, math.sqrt(20))
    assert bool((torch.isclose(norms, whole, rtol=1e-4) | (norms == 0)).all())


@pytest.mark.parametrize("value", [0.0, 0.3, -7.1, 1e6])
def test_a_constant_map_becomes_zero_with_a_slope_that_is_a_number(value):
    maps = torch.full((1, 2, 7, 7), value, requires_grad=True)
    normal = simplified_instance_norm(maps)
    assert bool((normal == 0).all())
    normal.sum().backward()
    assert bool(torch.isfinite(maps.grad).all())


def test_normalised_maps_are_those_of_instance_normalisation():
    maps = torch.randn(5, 3, 6, 4) * 9 + 2
    expected = functional.instance_norm(maps, eps=0.0)
    assert torch.allclose(simplified_instance_norm(maps), expected, atol=1e-5)


# -- aggregation ---------------------------------------------------------------------------------------------------


def aggregate(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    summand = BoundedSum(asked("aggregated features", features_by_class(encoder())))
    return summand(Batch(images, labels)).double() * summand.grid


def test_no_record_moves_an_aggregate_by_more_than_its_bound_and_some_by_just_that():
    phi = asked("aggregated features", features_by_class(encoder()))
    assert phi.bound == pytest.approx(math.sqrt(4) * 4)  # √m · p: four maps of 4 × 4
    source = torch.Generator().manual_seed(0)
    farthest = {"removed": 0.0, "replaced": 0.0}
    edges = torch.stack([torch.zeros(8, 8), torch.ones(8, 8), torch.eye(8)])[:, None]
    for trial in range(60):
        images = torch.rand(6, 1, 8, 8, generator=source)
        images = images.round() if trial % 2 else images
        images[trial % 6] = edges[trial % 3]
        labels = torch.randint(2, (6,), generator=source)
        total = aggregate(images, labels)
        out = float((total - aggregate(images[1:], labels[1:])).norm())
        other, label = images.clone(), labels.clone()
        other[0], label[0] = 1 - images[0], 1 - labels[0]
        swapped = float((total - aggregate(other, label)).norm())
        farthest["removed"] = max(farthest["removed"], out)
        farthest["replaced"] = max(farthest["replaced"], swapped)
    assert farthest["removed"] <= enforced_bound(phi)
    assert farthest["removed"] > 0.999 * phi.bound
    assert farthest["replaced"] <= 2 * enforced_bound(phi)
    assert farthest["replaced"] > 1.3 * phi.bound  # so removal's bound would not do


def test_records_search_for_the_worst_replacement_in_vain():
    """Gradient ascent on one record's distance from another: the features part as far as they can, and the bound holds."""
    net = encoder()
    first = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    pixels = torch.zeros(1, 1, 8, 8, requires_grad=True)
    optimiser = torch.optim.Adam([pixels], lr=0.1)
    for _ in range(40):
        optimiser.zero_grad()
        distance = (net(first) - net(torch.sigmoid(pixels))).norm()
        (-distance).backward()
        optimiser.step()
    bound = asked("aggregated features", features_by_class(net)).bound
    assert 1.3 * bound < float(distance.detach()) <= 2 * bound * (1 + 1e-5)


def test_features_are_filed_by_class_and_unknown_labels_dropped():
    images = torch.rand(3, 1, 8, 8)
    total = aggregate(images, torch.tensor([1, -1, 1]))
    assert bool((total[0] == 0).all())
    expected = encoder()(images[[0, 2]]).flatten(1).sum(dim=0).double()
    assert torch.allclose(total[1], expected, atol=1e-3)


def test_the_published_aggregate_carries_the_labels():
    phi = asked(PUBLISHED_FEATURES, features_and_label(encoder(), 2), paper_variant=True)
    rows = phi(Batch(torch.rand(3, 1, 8, 8), torch.tensor([1, 0, -1])))
    assert rows[:, -2:].tolist() == [[0, 1], [1, 0], [0, 0]]
    assert float(rows.norm(dim=1).max()) <= phi.bound * (1 + 1e-6)


# -- conv2 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 10, 6), (1, 28, 28)])
def test_a_records_conv2_gradient_is_autograds(shape):
    net = encoder(shape)
    images, labels = torch.rand(5, *shape), torch.tensor([0, 1, 1, 0, 1])
    slopes = torch.randn(2, *net.shape)
    found = FilterGradients(net, slopes, bound=1.0, keep=1.0).gradients(images, labels)
    for i in range(5):
        loss = (net(images[i : i + 1]) * slopes[labels[i]]).sum()
        grads = torch.autograd.grad(loss, list(net.conv2.parameters()))
        expected = torch.cat([g.flatten() for g in grads])
        assert torch.allclose(found[i], expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 20, 33)])  # conv1 of one layer, and of two
@pytest.mark.parametrize("part", ["conv1", "both"])
def test_a_records_gradient_of_conv1_is_autograds_too(shape, part):
    net = encoder(shape)
    of = net if part == "both" else net.conv1
    images, labels = torch.rand(70, *shape), torch.arange(70) % 2
    slopes = torch.randn(2, *net.shape)
    found = FilterGradients(net, slopes, bound=1.0, keep=1.0, of=of).gradients(images, labels)
    for i in (0, 1, 69):
        loss = (net(images[i : i + 1]) * slopes[labels[i]]).sum()
        expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*of.parameters()])])
        assert torch.allclose(found[i], expected, atol=1e-3, rtol=1e-3)


def test_conv2_gradients_add_up_to_that_of_the_loss_at_the_average():
    net, images = encoder(), torch.rand(6, 1, 8, 8)
    average = net(images).mean(dim=0, keepdim=True)
    loss = average.square().sum() + average.sum()
    (slope,) = torch.autograd.grad(loss, average, retain_graph=True)
    whole = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*net.conv2.parameters()])])
    rows = FilterGradients(net, slope, bound=1.0, keep=1.0).gradients(images, None)
    assert torch.allclose(rows.mean(dim=0), whole, atol=1e-4)


def test_compression_keeps_the_largest_entries_as_they_are():
    rows = torch.randn(4, 50)
    kept = compressed(rows, 0.9)
    assert (kept != 0).sum(dim=1).tolist() == [45] * 4
    for before, after in zip(rows, kept, strict=True):
        gone = before[after == 0].abs()
        assert float(gone.max()) <= float(after[after != 0].abs().min())
        assert torch.equal(after[after != 0], before[after != 0])
    assert torch.equal(compressed(rows, 1.0), rows)
    assert torch.equal(compressed(torch.ones(2, 10), 0.5), torch.ones(2, 10))


def test_conv2_gradients_are_compressed_and_then_clipped():
    net, images = encoder(), torch.rand(5, 1, 8, 8)
    labels = torch.tensor([0, 1, 0, -1, 1])
    slopes = torch.randn(2, *net.shape)
    plain = FilterGradients(net, slopes, bound=1.0, keep=1.0).gradients(images, labels)
    unit = float(plain.norm(dim=1).median())
    rows = FilterGradients(net, slopes, bound=0.5, keep=0.9, unit=unit)(Batch(images, labels))
    expected = compressed(plain, 0.9) / unit
    expected *= (0.5 / expected.norm(dim=1, keepdim=True)).clamp(max=1)
    expected[3] = 0  # no known class
    assert torch.allclose(rows, expected, atol=1e-5)
    assert float(rows.norm(dim=1).max()) <= 0.5 * (1 + 1e-5)


def test_rows_depend_on_no_other_record():
    net = encoder()
    images, labels = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 0, 1])
    others = images.clone()
    others[1:] = math.nan
    filters = FilterGradients(net, torch.randn(2, *net.shape), bound=1.0, keep=0.9)
    for phi in (
        asked("conv2 gradients", filters),
        asked("aggregated features", features_by_class(net)),
        asked(PUBLISHED_FEATURES, features_and_label(net, 2), paper_variant=True),
    ):
        whole = phi(Batch(images, labels))[0]
        assert torch.allclose(whole, phi(Batch(images[:1], labels[:1]))[0], atol=1e-5)
        assert torch.equal(whole, phi(Batch(others, labels))[0])


# -- the plan ------------------------------------------------------------------------------------------------------


def test_all_mechanisms_are_calibrated_together():
    neighbours = Neighbours.REPLACE_ONE
    budget = Budget(epsilon=3.0, delta=1e-5, neighbours=neighbours)
    method = Dpaf(first_phase="dp-sgd", rate=0.05, steps=80, first_steps=20)
    charges = method.promise(LABELLED, budget).charges
    alone = [epsilon_of((c,), 1e-5, neighbours) for c in charges]
    assert max(alone) < 3.0 < sum(alone)  # composed: cheaper than adding ε's
    assert {c.label: (c.steps, c.rate) for c in charges} == {
        "class counts": (1, 1.0),
        "classifier gradients": (20, 0.05),
        "conv2 gradients": (10, pytest.approx(0.4)),
        "aggregated features": (80, 0.05),
    }


def test_shares_of_the_budget_are_shares_of_the_squared_noise():
    method = Dpaf(first_phase="dp-sgd", first_share=0.1, filter_share=0.3)
    charges = plan_of(method, LABELLED, 7.0)[1:]
    spent = [c.steps * (c.rate / c.noise_multiplier) ** 2 for c in charges]
    assert [s / sum(spent) for s in spent] == pytest.approx([0.1, 0.3, 0.6])
    for phase, schema in (("dp-sgd", UNLABELLED), ("random", LABELLED)):  # without a first phase
        assert len(plan_of(Dpaf(**{**TINY, "first_phase": phase}), schema, 1.0)) == 3


def spent(method: Dpaf, budget: Budget) -> list[float]:
    """Of the squared noise budget without the counts, what each release has."""
    charges = plan(method.queries(LABELLED, budget), 7.0)[1:]
    found = [c.steps * (c.rate / c.noise_multiplier) ** 2 for c in charges]
    return [f / sum(found) for f in found]


def test_parts_of_epsilon_are_those_of_gaussian_sums():
    """By a second route: σ of (ε, δ) from the exact condition Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ) = δ."""

    def sigma(epsilon: float) -> float:
        def excess(s: float) -> float:
            near, far = 0.5 / s - epsilon * s, -0.5 / s - epsilon * s
            return stats.norm.cdf(near) - math.exp(epsilon) * stats.norm.cdf(far) - 1e-5

        return optimize.brentq(excess, 1e-2, 1e3)

    for epsilon, parts in ((1.0, (0.1, 0.8, 0.1)), (10.0, (0.1, 9.8, 0.1)), (3.0, (0.6, 1.8, 0.6))):
        split = "20%,60%,20%" if epsilon == 3 else "0.1,rest,0.1"
        squares = [sigma(part) ** -2 for part in parts]
        budget = Budget(epsilon=epsilon, delta=1e-5)
        wanted = [s / sum(squares) for s in squares]
        assert spent(Dpaf(first_phase="dp-sgd", split=split), budget) == pytest.approx(
            wanted, rel=1e-3
        )
    # What the paper adds up is composed: the whole costs no more than ε, and nearly that.
    promise = Dpaf(first_phase="dp-sgd", split="0.1,rest,0.1").promise(LABELLED, BUDGET)
    assert (
        0.98 * BUDGET.epsilon
        < epsilon_of(promise.charges, BUDGET.delta, BUDGET.neighbours)
        <= BUDGET.epsilon
    )
    none = spent(Dpaf(first_phase="separate", split="0.1,rest,0.1"), Budget.none(delta=1e-5))
    assert none == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("0.1,rest", "conv1, conv2, aggregates"),
        ("rest,rest,0.1", "more than one rest"),
        ("0.1,much,0.1", "'much'"),
        ("3,rest,2", "does not fit into ε = 5"),
        ("50%,60%,20%", "does not fit"),
        ("0,rest,1", "'0'"),
    ],
)
def test_a_split_that_cannot_be_is_refused(split, message):
    with pytest.raises(BadInput, match=message):
        Dpaf(first_phase="dp-sgd", split=split).promise(LABELLED, BUDGET)


@pytest.mark.parametrize("bad", [{"asymmetry": 7}, {"filter_share": 0.95}, {"paper_variant": True}])
def test_settings_that_do_not_go_together_are_refused(bad):
    schema = UNLABELLED if "paper_variant" in bad else LABELLED
    with pytest.raises(BadInput, match=next(iter(bad))):
        plan_of(Dpaf(**{**TINY, **bad}), schema, 1.0)


# -- the fit -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_phase", ["random", "dp-sgd", "published"])
def test_conv1_is_frozen_in_the_second_phase_and_conv2_is_not(first_phase, monkeypatch):
    made: list[Discriminator] = []
    plain = Dpaf.critic
    monkeypatch.setattr(Dpaf, "critic", lambda *args: made.append(plain(*args)) or made[-1])
    published = first_phase == "published"
    how = {"paper_variant": True} if published else {"first_phase": first_phase}
    method = Dpaf(**{**TINY, **how}).fit(shaded(), BUDGET)
    fresh = plain(method, LABELLED)
    trained = [n for n in made if not same(n.head, fresh.head)]
    # Of the two networks that were trained, the classifier came first and left its conv1.
    first, second = (fresh, *trained)[-2:]
    assert len(trained) == (1 if first_phase == "random" else 2)
    assert same(second.encoder.conv1, first.encoder.conv1)
    assert same(second.encoder.conv1, fresh.encoder.conv1) == (first_phase == "random")
    assert not same(second.encoder.conv2, fresh.encoder.conv2)
    assert not same(second.encoder.conv2, first.encoder.conv2)
    if published:  # trained on records, next to without noise
        assert not same(first.encoder.conv2, fresh.encoder.conv2)


@pytest.mark.parametrize(
    ("first_phase", "labels"),
    [
        ("separate", ["conv1 gradients", "conv2 gradients"]),
        ("joint", ["conv1 and conv2 gradients"]),
    ],
)
@pytest.mark.parametrize("labelled", [True, False])
def test_in_the_papers_ablations_conv1_learns_in_the_discriminator(
    first_phase, labels, labelled, monkeypatch
):
    made: list[Discriminator] = []
    plain = Dpaf.critic
    monkeypatch.setattr(Dpaf, "critic", lambda *args: made.append(plain(*args)) or made[-1])
    data = shaded()
    data = data if labelled else Dataset.from_arrays(data.images)
    method = Dpaf(**{**TINY, "first_phase": first_phase}).fit(data, BUDGET)
    fresh = plain(method, data.schema)
    (second,) = [n for n in made if not same(n.head, fresh.head)]
    assert not same(second.encoder.conv1, fresh.encoder.conv1)
    assert not same(second.encoder.conv2, fresh.encoder.conv2)
    charges = {c.label: c for c in method.statement_.charges}
    assert [*charges][1:-1] == labels
    numbers = sum(p.numel() for p in fresh.encoder.parameters())
    assert sum(charges[label].dimension for label in labels) == numbers
    assert {charges[label].steps for label in labels} == {method.steps // method.asymmetry}
    assert len(method.sample(3)) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "first_phase"), [((3, 64, 64), "joint"), ((1, 128, 128), "dp-sgd")]
)
def test_it_fits_and_samples_images_of_64_and_128_pixels(shape, first_phase):
    pixels = np.random.default_rng(0).integers(0, 256, (16, *shape), dtype=np.uint8)
    data = Dataset.from_arrays(pixels, np.arange(16) % 2, classes=2)
    how = {**TINY, "steps": 3, "batch": 4, "first_steps": 1, "first_phase": first_phase}
    made = Dpaf(**how).fit(data, BUDGET).sample(2, seed=0)
    assert made.images.shape == (2, *shape)
    assert made.images.std() > 0


@pytest.mark.parametrize("part", ["conv1", "both"])
def test_no_record_moves_the_gradients_of_conv1_by_more_than_its_bound(part):
    phase, label = ("joint", JOINT) if part == "both" else ("separate", CONV1)
    net = encoder()
    of = net if part == "both" else net.conv1
    rows = FilterGradients(net, 1e6 * torch.randn(2, *net.shape), bound=1.0, keep=0.9, of=of)
    check_map(asked(label, rows, first_phase=phase), LABELLED, counts=(1, 3))


def same(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("labelled", [True, False])
def test_with_a_generous_budget_samples_get_the_structure_of_the_records(labelled):
    """Left half dark, right half bright: SIN hides the brightness of a map, and shows where it is."""
    pixels = np.zeros((200, 1, 8, 8), dtype=np.uint8)
    pixels[..., 4:] = 230
    noise = np.random.default_rng(0).integers(0, 25, pixels.shape, dtype=np.uint8)
    labels = np.arange(200) % 2 if labelled else None
    data = Dataset.from_arrays(pixels + noise, labels, classes=2 if labelled else None)
    changes = {"steps": 60, "batch": 24, "decay": 0.8}
    method = Dpaf(**{**TINY, **changes}, learning_rate=0.01, critic_rate=0.01)
    images = method.fit(data, Budget(epsilon=500.0, delta=1e-4)).sample(60, seed=0).images / 255
    assert images[..., 4:].mean() - images[..., :4].mean() > 0.3


# -- the published variant -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unsound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unsound") / "run"
    return Dpaf(**TINY, paper_variant=True).fit(shaded(), BUDGET, out=folder), folder


def test_the_published_variant_tells_its_true_cost_and_calls_the_rest_a_claim(unsound):
    fitted, folder = unsound
    statement = fitted.statement_
    assert not statement.sound
    assert statement.epsilon > 1e5
    assert statement == Dpaf(**TINY, paper_variant=True).promise(LABELLED, BUDGET)
    claim = statement.claim()
    assert 4.99 < claim["epsilon"] <= 5.0
    assert len(claim["not_counted"]) == 2
    assert set(claim["counted"]) | set(claim["not_counted"]) == {c.label for c in statement.charges}
    told = read_json(folder / "statement.json")
    assert (told["sound"], told["epsilon"]) == (False, statement.epsilon)
    assert told["claimed"] == claim
    assert all(value > 1e5 for value in told["epsilon_under"].values())
    assert "no promise" in told["not_covered"][0]
    assert "NOT SOUND" in told["paragraph"]
    assert "differential privacy for it, and that claim is wrong" in told["paragraph"]
    assert "satisfies" not in told["paragraph"]
    config = read_json(folder / "config.json")
    assert (config["sound"], config["budget"]["epsilon"]) == (False, 5.0)


def test_next_to_no_noise_is_priced_as_if_every_record_were_in_every_step():
    sampled = Charge(label="sums", bound=1.0, noise_multiplier=0.009, rate=0.1, steps=5)
    whole = replace(sampled, rate=1.0)
    for neighbours in Neighbours:
        bound = epsilon_of((sampled,), 1e-5, neighbours)
        assert bound == epsilon_of((whole,), 1e-5, neighbours)
        assert bound > 5 / (2 * 0.009**2)
    # That is an upper bound: where both can be computed, sampling costs less.
    sampled, whole = (replace(c, noise_multiplier=0.2) for c in (sampled, whole))
    cost = epsilon_of((sampled,), 1e-5, Neighbours.ZERO_OUT)
    assert cost < epsilon_of((whole,), 1e-5, Neighbours.ZERO_OUT)


def test_the_command_line_warns_too_and_compares_at_no_epsilon_that_is_not_kept():
    command = "plan dpaf --data digits:train --epsilon 2 --delta 1e-5 --set paper_variant=true"
    command += " --set steps=8 --set first_steps=2 --set maps=4"
    told = CliRunner().invoke(app, command.split())
    assert told.exit_code == 0
    assert "NOT SOUND" in told.output
    as_json = json.loads(CliRunner().invoke(app, [*command.split(), "--json"]).stdout)
    assert as_json["sound"] is False
    assert as_json["epsilon"] > 1e5
    assert as_json["claimed"]["epsilon"] <= 2.0
    cell = {"train": "digits:train", "facts": {}, "method": "dpaf", "seed": 0, "public": None}
    cell |= {"epsilon": 2.0, "delta": 1e-5, "neighbours": "zero-out"}
    assert "unsound" in run_cell(cell | {"settings": {"paper_variant": True}})["error"]


def test_the_report_of_the_published_variant_warns_first(unsound):
    _, folder = unsound
    write_report(folder)
    for name in ("report.html", "report.md"):
        page = (folder / name).read_text(encoding="utf-8")
        assert "Not sound." in page
        assert "not private" in page
        assert "-differentially private for one record" not in page


def test_what_is_sound_is_so_by_default_and_says_nothing_of_claims(tmp_path):
    for info in list_methods():
        if "images" in info.kinds:
            assert get_method(info.name)().promise(LABELLED, BUDGET).sound
    statement = Dpaf(**TINY).fit(shaded(), BUDGET, out=tmp_path / "run").statement_
    assert statement.sound
    assert statement.claim() is None
    told = read_json(tmp_path / "run" / "statement.json")
    words = "epsilon delta neighbours unit budget releases epsilon_under epsilon_k not_covered"
    assert list(told) == [*words.split(), "paragraph"]
    assert told["paragraph"].startswith("Everything in this run but the metrics")
    assert "sound" not in read_json(tmp_path / "run" / "config.json")


def test_a_random_conv1_has_the_spread_that_was_asked_for():
    schema = Schema(kind="images", shape=(1, 16, 16), classes=("a", "b"))
    weights = [
        next(iter(Dpaf(maps=64, conv1_std=std).critic(schema).encoder.conv1.parameters())).detach()
        for std in (0.02, 0.02, None)
    ]
    assert float(weights[0].std()) == pytest.approx(0.02, rel=0.1)
    assert torch.equal(weights[0], weights[1])  # by the public seed
    assert float(weights[2].std()) > 0.05
    large = Dpaf(maps=64, conv1_std=0.02).critic(replace(schema, shape=(1, 64, 64))).encoder.conv1
    spreads = [float(p.std()) for p in large.parameters() if p.ndim == 4]
    assert spreads == pytest.approx([0.02, 0.02], rel=0.1)  # of every layer of conv1
