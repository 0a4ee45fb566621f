"""`write_card`: what goes beside a release when it is published, in the forms that others read.

    README.md            a dataset card for the Hugging Face Hub, with its YAML front matter
    croissant.json       Croissant 1.0 metadata (MLCommons), for dataset search and loaders
    NAME.yaml            an entry for OpenDP's Differential Privacy Deployments Registry, tier 3, as a draft
    nist-sp-800-226.md   a checklist along NIST's pyramid for evaluating claims of differential privacy

They hold what the run publishes by its guarantee (`published.released`), what their publisher states, and blanks for what neither
knows. Measurements on real data are left out unless asked for, and then wear their badge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from markupsafe import Markup

from sfumato import published
from sfumato._version import __version__
from sfumato.data.loading import load_like
from sfumato.data.schema import Schema
from sfumato.errors import BadInput, CorruptArtifact
from sfumato.evaluation.metrics import badge_of, family_of, title_of
from sfumato.files import make_folder, write_text
from sfumato.methods import SavedRun
from sfumato.privacy import Neighbours
from sfumato.privacy.statement import rounded_up, told_epsilon_k
from sfumato.report.signing import fingerprints, info_of, two_sentences, warnings_of
from sfumato.report.verify import verify
from sfumato.report.words import bound, corrected, guess, markdown, number, plain, power, render

BLANK = Markup("________")  # to stand in Markdown as it is
README, CROISSANT, NIST = "README.md", "croissant.json", "nist-sp-800-226.md"
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
# A picture as a row of pixels has no columns worth a name.
_MOST_FIELDS = 200
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"))
_FORMATS = {
    ".csv": "text/csv",
    ".parquet": "application/x-parquet",
    ".npz": "application/zip",
    ".safetensors": "application/octet-stream",
}


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What no run knows and its publisher may state; what he does not is left blank."""

    name: str = ""
    curators: tuple[str, ...] = ()
    licence: str = ""
    use: str = ""
    region: str = ""
    sector: str = ""
    date: str = ""
    url: str = ""

    def __post_init__(self) -> None:
        for text in (self.name, *self.curators, self.licence, self.use, self.region, self.url):
            if not text.isprintable():
                raise BadInput("What is stated on a card must be text of one line; correct it.")
        if self.sector and self.sector not in SECTORS:
            raise BadInput(f"The registry knows the sectors {', '.join(SECTORS)}; choose one.")
        if self.url and not re.match(r"https?://[^\s/]", self.url):
            raise BadInput(f"{self.url!r} is no address; begin it with https://.")
        if self.date:
            try:
                date.fromisoformat(self.date)
            except ValueError:
                raise BadInput(f"{self.date!r} is no date; write it as 2026-01-31.") from None


def write_card(
    run: Path | str,
    out: Path | str,
    *,
    release: Path | None = None,
    stated: Stated | None = None,
    metrics: bool = False,
) -> list[Path]:
    """Write the four files into the folder `out`; returns their paths.

    `release` is the file of synthetic records that is published with them: cards then name it, its size and its columns. With
    `metrics` the README has what `evaluate` measured, which is not covered by ε.
    """
    stated, out = stated or Stated(), Path(out)
    with SavedRun(run) as saved:
        info = info_of(saved)
        if not saved.told_statement.get("sound", True) or (info is not None and not info.sound):
            raise BadInput(
                f"The run in {saved.path} is not sound and has no guarantee to publish; fit one that is."
            )
        checks = verify(saved.path, report=False)
        if not checks.passed:
            raise CorruptArtifact(
                f"The run in {saved.path} does not pass its checks, so nothing is published of it: "
                f"{checks.outcome.removeprefix('FAIL: ')}"
            )
        facts = _facts(saved, release, metrics)
        published.check("released", facts)
        content = _content(saved, facts, stated)
    slug = re.sub(r"\W+", "_", content["name"].lower(), flags=re.ASCII).strip("_") or "release"
    front = yaml_text(_front_matter(content, stated))
    readme = render("card.md.jinja", content | {"front": front}, escape=_verbatim_front(front))
    made = {
        README: readme,
        CROISSANT: json.dumps(_croissant(content, stated), indent=2, ensure_ascii=False) + "\n",
        f"{slug}.yaml": yaml_text(_registry(content, stated)),
        NIST: render("nist.md.jinja", content, escape=markdown),
    }
    make_folder(out)
    for name, text in made.items():
        write_text(out / name, text)
    return [out / name for name in made]


def _verbatim_front(front: str) -> Any:
    """Everything is made harmless in Markdown but the front matter, which is YAML."""
    return lambda value: value if value is front else markdown(value)


def _facts(run: SavedRun, release: Path | None, metrics: bool) -> dict[str, Any]:
    """All that the run tells on its cards, by the list of what may be published."""
    facts: dict[str, Any] = {
        "config": published.only("config", run.config),
        "statement": published.only("statement", run.told_statement),
        "fingerprints": fingerprints(run, [release] if release else []),
        "metrics": [published.only("metric", m) for m in run.metrics] if metrics else None,
    }
    if release is not None:
        if not release.is_file():
            raise BadInput(f"There is no file {release}; give one that `sfumato sample` made.")
        # Opened as a data set of the run's schema: another run's file is refused here.
        data = load_like(release, run.schema)
        if (data.schema.kind, data.schema.shape) != (run.schema.kind, run.schema.shape):
            raise BadInput(f"{release} holds no records as {run.path} makes them; give its own.")
        facts |= {"file": release.name, "records": len(data)}
    return facts


def _content(run: SavedRun, facts: dict[str, Any], stated: Stated) -> dict[str, Any]:
    statement, config, schema, unit = facts["statement"], facts["config"], run.schema, run.unit
    epsilon, delta = float(statement["epsilon"]), float(statement["delta"])
    info = info_of(run)
    makes = info.makes if info else "records"
    relation = Neighbours(statement["neighbours"])
    return {
        "name": stated.name or f"Synthetic {config['data']['name']}",
        "data": config["data"]["name"],
        "makes": makes,
        "sentences": two_sentences(statement, unit.name, unit.single, makes),
        "warnings": warnings_of(run),
        "statement": statement,
        "epsilon": bound(epsilon),
        "epsilon_value": rounded_up(epsilon),
        "delta": power(delta),
        "delta_value": delta,
        "relation": relation.value,
        "adjacent": relation.meaning(unit),
        "size_is_public": relation.size_is_public,
        "unit": unit,
        "guess": guess(epsilon, delta),
        "several": {
            count: bound(value) for count, value in (told_epsilon_k(statement) or {}).items()
        },
        "not_covered": [corrected(line) for line in statement["not_covered"]],
        "releases": [
            (r["label"], number(r["sensitivity"]), number(r["noise_std"]), r["event"])
            for r in statement["releases"]
        ],
        "sampler": sorted({str(r.get("noise", "")) for r in statement["releases"]} - {""}),
        "sums": sum(int(r.get("steps", 1)) for r in statement["releases"]),
        "method": config["method"],
        "title": info.title if info else config["method"],
        "paper": info.paper if info else "",
        "settings": {key: plain(value) for key, value in config["settings"].items()},
        "public": config.get("public"),
        "schema": schema,
        "kind": _kind(schema),
        "file": facts.get("file", ""),
        "records": facts.get("records"),
        "fingerprints": facts["fingerprints"],
        "seal": run.fingerprint,
        "ledger": run.ledger_name,
        "metrics": [
            (family_of(m["name"]).title, title_of(m["name"]), number(m["value"]), badge_of(m))
            for m in facts["metrics"] or ()
        ],
        "made_by": config.get("sfumato", __version__),
        "stated": stated,
        "blank": BLANK,
    }


def _kind(schema: Schema) -> str:
    if schema.kind == "images":
        channels, height, width = schema.shape
        what = f"images of {height}×{width} pixels, {'gray' if channels == 1 else 'colour'}"
    else:
        what = f"a table of {len(schema.columns)} columns"
    return f"{what}, {schema.n_classes} classes" if schema.labelled else what


# ------------------------------------------------------------------------------- Hugging Face


def _front_matter(content: dict[str, Any], stated: Stated) -> dict[str, Any]:
    """What the Hub's search reads; a licence that nobody stated is left out, not guessed."""
    schema: Schema = content["schema"]
    facts: dict[str, Any] = {"pretty_name": content["name"]}
    if stated.licence:
        facts["license"] = stated.licence
    if schema.labelled:
        kind = "image" if schema.kind == "images" else "tabular"
        facts["task_categories"] = [f"{kind}-classification"]
    if content["records"]:
        facts["size_categories"] = [_size_category(content["records"])]
    facts["annotations_creators"] = ["machine-generated"]
    facts["tags"] = ["synthetic", "differential-privacy", "sfumato", content["method"]]
    if content["file"].endswith((".csv", ".parquet")):
        split = {"split": "train", "path": content["file"]}
        facts["configs"] = [{"config_name": "default", "data_files": [split]}]
    return facts


def _size_category(records: int) -> str:
    return next((name for limit, name in _SIZES if records < limit), "1M<n<10M")


# ------------------------------------------------------------------------------- Croissant

_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{
        word: f"cr:{word}"
        for word in (
            *("citeAs", "column", "equivalentProperty", "extract", "field", "fileObject"),
            *("fileProperty", "fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key"),
            *("md5", "parentField", "path", "recordSet", "references", "regex", "repeated"),
            *("replace", "samplingRate", "separator", "source", "subField", "transform"),
        )
    },
}


def _croissant(content: dict[str, Any], stated: Stated) -> dict[str, Any]:
    creators = [{"@type": "sc:Organization", "name": name} for name in stated.curators]
    told: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": content["name"],
        "description": " ".join(content["sentences"]),
        "version": "1.0.0",
        "isLiveDataset": False,
        "keywords": ["synthetic data", "differential privacy", content["method"]],
        "rai:personalSensitiveInformation": content["statement"]["paragraph"],
        "rai:dataLimitations": " ".join(content["not_covered"]),
        "distribution": [_file(name, sha) for name, sha in content["fingerprints"].items()],
    }
    known = {
        "license": stated.licence,
        "url": stated.url,
        "datePublished": stated.date,
        "creator": creators,
        "rai:dataUseCases": stated.use,
    }
    told |= {key: value for key, value in known.items() if value}
    fields = list(_fields(content))
    if fields:
        told["recordSet"] = [
            {"@type": "cr:RecordSet", "@id": "records", "name": "records", "field": fields}
        ]
    return told


def _file(name: str, sha256: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": _id(name),
        "name": name,
        "contentUrl": name,
        "encodingFormat": _FORMATS.get(Path(name).suffix.lower(), "application/octet-stream"),
        "sha256": sha256,
    }


def _fields(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The columns of a released table."""
    schema: Schema = content["schema"]
    if schema.kind != "table" or not content["file"].endswith((".csv", ".parquet")):
        return
    if len(schema.columns) > _MOST_FIELDS:
        return
    columns = [(c.name, "sc:Float" if c.kind == "numerical" else "sc:Text") for c in schema.columns]
    columns += [(schema.label, "sc:Text")] if schema.label else []
    for place, (name, kind) in enumerate(columns):
        own = _id(name)
        twice = any(_id(other) == own for other, _ in columns[:place])
        yield {
            "@type": "cr:Field",
            "@id": f"records/{own}.{place}" if twice else f"records/{own}",
            "name": name,
            "dataType": kind,
            "source": {"fileObject": {"@id": _id(content["file"])}, "extract": {"column": name}},
        }


def _id(name: str) -> str:
    """Croissant's identifiers have no blanks and nothing that an address could not hold."""
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)


# ------------------------------------------------------------------------------- OpenDP's registry


def _registry(content: dict[str, Any], stated: Stated) -> dict[str, Any]:
    unit, delta = content["unit"], content["delta_value"]
    year = (stated.date or "1900").partition("-")[0]
    name = "-".join([content["name"], *(stated.curators or ("curator",)), year])
    records = content["makes"] == "records"
    size = f" The number of {unit.plural} is taken as public." if content["size_is_public"] else ""
    return {
        "url_slug": re.sub(r"[\W_]+", "-", name.lower(), flags=re.ASCII).strip("-"),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": content["name"],
                "data_curators": list(stated.curators) or [Blank()],
                "intended_use": stated.use or Blank(),
                "data_product_type": "Synthetic data" if records else "Machine learning model",
                "data_product_region": stated.region or Blank(),
                "description": f"{content['kind'][0].upper()}{content['kind'][1:]}, made by {content['title']}. "
                + " ".join(content["sentences"]),
                # The registry asks for some date.
                "publication_date": stated.date or Blank("1900-01-01"),
                **({"data_product_sector": stated.sector} if stated.sector else {}),
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"Data sets of {content['kind']}, as a public schema states them (shape, ranges, columns, "
                "categories, classes).",
                "unprotected_quantities": f"The schema.{size} Metrics on real data, if published, are not protected.",
            },
            "privacy_loss": {
                "privacy_unit": f"One {unit.name}",
                "privacy_unit_details": f"Two data sets are adjacent if {content['adjacent']}.",
                "privacy_parameters": {"epsilon": content["epsilon_value"], "delta": delta},
                "privacy_parameters_details": "At the same δ, together: "
                + ", ".join(f"{k} {unit.plural}: ε = {v}" for k, v in content["several"].items())
                + ".",
            },
            "deployment_model": {
                "model_name": "Central",
                "actors": "The curator sees the data and runs sfumato on a machine of its own. Everybody else sees what is "
                "published, and may know all about the method, its settings and every other participant.",
                "release_type": "One release",
                "release_type_details": Blank(),
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": f"All that follows the noisy sums: training of {content['title']} and drawing of records.",
                "composition": f"{content['sums']:,} noisy sum{'' if content['sums'] == 1 else 's'}, composed as one mechanism "
                "by privacy loss distributions (dp-accounting), checked by a second route (sfumato verify).",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": Blank(),
                "mechanisms": f"Gaussian mechanism on sums of vectors of bounded norm, counted in whole units of a public grid: "
                f"{'; '.join(content['sampler']) or 'Gaussian noise'}. Library: sfumato {content['made_by']}, with OpenDP for "
                "exact noise. Timing and other side channels of the machine are not covered.",
                "justification": Blank(),
            },
            "administrative": {
                "sources": stated.url or Blank(),
                "notes": f"Seal of the run {content['seal']}.",
                "registry_authors": list(stated.curators) or [Blank()],
            },
        },
    }


# ------------------------------------------------------------------------------- YAML


class Blank(str):
    """A value that is to be filled in by hand, and says so."""


def yaml_text(value: Mapping[str, Any], indent: int = 0) -> str:
    """Mappings, lists, numbers and text as YAML; text is quoted as in JSON, which YAML reads alike."""
    lines, space = [], " " * indent
    for key, item in value.items():
        if isinstance(item, Mapping):
            lines += [f"{space}{key}:", yaml_text(item, indent + 2).rstrip("\n")]
        elif isinstance(item, Sequence) and not isinstance(item, str):
            lines.append(f"{space}{key}:")
            for one in item:
                if isinstance(one, Mapping):
                    inner = yaml_text(one, indent + 4).rstrip("\n")
                    lines.append(f"{space}  - {inner[indent + 4 :]}")
                else:
                    lines.append(f"{space}  - {_scalar(one)}")
        else:
            lines.append(f"{space}{key}: {_scalar(item)}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    if isinstance(value, float) and "e" in repr(value):
        # YAML 1.1 takes 1e-05 for text.
        mantissa, _, exponent = repr(value).partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{int(exponent):+d}"
    text = json.dumps(value, ensure_ascii=isinstance(value, str) and not value.isprintable())
    return f"{text} # fill in" if isinstance(value, Blank) else text
