"""What a program around a fit has switched on in torch changes nothing of what the wall adds up.

Every sum is tried with neighbours: S(A ∪ x) − S(A) must be S(x), and no longer than what is charged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Barrier, Event, Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from data import digits
from sfumato import Merf
from sfumato.data import Batch
from sfumato.errors import BadInput
from sfumato.privacy import FeatureMap, OuterMap, balanced
from sfumato.privacy.arithmetic import exact_arithmetic, ordinary_torch
from sfumato.privacy.bounding import BoundedSum, OuterSum, enforced_bound
from sfumato.privacy.gradients import GradientSum
from sfumato.privacy.groups import GroupSum


@contextmanager
def default_dtype(kind: torch.dtype) -> Iterator[None]:
    kept = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(kept)


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    kept = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(kept)


@contextmanager
def precision_of_products(name: str) -> Iterator[None]:
    """The newer switch; once it was used, torch refuses to tell the older one."""
    products = getattr(torch.backends.mkldnn, "matmul", None)
    if products is None:
        pytest.skip("torch has it since 2.9")
    kept = products.fp32_precision
    products.fp32_precision = name
    try:
        yield
    finally:
        products.fp32_precision = kept


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nothing": nullcontext,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast, half": lambda: torch.autocast("cpu", dtype=torch.float16),
    "double": lambda: default_dtype(torch.float64),
    "half": lambda: default_dtype(torch.float16),
    "short": lambda: default_dtype(torch.bfloat16),
    "medium products": lambda: matmul_precision("medium"),
    "short products": lambda: precision_of_products("bf16"),
    "another device": lambda: torch.device("meta"),
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
}
around = pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)


class Filed(FeatureMap):
    dim, bound, segments = 40, 1.0, 3

    def __call__(self, batch: Batch) -> Tensor:
        return batch.values / batch.values.norm(dim=1, keepdim=True)

    def segment_of(self, batch: Batch) -> Tensor | None:
        return batch.labels


class Products(OuterMap):
    left, right, left_bound, right_bound, segments = 40, 40, 1.0, 1.0, 3

    def factors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        rows = batch.values / batch.values.norm(dim=1, keepdim=True)
        return balanced(rows, rows)

    def segment_of(self, batch: Batch) -> Tensor | None:
        return batch.labels


class Filters(nn.Module):
    """A convolution called once: its gradients are products that are formed, in the precision of the day."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 8, 3, padding=1, bias=False, dtype=torch.float32)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images).square().mean(dim=(1, 2, 3))


def loudly(network: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor) -> Tensor:
    return 100 * network(images)


def rows(n: int, *shape: int) -> Batch:
    random = torch.Generator().manual_seed(n)
    return Batch(torch.rand(n, *shape, generator=random), torch.randint(3, (n,), generator=random))


def some(batch: Batch, rows: slice) -> Batch:
    assert batch.labels is not None
    return Batch(batch.values[rows], batch.labels[rows])


@around
@pytest.mark.parametrize("n", [17, 129, 1025])  # each crosses a size of batches
@pytest.mark.parametrize("kind", ["vectors", "products"])
def test_a_record_moves_a_sum_by_itself_and_no_further(around, n, kind):
    batch = rows(n, 40)
    with around():
        summed: Any = BoundedSum(Filed()) if kind == "vectors" else OuterSum(Products())
        before, after = summed(some(batch, slice(0, n - 1))), summed(batch)
        alone = summed(some(batch, slice(n - 1, n)))
    assert torch.equal(after - before, alone)
    assert alone.to(torch.float64).norm() * summed.grid <= enforced_bound(summed.phi)


@around
def test_gradients_are_no_longer_than_their_bound(around):
    torch.manual_seed(0)
    network, batch = Filters(), rows(65, 1, 8, 8)  # one more than a micro-batch
    plain = GradientSum(network, loudly, bound=1.0)
    wanted = plain(batch)
    with around():
        gradients = GradientSum(network, loudly, bound=1.0)
        found = gradients(batch)
        each = [gradients(some(batch, slice(i, i + 1))) for i in range(len(batch))]
    assert torch.equal(found, wanted)
    assert torch.equal(torch.stack(each).sum(dim=0), found)
    assert max(float(one.norm()) for one in each) <= gradients.enforced


@around
def test_the_answer_of_a_group_is_the_same(around):
    batch = rows(20, 40)

    def answer(group: Batch) -> Tensor:
        return (group.values.T @ group.values).flatten()

    wanted = GroupSum(answer, dim=1600, bound=1.0)(batch)
    with around():
        found = GroupSum(answer, dim=1600, bound=1.0)(batch)
    assert torch.equal(found, wanted)


@around
def test_a_fit_and_its_samples_go_on_as_ever(around):
    with around():
        model = Merf(**Merf.TINY).fit(digits(40), epsilon=3, delta=1e-5)
        made = model.sample(5, seed=1)
    assert next(model.generator_.parameters()).dtype == torch.float32
    assert (made.images == model.sample(5, seed=1).images).all()


def test_what_was_switched_on_is_on_again():
    with default_dtype(torch.float64), matmul_precision("medium"), torch.autocast("cpu"):
        for inside in (ordinary_torch, exact_arithmetic):
            with inside():
                assert torch.get_default_dtype() == torch.float32
                assert not torch.is_autocast_enabled("cpu")
            assert torch.get_default_dtype() == torch.float64
            assert torch.is_autocast_enabled("cpu")
            assert torch.get_float32_matmul_precision() == "medium"


def products() -> str:
    """The precision of products on the processor."""
    found = getattr(torch.backends.mkldnn, "matmul", None)
    if found is None:
        return "ieee" if torch.get_float32_matmul_precision() == "highest" else "less"
    return str(found.fp32_precision)


def test_switches_stay_until_the_last_thread_has_left():
    inside, leave, seen = Barrier(3), Event(), []

    def wait_inside(hold: bool) -> None:
        with exact_arithmetic():
            inside.wait(10)
            if hold:
                leave.wait(10)
                seen.append((torch.get_default_dtype(), products()))

    with default_dtype(torch.float64), matmul_precision("medium"):
        threads = [Thread(target=wait_inside, args=(hold,)) for hold in (True, False)]
        for thread in threads:
            thread.start()
        inside.wait(10)
        threads[1].join()
        leave.set()
        threads[0].join()
        assert seen == [(torch.float32, "ieee")]
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_float32_matmul_precision() == "medium"


def test_a_gpu_adds_in_one_order_or_the_layer_is_refused(monkeypatch):
    """There is none here: torch is told that one is in use, and asked what it would refuse."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    flags = torch.backends.cudnn
    before = flags.deterministic, flags.benchmark, flags.conv.fp32_precision
    assert before == (False, False, "tf32")
    with exact_arithmetic():
        assert torch.are_deterministic_algorithms_enabled()
        assert (flags.deterministic, flags.benchmark) == (True, False)
        assert flags.conv.fp32_precision == "ieee"
        assert not torch.utils.deterministic.fill_uninitialized_memory
    assert not torch.are_deterministic_algorithms_enabled()
    assert (flags.deterministic, flags.benchmark, flags.conv.fp32_precision) == before
    with pytest.raises(BadInput, match=r"device=cpu.*bincount"), exact_arithmetic():
        raise RuntimeError("bincount does not have a deterministic implementation")
    with pytest.raises(RuntimeError, match="out of memory"), exact_arithmetic():
        raise RuntimeError("out of memory")
    assert not torch.are_deterministic_algorithms_enabled()
