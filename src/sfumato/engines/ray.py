"""Sums over records on a Ray cluster: parts of the data are summed where they can be read, and whole numbers travel.

The data are divided by a public rule (`Dataset.cuts`) into parts of records that follow each other. A part of a file travels
as a path, which the worker opens itself; a part of an array in memory lies in Ray's object store. Each task computes the total
of one part by the wall's own code, and totals are added in a tree. Noise is drawn once, by the wall, where the fit was
started; the draws of a Poisson sample are made by the wall's code on the worker that holds the part, from that machine's own
entropy, and are told to nobody.

**Guarantee**: that of the local engine, S(A ∪ {x}) − S(A) = S({x}), if all parts were summed alike. Machines of another kind may
round the last bit of the same record otherwise, and which machine gets which part depends on how long others took; so every
total carries the kind of machine that computed it, and totals of two kinds are not added but refused.

A worker that dies takes its task along, and Ray runs that task again: of the same part, with the same total. Of a Poisson sample
it draws anew; nobody has seen the first, and each part still enters the sum once. The charge was written before, once. What
raised an error is not tried again.

Private: parts, totals before noise, sizes of samples, and how long each took: all of this is inside the cluster, which therefore
belongs to the private side. A cluster that is started here tells nobody about itself, keeps no history of tasks, and writes no
object to a disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import signal
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from sfumato._version import __version__
from sfumato.data import Dataset
from sfumato.engines.local import Summand, summed
from sfumato.errors import BadInput, ClusterFailed, SfumatoError

T = TypeVar("T")
R = TypeVar("R")

# Parts a processor gets of a sum over all records: if one is lost, or slow, little waits for it.
_PATIENCE = 10.0  # seconds for a cluster's address to answer
_PARTS = 4
# Totals that one task adds up.
_TOGETHER = 8
_RETRIES = 5
# Of the object store, rows in memory take at most this share.
_FULL = 0.8
_Stamped = tuple[tuple[str, ...], Any]


class RayEngine:
    """An engine on the cluster at `address`; without one, on a cluster of this machine's processors that lives as long as it.

    `partitions` is the number of parts that the data are divided into, a public number: any gives the same totals.
    """

    def __init__(self, address: str | None = None, *, partitions: int | None = None) -> None:
        if partitions is not None and partitions < 1:
            raise BadInput(
                f"The data are divided into at least one partition, not into {partitions}."
            )
        self._ray = _package()
        self._partitions = partitions
        self._sent: tuple[weakref.ref[Dataset], int, list[Any]] | None = None
        self._started = not self._ray.is_initialized()
        if self._started:
            _connect(self._ray, address)
        # One processor a task, and one thread: sums of parts gain more from each other than from threads.
        options = {"num_cpus": 1, "max_retries": _RETRIES, "retry_exceptions": False}
        self._sum_part = self._ray.remote(**options)(_sum_part)
        self._added = self._ray.remote(**options)(_added)
        self._done = self._ray.remote(**options)(_done)
        if self._started and address is None:
            # Workers load torch while the fit is still looking at the data.
            self._warm = [self._done.remote(abs, 0) for _ in range(self._cpus())]

    def total(
        self,
        rows: Dataset,
        summand: Summand,
        *,
        on_fraction: Callable[[float], None] | None = None,
    ) -> Tensor:
        sampled = hasattr(summand, "batches")
        parts = self._parts(rows, self._partitions or self._cpus() * (1 if sampled else _PARTS))
        with _told():
            shared = self._ray.put(summand)  # once, however many parts there are
            totals = [self._sum_part.remote(part, shared) for part in parts]
            waiting = list(totals)
            while waiting:
                _, waiting = self._ray.wait(waiting, fetch_local=False)
                if on_fraction is not None:
                    on_fraction(1 - len(waiting) / len(totals))
            while len(totals) > 1:
                # By place and not by who comes first: the order of additions is public.
                some = (totals[i : i + _TOGETHER] for i in range(0, len(totals), _TOGETHER))
                totals = [self._added.remote(*few) for few in some]
            _, total = self._ray.get(totals[0])
        return torch.from_numpy(total.copy())

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[int, R]]:
        with _told():
            shared = self._ray.put(work)
            waiting = {self._done.remote(shared, item): i for i, item in enumerate(items)}
        while waiting:
            with _told():
                (found,), _ = self._ray.wait(list(waiting))
                result = self._ray.get(found)
            yield waiting.pop(found), result

    def close(self) -> None:
        self._sent = None
        if self._started and self._ray.is_initialized():
            self._ray.shutdown()

    def _cpus(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def _refuse_large(self, rows: Dataset) -> None:
        """Rows in memory that the object store has no room for: Ray would put them on a disk."""
        here = self._ray.get_runtime_context().get_node_id()
        room = sum(
            node["Resources"].get("object_store_memory", 0.0)
            for node in self._ray.nodes()
            if node["NodeID"] == here
        )
        if rows.in_memory > _FULL * room:
            raise ClusterFailed(
                "The records do not fit into the memory of the cluster's object store; save them as a file that its machines "
                "can read, and give its path."
            )

    def _parts(self, rows: Dataset, count: int) -> list[Any]:
        """The parts in the object store, from one sum to the next; those of the last data set only."""
        if self._sent is None or self._sent[0]() is not rows or self._sent[1] != count:
            self._sent = None
            self._refuse_large(rows)
            with _told():
                sent = [self._ray.put(rows.part(number, count)) for number in range(count)]
            # Gone with the data set, though the engine may live on.
            self._sent = (weakref.ref(rows, lambda _: setattr(self, "_sent", None)), count, sent)
        return self._sent[2]


# -- on the workers ----------------------------------------------------------------------------------------------------


def _sum_part(part: Dataset, summand: Summand) -> _Stamped:
    torch.set_num_threads(1)
    return _kind(), summed(part, summand).numpy()


def _added(*totals: _Stamped) -> _Stamped:
    kinds = {kind for kind, _ in totals}
    if len(kinds) > 1:
        told = " and ".join(sorted(", ".join(kind) for kind in kinds))
        raise BadInput(
            f"The machines of the cluster are of different kinds ({told}) and may round the same record otherwise; use machines "
            "of one kind with the same versions."
        )
    return kinds.pop(), np.sum([total for _, total in totals], axis=0)


def _done(work: Callable[[T], R], item: T) -> R:
    torch.set_num_threads(1)
    return work(item)


@cache
def _kind() -> tuple[str, ...]:
    """What decides about the last bits: processor and libraries."""
    model = platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        model = next(named, model)
    capability = torch.backends.cpu.get_cpu_capability()
    return (
        f"sfumato {__version__}",
        f"torch {torch.__version__}",
        f"numpy {np.__version__}",
        model,
        capability,
    )


# -- the cluster -------------------------------------------------------------------------------------------------------


def _package() -> Any:
    # Before the package is loaded, which reads them then: no report to its makers, no history of tasks and their times, and no
    # warning about graphics cards.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise BadInput(
            "The engine ray needs the package ray; install it by pip install 'sfumato[ray]'."
        ) from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    started: dict[str, Any] = {"address": address or "local"}
    if address is None:
        started |= {
            "num_cpus": _cores(),
            "include_dashboard": False,
            # Private rows and totals stay in memory.
            "_system_config": {"automatic_object_spilling_enabled": False},
        }
    with _undisturbed():
        try:
            if address is not None:
                _answers(address)
            ray.init(
                **started, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR
            )
        except Exception as error:
            raise ClusterFailed(
                f"There is no Ray cluster at {address} that can be used ({type(error).__name__}); check the address, and that "
                "this machine belongs to the cluster."
                if address
                else f"Ray could not be started on this machine ({type(error).__name__}); leave --engine out to run without it."
            ) from error


def _answers(address: str) -> None:
    """Raise if nobody listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isascii() and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ray puts a handler of its own in the place of the program's, and has something to say when it starts."""
    logger, main = logging.getLogger("ray"), threading.current_thread() is threading.main_thread()
    level, handler = logger.level, signal.getsignal(signal.SIGTERM)
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        if main:
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """An error of a worker as it was raised there; a cluster that is lost, in a sentence."""
    from ray.exceptions import RayError, RayTaskError

    try:
        yield
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, SfumatoError):
            raise type(cause)(*cause.args) from None
        if isinstance(cause, RayError):
            raise ClusterFailed(
                "The workers of the cluster could not load what they were sent; install the same sfumato, and the package of the "
                "method if it has one of its own, on every machine."
            ) from error
        raise cause from None
    except RayError as error:
        raise ClusterFailed(
            f"The cluster lost its work and could not repeat it ({type(error).__name__}); start it again and go on with "
            "--resume: nothing is spent twice."
        ) from error
