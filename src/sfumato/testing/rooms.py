"""The rooms in lines: what the plan of the house gave each, what stands there, and what came that the plan had no place for.

    python -m sfumato.testing.rooms                    prints the table
    python -m sfumato.testing.rooms docs/design.md     writes it between the page's two marks

The plan was drawn for version 0.1.0 with the features it had, to be said once each. Lines are all lines of Python files, comments
and docstrings among them; what is data (TOML, templates) does not count.
"""

from __future__ import annotations

import sys
from pathlib import Path

import sfumato

SOURCE = Path(sfumato.__file__).parent
MARKS = "<!-- rooms -->\n", "<!-- /rooms -->\n"
TOP = "."
# Room: lines that the plan gave it; of what is left beside new modules, those that grew most, with their lines in the plan; why.
PLAN: dict[str, tuple[int, dict[str, int], str]] = {
    TOP: (
        560,
        {"files": 90, "errors": 48, "classifier": 270},
        "kills, full disks; a sentence each",
    ),
    "data": (
        3040,
        {"tables": 330, "loading": 270, "sources+folders": 540, "builders+catalogue": 330},
        "streams, refusals",
    ),
    "engines": (60, {}, "the seam that a cluster uses as well"),
    "privacy": (
        2550,
        {"gradients": 610, "bounding": 290, "accounting": 345},
        "proofs for single rows",
    ),
    "generators": (1225, {}, "DP-MEPF's distance stands in `methods`"),
    "public": (3820, {"perceptual": 380, "networks": 190}, "codecs' parts in modules of their own"),
    "methods": (
        4950,
        {"base": 340, "run": 190},
        "resume, ledger, units, engines; settings of presets",
    ),
    "evaluation": (
        2560,
        {"metrics": 540, "downstream": 390, "frechet": 237},
        "intervals, refusals",
    ),
    "report": (1610, {"page": 420, "comparison": 420}, "units, claims, published numbers"),
    "cli": (1490, {"fit": 330, "options": 230}, "help that teaches, refusals before a row is read"),
    "studio": (0, {}, "no room of the plan"),
    "testing": (260, {}, "the contract asks more: resume, refit, streams, units"),
}
# Modules that the plan's tree did not have, by the feature that brought them.
SINCE = {
    "store: one SQLite file a run": "privacy/store privacy/claim privacy/database checkpoints",
    "ledger over runs of a data set": "privacy/dataset_ledger cli/ledger",
    "audit of mechanisms and methods": "privacy/audit privacy/one_run cli/audit testing/canaries testing/neighbours testing/sums",
    "exact accounting of samples, by a second route": "privacy/losses privacy/verification",
    "units of privacy": "privacy/units data/units",
    "the wall's own memory, samples and doors": "privacy/memory privacy/sampling privacy/gate",
    "overlap of private and public data": "privacy/overlap",
    "cluster, shards of samples": "engines/ray methods/shards",
    "presets of the papers, published numbers": "methods/presets report/papers",
    "mixture's tone and capacity": "methods/tone methods/capacity",
    "robustness: kills, damage, hostile calls": "testing/crash testing/corrupt testing/fuzz testing/readers",
    "what may be published; reports that can be checked": "published report/verify cli/run",
    "inspection before a fit, and the owner's check": "data/inspection data/examination report/checking cli/check",
    "what people have goes in (DICOM, frames, hubs)": "data/adapters data/beside data/conversion data/decoding data/dicom "
    "data/draft data/hub cli/schema notebook methods/estimator",
    "reports that can be signed, cards": "report/signing report/pdf report/glossary report/card cli/card evaluation/baselines",
    "tables of the papers made again": "report/reproduce report/export cli/reproduce evaluation/dpimagebench "
    "evaluation/classified methods/expectation",
    "methods that the plan did not know": "methods/evolve methods/pictured public/pictures methods/pearl methods/privbayes "
    "methods/bayes_network methods/diffusion methods/denoised methods/denoising methods/posterior generators/denoiser "
    "methods/on_mixture methods/transport methods/textures public/texture",
    "codecs of one's own, data behind an address": "public/own data/remote",
    "studio: runs on a page of this machine": "studio/__init__ studio/app studio/folder studio/plans cli/studio",
    "methods from a template; the walk and the rooms": "cli/new_method testing/walk testing/rooms",
}


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def table() -> str:
    """Two tables: room by room, and the new modules by feature."""
    found = {
        p.relative_to(SOURCE).with_suffix("").as_posix(): lines(p) for p in SOURCE.rglob("*.py")
    }
    rooms = {name: name.split("/")[0] if "/" in name else TOP for name in found}
    new = {name for names in SINCE.values() for name in names.split()}
    if missing := [name for name in new if name not in found]:
        raise SystemExit(
            f"There are no modules {', '.join(missing)}; SINCE must be brought up to date."
        )
    told = [
        "| room | plan | today, files | of it new since | left − plan | why |",
        "|---|---|---|---|---|---|",
    ]
    total = [0] * 5
    for room, (planned, grown, why) in PLAN.items():
        own = {name: n for name, n in found.items() if rooms[name] == room}
        today, since = sum(own.values()), sum(n for name, n in own.items() if name in new)
        row = (planned, today, len(own), since, today - since - planned)
        total = [before + n for before, n in zip(total, row, strict=True)]
        prefix = "" if room == TOP else f"{room}/"
        parts = [
            f"`{names}` {sum(found[prefix + name] for name in names.split('+')) - n:+,}"
            for names, n in grown.items()
        ]
        left = f"{', '.join(parts)}: {why}" if parts else why
        told.append(
            f"| `{room}` | {row[0]:,} | {row[1]:,}, {row[2]} | {since:,} | {row[4]:+,} | {left} |"
        )
    told.append(
        f"| **all** | {total[0]:,} | **{total[1]:,}**, {total[2]} | {total[3]:,} | {total[4]:+,} | |"
    )
    told += ["", "| new since the plan | lines | modules |", "|---|---|---|"]
    for feature, names in SINCE.items():
        shown = ", ".join(f"`{name}`" for name in names.split())
        told.append(f"| {feature} | {sum(found[n] for n in names.split()):,} | {shown} |")
    return "\n".join(told) + "\n"


def main() -> None:
    if len(sys.argv) == 1:
        sys.stdout.write(table())
        return
    page = Path(sys.argv[1])
    before, rest = page.read_text(encoding="utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    page.write_text(before + MARKS[0] + table() + MARKS[1] + after, encoding="utf-8")


if __name__ == "__main__":
    main()
