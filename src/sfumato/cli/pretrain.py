"""`sfumato pretrain`: make a codec or an extractor of public pictures.

Every record that this command reads is treated as public, and it says so before it begins. Torch is imported when the
command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfumato.cli.options import (
    facts_options,
    load_data,
    out_option,
    output_options,
    parse_facts,
    progress_for,
    seed_option,
)
from sfumato.cli.printing import print_json, say

if TYPE_CHECKING:
    from sfumato.data import Dataset

# Minutes on one core, and past the steep part of the learning curve.
DEFAULT_STEPS = {"codec": 2000, "extractor": 1500}


@click.command("pretrain")
@click.option(
    "--public",
    "spec",
    required=True,
    metavar="NAME|PATH",
    help="Public pictures: a named set or a path.",
)
@click.option(
    "--kind",
    type=click.Choice(["codec", "pca", "extractor"]),
    default="codec",
    help="codec: an autoencoder. pca: principal components. extractor: a classifier's body, for perceptual features.",
)
@out_option("FILE", "The safetensors file to write.", file=True)
@click.option(
    "--dim",
    type=click.IntRange(2, 100_000),
    default=64,
    help="Numbers in a code (codec, pca).",
)
@click.option(
    "--width",
    type=click.IntRange(8, 4_096),
    help="Channels of the first layers, a multiple of 8; auto: 32 for a codec, 16 for an extractor.",
)
@click.option(
    "--noise",
    type=float,
    default=0.2,
    help="Noise on codes in training (codec): more decodes more smoothly and less sharply.",
)
@click.option(
    "--perceptual",
    type=float,
    default=0.0,
    help="Weight of LPIPS by a public VGG16 beside the error of pixels (codec): sharper, and several times the work; try 0.1.",
)
@click.option(
    "--steps", type=click.IntRange(1), help="Training steps; auto: 2000 (codec), 1500 (extractor)."
)
@click.option(
    "--batch",
    type=click.IntRange(2, 1_000_000),
    default=64,
    help="Pictures a step.",
)
@click.option("--learning-rate", type=float, default=2e-3, help="Adam's.")
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    help="Numbers in training; bfloat16 is twice as fast where the processor has it.",
)
@click.option("--resume", is_flag=True, help="Go on with an interrupted training of the same file.")
@facts_options
@seed_option
@output_options
def pretrain(
    spec: str,
    kind: str,
    out: Path,
    dim: int,
    width: int | None,
    noise: float,
    perceptual: float,
    steps: int | None,
    batch: int,
    learning_rate: float,
    precision: str,
    resume: bool,
    seed: int,
    quiet: bool,
    as_json: bool,
    **facts: Any,
) -> None:
    """Train a codec or an extractor on PUBLIC pictures.

    All records given here are treated as public: the file that is written may remember them, and no privacy budget covers them.
    Its card (data, licence; of named sets also number and hash of the records) travels in the file; which rows it saw is
    remembered in the local cache, by digests that only this cache can read, so that a fit on the same rows is refused. Use the
    file by its path: --set codec=FILE, --set encoder=FILE.

    \b
    Example:
      sfumato pretrain --public quickdraw --out quickdraw.safetensors
      sfumato pretrain --public photos/ --image-size 32 --kind extractor --out photos.safetensors
    """
    from sfumato.public.pretraining import (
        Schedule,
        pretrain_codec,
        pretrain_extractor,
        pretrain_pca,
    )

    progress = progress_for(quiet)
    public = load_data(spec, progress, **parse_facts(**facts))
    say(_treated_as_public(public))
    schedule = Schedule(
        steps=steps or DEFAULT_STEPS.get(kind, 1),
        batch=batch,
        learning_rate=learning_rate,
        precision=precision,
        seed=seed,
        resume=resume,
        progress=progress,
    )
    wide = {"width": width} if width else {}
    if kind == "codec":
        made = pretrain_codec(
            public, out, schedule, dim=dim, noise=noise, perceptual=perceptual, **wide
        ).card
    elif kind == "pca":
        made = pretrain_pca(public, out, dim=dim, seed=seed).card
    else:
        made = pretrain_extractor(public, out, schedule, **wide)[1]
    card = made.to_json()
    if as_json:
        print_json({"out": str(out), "card": card})
        return
    measured = "; ".join(f"{k.replace('_', ' ')} {v:g}" for k, v in card["quality"].items())
    click.echo(f"{card['about']}, made of {', '.join(card['trained_on'])}.")
    if measured:
        click.echo(f"On public records kept out of the training: {measured}.")
    click.echo(f"Written to {out}.")


def _treated_as_public(public: Dataset) -> str:
    from sfumato.data import find_named

    found = find_named(public.name)
    text = (
        f"Every record of {public.name} is treated as PUBLIC: what is made of it may remember any of them, "
        "and no ε covers them."
    )
    if found is not None and found[0].use == "private":
        text += f" Do not use it on private data drawn from {found[0].name} itself."
    return text
