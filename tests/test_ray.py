"""Sums on a Ray cluster of two raylets: the same totals to the last bit, also when a worker or a machine dies on the way."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import test_neighbours_maps as maps
from runs import silent, still
from sfumato.data import Batch, Dataset, Schema, load
from sfumato.engines import LocalEngine, engine_of
from sfumato.errors import BadInput, ClusterFailed
from sfumato.evaluation import evaluate
from sfumato.methods import Gan, Merf, Mixture, find_methods
from sfumato.methods.shards import sample_shards
from sfumato.privacy import (
    Budget,
    FeatureMap,
    GradientSum,
    Ledger,
    OuterMap,
    PrivateData,
    RunStore,
    enforced_bound,
)
from sfumato.privacy.bounding import summand_of
from sfumato.privacy.memory import Remembered, RememberedRows
from sfumato.privacy.sampling import PoissonSum
from sfumato.privacy.units import SHARES, UnitRows
from sfumato.report.grid import compare
from sfumato.testing import adversarial_records, shuffled_records
from sfumato.testing.methods import BUDGET as BOTH
from sfumato.testing.methods import cases_of, small_images

pytest.importorskip("ray", reason="the extra sfumato[ray] is not installed")
from sfumato.engines import ray as rays
from sfumato.engines.ray import RayEngine

# On one process of pytest-xdist: each would start a cluster of its own.
pytestmark = pytest.mark.xdist_group("cluster")

PARTITIONS = (1, 2, 7)
METHODS = {
    f"{name}, {'table' if case.table else 'images'}": case
    for name, cls in find_methods().items()
    for case in cases_of(cls)
}
PLAIN = Schema(kind="images", shape=(1, 2, 2), classes=("a", "b"))
BUDGET = Budget(epsilon=1e3, delta=1e-5)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two raylets of one processor each."""
    ray = rays._package()
    from ray.cluster_utils import Cluster

    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # workers load maps of tests

    quiet = {"num_cpus": 1, "object_store_memory": 150 * 2**20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=quiet)
    try:
        made.second = made.add_node(num_cpus=1, object_store_memory=150 * 2**20)
        ray.init(address=made.address, log_to_driver=False, configure_logging=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        os.environ["PYTHONPATH"] = before


def numbers(size: int = 400) -> Dataset:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (size, 1, 2, 2), dtype=np.uint8)
    return Dataset.from_arrays(pixels, np.arange(size) % 2, classes=("a", "b"))


class Pixels(FeatureMap):
    """Flat pixels, filed by class."""

    dim, bound, segments = 4, 1.5, 2

    def __call__(self, batch: Batch) -> Tensor:
        return batch.pixels().flatten(1)

    def segment_of(self, batch: Batch) -> Tensor | None:
        return batch.labels


class Symmetric(OuterMap):
    left = right = 4
    left_bound = right_bound = 1.5
    symmetric = True

    def factors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        flat = batch.pixels().flatten(1)
        return flat, flat


# -- the same totals ---------------------------------------------------------------------------------------------------

# Plain, filed, in pieces, products, symmetric products; those of all methods are tried by the slow test.
QUICK = {
    "plain": (maps.Plain(30, 0.7), 30),
    "filed": (maps.Plain(3, 0.7, segments=3, positive=True), 3),
    "by place": (maps.Narrow(), 13),
    "product": (maps.Pair(5), 7),
    "symmetric": (maps.Pair(5, symmetric=True), 5),
}


def check_equal(phi: Any, data: Dataset) -> None:
    summand = summand_of(phi)
    expected = LocalEngine().total(data, summand)
    assert bool(expected.any())
    for partitions in PARTITIONS:
        found = RayEngine(partitions=partitions).total(data, summand)
        assert found.dtype == torch.int64
        assert torch.equal(found, expected), f"{partitions} partitions"


@pytest.mark.parametrize("name", QUICK)
def test_any_number_of_partitions_gives_the_local_total(name, cluster):
    phi, width = QUICK[name]
    rows = torch.cat([maps.at_the_bound(width, phi.bound), maps.random(1300, width) * 0.3])
    rows[5], rows[77, 0], rows[500, -1] = float("nan"), float("inf"), 3e38
    labels = torch.arange(len(rows)) % 4  # one of them is no segment
    schema = maps.TABLE  # sources hand rows on as they are
    check_equal(phi, maps.dataset(Batch(rows, labels if phi.segments > 1 else None), schema))


@pytest.mark.parametrize("name", ["fourier, two blocks", "fourier, table", "outer moments"])
def test_maps_of_methods_give_the_local_total(name, cluster):
    schema, phi = maps.made(name)
    many, _ = shuffled_records(adversarial_records(schema), 700)
    check_equal(phi, maps.dataset(many, schema))


@pytest.mark.slow
@pytest.mark.parametrize("name", maps.MAPS)
def test_every_map_gives_the_local_total(name, cluster):
    schema, phi = maps.made(name)
    many, _ = shuffled_records(adversarial_records(schema), 1100)
    check_equal(phi, maps.dataset(many, schema))


@pytest.mark.parametrize("ending", ["npz", "parquet", "csv", "pictures"])
def test_workers_read_their_part_of_a_file(ending, cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where no worker stands
    data = load(numbers(100).save(Path(ending if ending == "pictures" else f"x.{ending}")))
    check_equal(Pixels(), data)


def test_a_neighbour_moves_a_release_by_its_own_summand_in_any_partition(cluster):
    schema, phi = maps.made("fourier, table")
    many, _ = shuffled_records(adversarial_records(schema), 90)

    def released(batch: Batch, partitions: int) -> Tensor:
        engine, data = RayEngine(partitions=partitions), maps.dataset(batch, schema)
        private = PrivateData(data, Ledger(BUDGET), engine=engine, discrete_sampler=still)
        return private.noisy_sum(phi, 5.0, label="x").units

    for place, partitions in ((0, 7), (44, 2), (89, 7)):
        others = [i for i in range(90) if i != place]
        moved = released(many, partitions) - released(maps.taken(many, others), partitions)
        assert torch.equal(moved, summand_of(phi)(maps.taken(many, [place])))


def of_patients(size: int = 200) -> Dataset:
    """Records of units of one to many, which lie all over the parts."""
    data, random = numbers(size), np.random.default_rng(1)
    whose = np.minimum(random.integers(0, 40, size), random.integers(0, 40, size))
    return Dataset.from_arrays(data.images, data.labels, classes=("a", "b"), unit=whose, per_unit=3)


def test_shares_of_units_go_with_their_records(cluster):
    rows = UnitRows(of_patients())
    for phi in (Pixels(), Symmetric()):
        summand = summand_of(phi, rows.shares)
        expected = LocalEngine().total(rows, summand)
        for partitions in PARTITIONS:
            found = RayEngine(partitions=partitions).total(rows, summand)
            assert torch.equal(found, expected), f"{partitions} partitions"
        # All of them in full would be another sum.
        whole = LocalEngine().total(numbers(200), summand_of(phi))
        assert not torch.equal(whole * SHARES, expected)


class Never(LocalEngine):
    def total(self, rows, summand, *, on_fraction=None):
        raise AssertionError("nothing may be divided here")


def test_units_are_drawn_in_one_place_and_parts_of_them_cannot_be():
    data, phi = of_patients(), Pixels()
    paid = steps_of(data, Never(), rate=0.5, bound=enforced_bound(phi), dim=8, steps=1)
    assert next(paid).noisy_sum(phi).shape == (2, 4)
    with pytest.raises(AssertionError, match="divided here"):
        next(
            steps_of(numbers(), Never(), rate=0.5, bound=enforced_bound(phi), dim=8, steps=1)
        ).noisy_sum(phi)
    rows = UnitRows(data)
    with pytest.raises(TypeError, match="whose records"):
        next(PoissonSum(summand_of(phi, rows.shares), 0.5).batches(rows.part(0, 3)))
    with pytest.raises(BadInput, match="several parts"):
        data.part(0, 3)


def test_a_fit_for_patients_on_the_cluster(cluster):
    case = METHODS["merf, images"]
    pixels = small_images(60)
    data = Dataset.from_arrays(pixels.images, pixels.labels, classes=3, unit=np.arange(60) // 2)
    fitted = case.method().fit(data, BOTH, engine=RayEngine(partitions=3))
    assert fitted.statement_.unit == data.unit


# -- paid steps --------------------------------------------------------------------------------------------------------


def critic() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 2))


def cross_entropy(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(network(x), y, reduction="none")


def steps_of(data: Dataset, engine: Any, *, rate: float, bound: float, dim: int, steps: int) -> Any:
    private = PrivateData(data, Ledger(BUDGET), engine=engine, fast_sampler=silent)
    return private.poisson_steps(rate, steps, 9.0, bound=bound, label="s", dimension=dim)


def test_steps_over_everybody_are_those_of_the_local_engine_with_the_weights_of_each(cluster):
    data, found = numbers(), []
    for engine in (LocalEngine(), *(RayEngine(partitions=p) for p in PARTITIONS)):
        network = critic()
        gradients = GradientSum(network, cross_entropy, bound=0.4)
        paid = steps_of(
            data, engine, rate=1.0, bound=gradients.enforced, dim=gradients.dim, steps=3
        )
        answers = []
        for step in paid:
            answers.append(step.noisy_gradient(gradients))
            gradients.assign(answers[-1])
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter -= 1e-3 * parameter.grad
        found.append(torch.stack(answers))
    for other in found[1:]:
        assert torch.equal(other, found[0])
    assert not torch.equal(found[0][0], found[0][1])  # the workers had new weights


@pytest.mark.parametrize("partitions", PARTITIONS)
def test_samples_are_drawn_anew_by_every_part_and_step(partitions, cluster):
    class Ones(Pixels):
        dim, segments, bound = 1, 1, 1.0

        def __call__(self, batch: Batch) -> Tensor:
            return torch.ones(len(batch), 1)

        def segment_of(self, batch: Batch) -> Tensor | None:
            return None

    data, phi, rate, steps = numbers(), Ones(), 0.3, 40
    paid = steps_of(
        data,
        RayEngine(partitions=partitions),
        rate=rate,
        bound=enforced_bound(phi),
        dim=1,
        steps=steps,
    )
    sizes = np.array([float(step.noisy_sum(phi)) for step in paid])
    mean, variance = 400 * rate, 400 * rate * (1 - rate)
    assert abs(sizes.mean() - mean) < 5 * np.sqrt(variance / steps)
    assert len(set(sizes)) > steps / 4
    # The same coins in every part would make the variance `partitions` times as large: five deviations of an estimate from 40.
    assert sizes.var() < variance * (1 + 5 * np.sqrt(2 / steps))
    assert sizes.var() > variance / 6


def test_what_a_worker_finds_out_about_gradients_it_knows_at_the_next_step():
    import pickle

    gradients = GradientSum(critic(), cross_entropy, bound=0.4)
    first = pickle.loads(pickle.dumps(gradients))  # noqa: S301
    first.check(PLAIN)
    with torch.no_grad():
        next(gradients.network.parameters()).add_(1.0)
    second = pickle.loads(pickle.dumps(gradients))  # noqa: S301
    assert second is first
    assert second._checked == torch.get_num_threads()
    batch = numbers(50).take(np.arange(50))
    assert torch.equal(second(batch), gradients(batch))


def test_a_memory_takes_no_private_row_along():
    import pickle

    for kind, given in (
        (Remembered, Batch(maps.random(40, 300), None)),
        (RememberedRows, maps.random(40, 300)),
    ):
        memory = kind(maps.torch.neg if kind is RememberedRows else negative)
        memory(given)
        sent = pickle.dumps(memory)
        assert len(sent) < 1000
        there = pickle.loads(sent)  # noqa: S301
        assert torch.equal(there(given), memory(given))
        assert not there._kept


def negative(batch: Batch) -> Tensor:
    return -batch.values


# -- whole fits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Merf, Mixture, Gan], ids=lambda m: m.info.name)
def test_a_fit_on_the_cluster_keeps_its_promise(method, cluster, tmp_path):
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (120, 1, 8, 8), dtype=np.uint8)
    data = Dataset.from_arrays(pixels, np.arange(120) % 2, classes=2)
    fitted = method(**method.TINY).fit(
        data, Budget(epsilon=5.0, delta=1e-5), engine=RayEngine(partitions=3), out=tmp_path / "run"
    )
    budget = Budget(epsilon=5.0, delta=1e-5)
    promised = method(**method.TINY).promise(data.schema, budget, size=len(data))
    assert fitted.statement_.charges == promised.charges
    assert len(fitted.sample(20, seed=0)) == 20


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_fits_on_the_cluster(name, cluster):
    case = METHODS[name]
    fitted = case.fit(engine=RayEngine(partitions=3))
    data = case.data()
    promised = case.method().promise(data.schema, BOTH, size=len(data))
    assert fitted.statement_.charges == promised.charges


# -- public work -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    pixels = np.random.default_rng(0).integers(0, 256, (60, 1, 8, 8), dtype=np.uint8)
    data = Dataset.from_arrays(pixels, np.arange(60) % 2, classes=2)
    Merf(**Merf.TINY).fit(data, Budget(epsilon=500.0, delta=1e-5), out=folder / "run")
    data.save(folder / "real.npz")
    return folder


def test_shards_drawn_on_the_cluster_are_those_drawn_here(cluster, run_folder, tmp_path):
    here = sample_shards(run_folder / "run", tmp_path / "here", 250, size=100)
    there = sample_shards(run_folder / "run", tmp_path / "there", 250, size=100, engine=RayEngine())
    names = sorted(path.name for path in here.iterdir())
    assert names == sorted(path.name for path in there.iterdir())
    assert all((here / name).read_bytes() == (there / name).read_bytes() for name in names)


def test_metrics_on_the_cluster_are_those_computed_here(cluster, run_folder):
    data = load(run_folder / "real.npz")
    metrics = ["accuracy.logreg", "prdc-pixels.recall", "accuracy.gnb", "prdc-pixels.precision"]
    here = evaluate(data, data, metrics=metrics, seed=1)
    there = evaluate(data, data, metrics=metrics, seed=1, engine=RayEngine())
    assert [m.to_json() for m in here.metrics] == [m.to_json() for m in there.metrics]


def test_cells_of_a_comparison_run_on_the_cluster(cluster, run_folder, tmp_path):
    config = tmp_path / "few.toml"
    real = run_folder / "real.npz"
    config.write_text(
        f'''train = "{real}"\ntest = "{real}"\nepsilons = [500.0]\ndelta = 1e-5\nseeds = [0, 1]\nsamples = 50
metrics = ["accuracy.logreg"]\n[methods.merf]\nfeatures = 64\nsteps = 12\nbatch = 20\nhidden = 16\nblock = 16\n'''
    )
    outcome = compare(config, tmp_path / "out", engine=RayEngine())
    assert (len(outcome.cells), outcome.failures) == (2, [])


# -- what goes wrong ---------------------------------------------------------------------------------------------------


class Deadly(Pixels):
    """Kills the first process that sums the part with the marked record."""

    def __init__(self, marker: Path) -> None:
        self.marker, self.driver = marker, os.getpid()

    def __call__(self, batch: Batch) -> Tensor:
        if os.getpid() != self.driver and len(batch) and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_charged_twice(cluster, tmp_path):
    data, phi = numbers(), Deadly(tmp_path / "killed")
    ledger, store = Ledger(BUDGET), RunStore()
    private = PrivateData(
        data, ledger, engine=RayEngine(partitions=7), store=store, discrete_sampler=still
    )
    release = private.noisy_sum(phi, 5.0, label="x")
    assert phi.marker.exists()
    assert torch.equal(release.units, LocalEngine().total(data, summand_of(phi)))
    assert len(ledger.charges) == 1
    assert [answer.label for answer in store.answers()] == ["x"]


class Wrong(Pixels):
    def __call__(self, batch: Batch) -> Tensor:
        raise BadInput("The records are of no use; bring others.")


def test_an_error_of_a_worker_is_the_error_of_the_fit(cluster):
    with pytest.raises(BadInput, match=r"^The records are of no use; bring others\.$"):
        RayEngine(partitions=2).total(numbers(), summand_of(Wrong()))


def test_totals_of_machines_of_different_kinds_are_not_added():
    one, other = np.ones(2, np.int64), np.ones(2, np.int64)
    with pytest.raises(BadInput, match=r"different kinds \(a and b\)"):
        rays._added((("a",), one), (("b",), other))
    assert rays._added((("a",), one), (("a",), other))[1].tolist() == [2, 2]


def test_records_that_would_be_put_on_a_disk_are_refused(cluster):
    pixels = np.zeros((130, 1, 1024, 1024), np.uint8)  # 130 of the 150 MiB that a raylet has
    with pytest.raises(ClusterFailed, match="save them as a file"):
        RayEngine(partitions=2).total(Dataset.from_arrays(pixels), summand_of(Pixels()))


def test_engines_by_name():
    assert isinstance(engine_of(None), LocalEngine)
    assert isinstance(engine_of("local"), LocalEngine)
    with pytest.raises(BadInput, match="no engine 'spark'"):
        engine_of("spark")
    with pytest.raises(BadInput, match="at least one partition"):
        RayEngine(partitions=0)


class Patient(Pixels):
    """Says that it has begun, and waits until it may go on; by itself when nobody tells it, so that no test hangs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.driver = folder, os.getpid()

    def __call__(self, batch: Batch) -> Tensor:
        if os.getpid() != self.driver:
            (self.folder / f"{os.getpid()}").touch()
            until = time.monotonic() + 60
            while not (self.folder / "go").exists() and time.monotonic() < until:
                time.sleep(0.02)
        return super().__call__(batch)


def test_a_machine_that_is_lost_in_the_middle_changes_no_bit(cluster, tmp_path):
    """The last test on this cluster, which has one raylet afterwards."""
    data, phi = numbers(), Patient(tmp_path)
    found: list[Tensor] = []
    engine = RayEngine(partitions=7)
    at_work = threading.Thread(target=lambda: found.append(engine.total(data, summand_of(phi))))
    at_work.start()
    until = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(list(tmp_path.iterdir())) == 2  # a worker of each raylet is in the middle of a part
    cluster.remove_node(cluster.second, allow_graceful=False)
    (tmp_path / "go").touch()
    at_work.join(120)
    assert torch.equal(found[0], LocalEngine().total(data, summand_of(phi)))
    assert len(list(tmp_path.iterdir())) >= 3


def test_no_cluster_at_an_address_is_a_sentence(monkeypatch):
    class Absent:
        @staticmethod
        def init(**_: Any) -> None:
            raise ConnectionError

    with pytest.raises(ClusterFailed, match=r"There is no Ray cluster at 10\.0\.0\.1:6379"):
        rays._connect(Absent, "10.0.0.1:6379")
