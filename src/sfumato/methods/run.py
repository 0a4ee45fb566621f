"""A run folder: everything a fit leaves behind, all of it public by the guarantee.

    run.sqlite      the store (`privacy.store`): plan, answers, log, products. The truth; everything else is written from it.
    run.lock        whose lock a process holds while it works on the run
    config.json  statement.json  generator.safetensors  samples.png  log.jsonl      for people and other programs (`export`)
    metrics.json  report.html       what `evaluate` and `report` add; metrics measure real data

A run is finished when its store says so. Files that were lost or changed are written again from the store.

Version 0.1.0 kept a file a release and a manifest of hashes in place of the store; its finished runs can be read.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from sfumato.data import Schema
from sfumato.data.units import Unit
from sfumato.errors import BadInput, CorruptArtifact, RunConflict, SfumatoError
from sfumato.files import as_path, atomic_folder, atomic_path, read_json, sha256_of
from sfumato.privacy import Budget, Plan, PrivacyStatement, Release, epsilon_of
from sfumato.privacy.claim import LOCK
from sfumato.privacy.store import STORE, Answer, Question, RunStore, SavedStore, charge_from

GENERATOR = "generator.safetensors"
SAMPLES = "samples.png"
METRICS = "metrics.json"
EXPORTS = ("config.json", "statement.json", GENERATOR, SAMPLES, "log.jsonl")
_PRIVATE = 0o600
_NO_TIME = 315_532_800  # 1980-01-01, the first day that every archive can write
# Another version's accountant may see the same charges a little otherwise.
_ACCOUNTANTS = 1 + 1e-3
_NUMBER = (int, float)


class SavedRun:
    """A run as its folder tells it: the saved statement and charges are the truth, nothing is worked out anew.

    Everything it tells is public by the guarantee, except `metrics`, which measure real data. Use it in a `with` statement, or
    `close` it.
    """

    def __init__(self, path: Path | str, *, unfinished: bool = False) -> None:
        self.path = as_path(path)
        self._store: SavedStore | None = None
        try:
            kind = _kind_of(self.path)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise BadInput(f"Cannot read {path}: {why}; check the path.") from None
        if not kind:
            raise BadInput(
                f"There is no run folder {self.path}; check the path, or make one with `sfumato fit`."
                if not self.path.exists()
                else f"{self.path} is not a run folder; give the --out of a `sfumato fit`."
            )
        if kind == "store":
            self._store = SavedStore(self.path)
            self.finished = self._store.finished
        else:
            self.finished = (self.path / "manifest.json").exists()
        if not self.finished and not unfinished:
            raise BadInput(
                f"The run in {self.path} is not finished; go on with it by `sfumato fit … --resume`."
            )
        if self._store is None and self.finished:
            self._check_manifest()

    @property
    def version(self) -> int:
        """The format: 2, or 1 for runs of version 0.1.0."""
        return 1 if self._store is None else 2

    @cached_property
    def config(self) -> dict[str, Any]:
        kinds = {"method": str, "settings": dict, "data": dict, "schema": dict, "budget": dict}
        found = self._object("config.json", self._fact("config"), kinds)
        if not isinstance(found["data"].get("name"), str) or "size" not in found["data"]:
            raise self._damaged("config.json", "its data have no name or size")
        return found

    @cached_property
    def schema(self) -> Schema:
        try:
            return Schema.from_json(self.config["schema"])
        except BadInput as error:
            raise self._damaged("config.json", f"its schema: {error}") from error

    @cached_property
    def budget(self) -> Budget:
        try:
            return Budget.from_json(self.config["budget"])
        except (AttributeError, KeyError, TypeError, BadInput) as error:
            raise self._damaged("config.json", f"its budget: {error}") from error

    @cached_property
    def unit(self) -> Unit:
        """What the unit of privacy is, in the settings and in the statement alike."""
        told = self.config.get("unit")
        if told != self.statement_json.get("units"):
            raise self._damaged("the statement", "it protects others than the settings say")
        try:
            return Unit.from_json(told)
        except BadInput as error:
            raise self._damaged("config.json", f"its unit: {error}") from error

    @cached_property
    def statement_json(self) -> dict[str, Any]:
        kinds = {"epsilon": _NUMBER, "delta": _NUMBER, "neighbours": str, "releases": list}
        return self._object("statement.json", self._fact("statement"), kinds)

    @cached_property
    def told_statement(self) -> dict[str, Any]:
        """The saved statement with all that a page tells of it, checked; to load a run takes less."""
        name = "statement.json"
        kinds = {"unit": str, "epsilon_under": dict, "not_covered": list, "paragraph": str}
        told = self._object(name, self.statement_json, kinds)
        if not told["epsilon"] >= 0 or not 0 <= told["delta"] < 1:
            raise self._damaged(name, "it promises an impossible ε or δ")
        numbers = dict.fromkeys(("bound", "sensitivity", "noise_std"), _NUMBER)
        for index, release in enumerate(told["releases"]):
            place = f"releases[{index}] in {name}"
            self._object(place, release, {"label": str, "event": str, **numbers})
        for key in ("epsilon_under", "epsilon_k"):
            if told.get(key) is not None:
                found = self._object(f"{key} in {name}", told[key], {})
                self._object(f"{key} in {name}", found, dict.fromkeys(found, _NUMBER))
        if not all(isinstance(line, str) for line in told["not_covered"]):
            raise self._damaged(name, 'its "not_covered" is no list of sentences')
        return told

    @cached_property
    def metrics_json(self) -> dict[str, Any]:
        """What `evaluate` wrote down, NOT covered by ε; empty where nothing was measured."""
        path = self.path / METRICS
        if not path.exists():
            return {}
        found = self._object(METRICS, read_json(path), {"metrics": list})
        for index, metric in enumerate(found["metrics"]):
            kinds = {"name": str, "value": _NUMBER, "source": str}
            place = f"metrics[{index}] in {METRICS}"
            self._object(place, metric, kinds)
            ends = [end for end in ("low", "high") if metric.get(end) is not None]
            self._object(place, metric, dict.fromkeys(ends, _NUMBER))
        return found

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The measurements themselves; NOT covered by ε."""
        return self.metrics_json.get("metrics", [])

    @cached_property
    def charges(self) -> Plan:
        if self._store is not None:
            return self._store.charges
        try:
            return tuple(charge_from(release) for release in self.statement_json["releases"])
        except (TypeError, AttributeError, BadInput) as error:
            raise self._damaged("statement.json", "a charge that cannot be read") from error

    @cached_property
    def statement(self) -> PrivacyStatement:
        """The saved statement; raises if the saved charges cost more than it says, or it says more than the budget."""
        told = self.statement_json
        claimed = told.get("claimed")
        counted = None
        if claimed is not None:
            labels = set(claimed["counted"]) if isinstance(claimed, dict) else set()
            counted = tuple(c for c in self.charges if c.label in labels)
        statement = PrivacyStatement(
            budget=self.budget,
            epsilon=float(told["epsilon"]),
            charges=self.charges,
            claimed=counted,
            unit=self.unit,
        )
        cost = epsilon_of(
            self.charges,
            self.budget.delta,
            self.budget.neighbours,
            near=max(statement.epsilon, 1e-6),
        )
        same = (told["delta"], told["neighbours"]) == (
            self.budget.delta,
            self.budget.neighbours.value,
        )
        if not cost <= statement.epsilon * _ACCOUNTANTS or not same:
            raise self._damaged(
                "the statement", "the releases that it lists cost more than the ε that it promises"
            )
        if statement.sound and statement.epsilon > self.budget.epsilon * (1 + 1e-9):
            raise self._damaged("the statement", "it promises more than the budget allows")
        return statement

    @property
    def noise_multiplier(self) -> float | None:
        """What the plan was calibrated to; runs of version 0.1.0 do not tell."""
        return None if self._store is None else self._store.noise_multiplier

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        if self._store is not None:
            return self._store.read_log()
        return _log_of_version_1(self.path / "log.jsonl")

    @cached_property
    def losses(self) -> tuple[tuple[int, float], ...]:
        """(step, loss) of the training, in the order of steps."""
        found: dict[int, float] = {}
        for record in self.log:
            step, loss = record.get("step"), record.get("loss")
            if record.get("event") == "step" and isinstance(step, int) and _is_finite(loss):
                found[step] = float(loss)
        return tuple(sorted(found.items()))

    def part(self, name: str) -> bytes | None:
        """A product of the run: the generator, or the picture of samples."""
        if self._store is not None:
            return self._store.parts().get(name)
        path = self.path / name
        return path.read_bytes() if path.is_file() else None

    @property
    def generator(self) -> bytes:
        found = self.part(GENERATOR)
        if found is None:
            raise self._damaged(GENERATOR, "it is missing")
        return found

    def answers(self) -> list[Answer]:
        """What was released, with the numbers."""
        if self._store is not None:
            return list(self._store.answers())
        return [
            Answer(number, r.label, 0, r.charge, Question(""), r.grid, r.units, "")
            for number, r in enumerate(self.releases(), start=1)
        ]

    def releases(self) -> list[Release]:
        if self._store is not None:
            return self._store.releases()
        files = {_old_name(c.label): c for c in self.charges}
        found = []
        for path in sorted((self.path / "release").glob("*.safetensors")):
            release = Release.of_version_1(path)
            if path.name not in files or release.label != files[path.name].label:
                raise self._damaged(f"release/{path.name}", "the statement does not list it")
            found.append(release)
        order = [c.label for c in self.charges]
        return sorted(found, key=lambda r: order.index(r.label))

    def snapshot(self) -> RunStore:
        """The run's store, in memory; made from the files of a run of version 0.1.0."""
        if self._store is not None:
            return self._store.snapshot()
        store = RunStore()
        multiplier = max(c.noise_multiplier for c in self.charges)
        store.begin(self.config, self.statement_json, self.charges, multiplier)
        for release in self.releases():
            store.keep(release)
        for record in self.log:
            store.log(record)
        return store

    def check_store(self) -> None:
        """Raise unless the store is whole: its pages, the chain of its answers, its products and its seal."""
        store = self._store
        if store is None:
            return
        store.check_file()
        for _ in store.answers():
            pass
        store.parts()
        if store.fact("seal") != store.seal():
            raise self._damaged("the store", "its parts do not belong together")

    @property
    def fingerprint(self) -> str:
        """A digest of the release (never of the data): what a report or a letter can name the run by."""
        if self._store is not None:
            return str(self._store.fact("seal"))
        return sha256_of(self.path / "manifest.json")

    @property
    def ledger_name(self) -> str:
        """The random name under which the run stands in a ledger of its data set; empty where it stands in none."""
        entry = None if self._store is None else self._store.entry
        return "" if entry is None else str(entry.get("run"))[:8]

    def exports(self) -> dict[str, bytes]:
        """What people read, by file name, as the store tells it; empty for runs of version 0.1.0, which have nothing else."""
        if self._store is None:
            return {}
        return _exports(self._store)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def __enter__(self) -> SavedRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fact(self, name: str) -> Any:
        if self._store is not None:
            return self._store.fact(name)
        return read_json(self.path / f"{name}.json")

    def _object(self, name: str, found: Any, kinds: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise self._damaged(name, "it is no JSON object")
        for key, kind in kinds.items():
            value = found.get(key)
            if not (_is_finite(value) if kind is _NUMBER else isinstance(value, kind)):
                raise self._damaged(name, f'its "{key}" is missing or makes no sense')
        return found

    def _damaged(self, name: str, why: str) -> CorruptArtifact:
        return CorruptArtifact(
            f"{name} of the run in {self.path} is damaged ({why}); restore the run folder from a copy."
        )

    def _check_manifest(self) -> None:
        """Runs of version 0.1.0: every part is there and unchanged."""
        manifest = read_json(self.path / "manifest.json")
        hashes = manifest.get("sha256") if isinstance(manifest, dict) else None
        if not isinstance(hashes, dict) or manifest.get("format") != 1:
            raise self._damaged("manifest.json", "it is of another version or no manifest")
        if missing := {"config.json", "statement.json", GENERATOR} - set(hashes):
            raise self._damaged("manifest.json", f"it does not list {', '.join(sorted(missing))}")
        for name, digest in hashes.items():
            part = self.path / str(name)
            if not part.exists():
                raise CorruptArtifact(f"{part} is missing; restore the run folder from a copy.")
            if sha256_of(part) != digest:
                raise CorruptArtifact(
                    f"{part} is not the file this run wrote; restore the run folder from a copy."
                )


def _is_finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, _NUMBER) and not isinstance(value, bool) and math.isfinite(value)


def is_run(path: Path) -> bool:
    """Whether `path` is a run folder, finished or not; a store in which nothing was promised yet makes none."""
    try:
        if _kind_of(Path(path)) != "store":
            return bool(_kind_of(Path(path)))
        store = SavedStore(Path(path), empty=True)
    except (OSError, ValueError):
        return False
    except SfumatoError:
        return True  # a damaged one
    begun = store.begun
    store.close()
    return begun


def inside_run(path: Path) -> bool:
    """Whether something at `path` would go along when a run folder is handed on."""
    return any(
        (folder / STORE).is_file() or all((folder / name).is_file() for name in EXPORTS[:2])
        for folder in Path(path).resolve().parents
    )


def _kind_of(path: Path) -> str:
    if (path / STORE).is_file():
        return "store"
    return "files" if (path / "config.json").is_file() else ""


def claim(path: Path | str, config: Mapping[str, Any], *, resume: bool) -> RunStore:
    """The store of the run in `path`, for `config` alone: a new one, or the one that was begun with the same settings.

    The folder is claimed before anything is read, and stays so until the store is closed.
    """
    folder = as_path(path)
    store = RunStore(folder)
    try:
        if store.abandoned:
            raise RunConflict(
                f"The run in {folder} was given up by `sfumato ledger release-unused` and cannot go on; choose another folder."
            )
        if store.begun:
            if not resume:
                raise _taken(folder)
            earlier = store.record("config")
            differs = [
                key
                for key in config
                if key != "sfumato" and earlier.get(key) != _plain(config[key])
            ]
            if differs:
                raise RunConflict(
                    f"{folder} was begun with other settings ({', '.join(differs)}); resume with the same ones or "
                    "choose another folder."
                )
        elif (folder / "config.json").exists():
            if resume:
                raise RunConflict(
                    f"{folder} holds a run that version 0.1.0 began and only it can go on with; choose another folder."
                )
            raise _taken(folder)
        elif not holds_nothing(folder):
            raise RunConflict(
                f"{folder} is not empty and holds no run; choose a folder that does not exist yet."
            )
        elif resume:
            raise BadInput(
                f"There is nothing to resume in {folder}; leave out --resume to start the run."
            )
    except BaseException:
        store.close(abandon=True)
        raise
    return store


def holds_nothing(folder: Path) -> bool:
    """Whether a folder is empty but for what an interrupted beginning of ours left."""
    return all(
        p.name in (LOCK, STORE, f"{STORE}-journal") or p.name.endswith(".part")
        for p in folder.iterdir()
    )


def _taken(folder: Path) -> RunConflict:
    return RunConflict(
        f"{folder} already holds a run; choose another folder, or go on with that one by --resume."
    )


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def export(store: RunStore, folder: Path) -> None:
    """Write what people read from the store; each file whole or not at all, for its owner's eyes."""
    _write(_exports(store), Path(folder))


def write_exports(run: SavedRun) -> None:
    """The same for a finished run: files that were lost or changed are written again."""
    _write(run.exports(), run.path)


def export_to(run: SavedRun, folder: Path) -> None:
    """The same as a folder of its own, to be handed on: whole or not at all, and with no clock of this run on its files."""
    with atomic_folder(Path(folder), mode=_PRIVATE) as made:
        for name, content in run.exports().items():
            (made / name).write_bytes(content)
            os.utime(made / name, (_NO_TIME, _NO_TIME))


def _write(exports: Mapping[str, bytes], folder: Path) -> None:
    for name, content in exports.items():
        with atomic_path(folder / name, mode=_PRIVATE) as temporary:
            temporary.write_bytes(content)


def _exports(store: RunStore) -> dict[str, bytes]:
    lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in store.read_log())
    return {
        "config.json": _pretty(store.fact("config")),
        "statement.json": _pretty(store.fact("statement")),
        "log.jsonl": lines.encode("utf-8", errors="backslashreplace"),
        **store.parts(),
    }


def _pretty(value: Any) -> bytes:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", errors="backslashreplace")


def _old_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label) + ".safetensors"


def _log_of_version_1(path: Path) -> list[dict[str, Any]]:
    """A line that a crash cut short is passed over; so are the times that version 0.1.0 wrote."""
    records = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                records.append({k: v for k, v in record.items() if k not in ("time", "seconds")})
    return records
