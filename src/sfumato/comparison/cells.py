"""One cell of a comparison (a fit, its samples, their metrics) and the processes that run many.

A cell's result holds the guarantee, which is public, and metrics, which read real records and are not covered by ε. How
long it took ("seconds") and why it failed ("error") depend on private records: they are for the terminal, not for a file.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from sfumato.errors import BadInput, SfumatoError, out_of_resources

Cell = dict[str, Any]


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_cells(
    cells: Mapping[str, Cell],
    finished: Callable[[str, dict[str, Any]], None],
    jobs: int,
    work: Callable[[Cell], dict[str, Any]] | None = None,
) -> None:
    """Call `finished` with the result of every cell, as they come, from up to `jobs` fresh processes."""
    work = work or run_cell
    lost = _run_pool(cells, finished, min(jobs, len(cells)), work)
    # One killed process takes its neighbours' work along, so each of those gets a process of its own.
    for key in lost:
        if _run_pool({key: cells[key]}, finished, 1, work):
            cause = "its process was ended from outside, most likely for lack of memory"
            finished(key, {"error": f"{cause}; use --jobs 1 or smaller settings.", "exit_code": 7})


def _run_pool(
    cells: Mapping[str, Cell],
    finished: Callable[[str, dict[str, Any]], None],
    jobs: int,
    work: Callable[[Cell], dict[str, Any]],
) -> list[str]:
    if not cells:
        return []
    lost: list[str] = []
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker)
    try:
        futures = {pool.submit(work, cell): key for key, cell in cells.items()}
        for future in as_completed(futures):
            try:
                result = future.result()
            except BrokenProcessPool:
                lost.append(futures[future])
            else:
                finished(futures[future], result)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    pool.shutdown()
    return lost


def _start_worker() -> None:
    # Before torch is imported: cells run side by side, so each keeps to one thread.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    parent = multiprocessing.parent_process()

    def leave_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


def run_cell(cell: Cell) -> dict[str, Any]:
    """Fit, sample, judge. An error becomes a sentence, which never quotes what an unexpected one says."""
    import torch

    from sfumato.data import load
    from sfumato.evaluation import evaluate, list_metrics
    from sfumato.methods import get_method
    from sfumato.privacy import Budget, Neighbours
    from sfumato.public.loading import load_public

    torch.set_num_threads(1)
    relation = Neighbours(cell["neighbours"])
    try:
        start = time.perf_counter()
        train = load(cell["train"], **cell["facts"])
        model = get_method(cell["method"])(**{**cell["settings"], "seed": cell["seed"]})
        budget = Budget(epsilon=cell["epsilon"], delta=cell["delta"], neighbours=relation)
        public = load_public(cell["public"], train.schema) if cell["public"] else None
        if model.claimed_plan(train.schema, 1.0) is not None:
            raise BadInput(
                f"{cell['method']} with these settings is unsound and keeps no ε to be compared at; leave it out."
            )
        model.fit(train, budget, public=public)
        fitted = time.perf_counter()
        reads_train = any(m.reads == "train" for m in list_metrics() if m.name in cell["metrics"])
        found = evaluate(
            model.sample(cell["samples"], seed=cell["seed"], keep=cell.get("keep", 1.0)),
            load(cell["test"], **cell["facts"]),
            metrics=cell["metrics"],
            train=train if reads_train else None,
            size_is_public=relation.size_is_public,
            seed=cell["seed"],
        )
        metrics = found.to_json()["metrics"]
        if not all(math.isfinite(m[part]) for m in metrics for part in ("value", "low", "high")):
            raise BadInput("A metric is not a finite number; draw more samples or leave it out.")
    except SfumatoError as error:
        return {"error": " ".join(str(error).split()), "exit_code": error.exit_code}
    except Exception as error:
        lack = out_of_resources(error)
        if lack is not None:
            text = f"{lack.cause}; use --jobs 1 or smaller settings."
            return {"error": text, "exit_code": lack.exit_code}
        text = f"Something unexpected happened ({type(error).__name__}); try it by sfumato fit."
        return {"error": text, "exit_code": 1}
    seconds = {"fit": round(fitted - start, 2), "judge": round(time.perf_counter() - fitted, 2)}
    statement = model.statement_.to_json()
    promise = {key: statement[key] for key in ("epsilon", "delta", "neighbours", "epsilon_under")}
    return {"statement": promise, "metrics": metrics, "seconds": seconds}
