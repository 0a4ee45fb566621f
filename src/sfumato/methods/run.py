"""A run folder: everything a fit leaves behind, all of it public by the guarantee.

    config.json  statement.json  release/  generator.safetensors  log.jsonl  samples.png  manifest.json

`config.json` and `statement.json` are written before a row is read, a release as soon as it is made, the rest as it comes;
`manifest.json`, with the SHA-256 of every part, is written last and marks the run as finished.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from sfumato.errors import BadInput, CorruptArtifact, RunConflict
from sfumato.storage import read_json, sha256_of, write_json, write_text

FORMAT = 1


class RunFolder:
    """The files of one run, whole or absent."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.statement = self.path / "statement.json"
        self.releases = self.path / "release"
        self.generator = self.path / "generator.safetensors"
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.log = self.path / "log.jsonl"
        self.samples = self.path / "samples.png"
        self.manifest = self.path / "manifest.json"

    @property
    def finished(self) -> bool:
        return self.manifest.exists()

    def begin(self, config: dict[str, Any], statement: dict[str, Any], *, resume: bool) -> None:
        """Claim the folder for `config`, or go on with it if it was claimed for the same before."""
        if self.path.exists() and not self.path.is_dir():
            raise BadInput(f"{self.path} is a file; give --out a folder that does not exist yet.")
        if self.config.exists():
            if not resume:
                raise RunConflict(
                    f"{self.path} already holds a run; choose another folder, or go on with that one by --resume."
                )
            earlier = read_json(self.config)
            differs = [
                key for key in config if key != "sfumato" and earlier.get(key) != config[key]
            ]
            if differs:
                raise RunConflict(
                    f"{self.path} was begun with other settings ({', '.join(differs)}); resume with the same ones or "
                    "choose another folder."
                )
        elif self.path.exists() and any(self.path.iterdir()):
            raise RunConflict(
                f"{self.path} is not empty and holds no run; choose a folder that does not exist yet."
            )
        elif resume:
            raise BadInput(
                f"There is nothing to resume in {self.path}; leave out --resume to start the run."
            )
        else:
            write_json(self.config, config)
        write_json(self.statement, statement)

    def rewind_log(self, step: int) -> None:
        """Forget what an interrupted training logged after its last checkpoint, and a torn last line."""
        kept = [r for r in self.read_log() if r.get("event") != "step" or r.get("step", 0) <= step]
        write_text(self.log, "".join(json.dumps(r) + "\n" for r in kept))

    def append_log(self, record: dict[str, Any]) -> None:
        with self.log.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"time": round(time.time(), 3), **record}) + "\n")

    def read_log(self) -> list[dict[str, Any]]:
        records = []
        if self.log.exists():
            for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    records.append(json.loads(line))
                except json.JSONDecodeError:
                    continue
        return records

    def seal(self) -> None:
        """Write the manifest: the run is finished and these are its parts."""
        parts = [
            self.config,
            self.statement,
            self.generator,
            *sorted(self.releases.glob("*.safetensors")),
        ]
        write_json(
            self.manifest,
            {
                "format": FORMAT,
                "sha256": {str(p.relative_to(self.path)): sha256_of(p) for p in parts},
            },
        )

    def checkpoint_of(self, stage: str) -> Path:
        """The checkpoint of one stage of a training; without a name, of the only or last one."""
        return self.path / f"checkpoint-{stage}.safetensors" if stage else self.checkpoint

    def clean(self) -> None:
        """Remove what only an unfinished run needs: checkpoints, and the journals of paid steps."""
        spent = [*self.path.glob("checkpoint*.safetensors")]
        spent += [p for p in self.releases.glob("*") if p.suffix in (".journal", ".lock")]
        for path in spent:
            path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise unless every part of the finished run is there and unchanged."""
        if not self.path.exists():
            raise BadInput(
                f"There is no run folder {self.path}; check the path, or make one with `sfumato fit`."
            )
        if not self.config.exists():
            raise BadInput(
                f"{self.path} is not a run folder (it has no config.json); give the --out of a `sfumato fit`."
            )
        if not self.finished:
            raise BadInput(
                f"The run in {self.path} is not finished; go on with it by `sfumato fit … --resume`."
            )
        manifest = read_json(self.manifest)
        if (
            not isinstance(manifest, dict)
            or manifest.get("format") != FORMAT
            or "sha256" not in manifest
        ):
            raise CorruptArtifact(
                f"{self.manifest} is damaged or of another version; restore the run folder."
            )
        for name, digest in manifest["sha256"].items():
            part = self.path / name
            if not part.exists():
                raise CorruptArtifact(f"{part} is missing; restore the run folder from a copy.")
            if sha256_of(part) != digest:
                raise CorruptArtifact(
                    f"{part} is not the file this run wrote; restore the run folder from a copy."
                )
