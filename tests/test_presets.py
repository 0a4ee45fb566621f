"""Presets: what the papers set, transcribed a second time; and what a preset does when it is used."""

from __future__ import annotations

import json
import math
import re
import warnings
from typing import Any

import pytest
from click.testing import CliRunner

from sfumato.cli.main import app
from sfumato.data import load, schema_of
from sfumato.errors import BadInput
from sfumato.methods import Dpaf, Dre, GanFt, Hp, LinearMaps, Mepf, Merf, find_methods, get_method
from sfumato.methods.presets import Preset, find_preset, list_presets, preset_names
from sfumato.privacy import Budget, Neighbours
from sfumato.privacy.query import gaussian_noise
from sfumato.report.comparison import parse_config

INF = math.inf

# The second transcription, from the papers' tables and not from the presets: method/data, ε (None: any), settings.
# Here the papers' own units stand: T rounds of five critic steps, batches B.
MERF_TABLES = {  # S3:1781–1788, the private columns: epochs, mini-batch, features, undersampling
    "adult": (8000, 0.1, 1000, 0.4),
    "census": (2000, 0.5, 10000, 0.4),
    "cervical": (200, 0.5, 2000, 1),
    "credit": (4000, 0.5, 5000, 0.005),
    "epileptic": (6000, 0.5, 80000, 1),
    "isolet": (4000, 0.5, 500, 1),
    "covtype": (6000, 0.05, 1000, 0.03),
    "intrusion": (10000, 0.03, 2000, 0.1),
}
HP_TABLES = {  # S3:2787–2794: batch rate, order of the product, its dimension, order of the sum, γ; epochs of the code
    "adult": (0.1, 5, 5, 100, 0.1, 20),
    "census": (0.5, 5, 5, 100, 0.1, 50),
    "cervical": (0.5, 13, 5, 20, 1, 20),
    "credit": (0.5, 7, 5, 20, 1, 200),
    "epileptic": (0.1, 5, 7, 20, 0.1, 20),
    "isolet": (0.5, 13, 5, 150, 1, 20),
    "covtype": (0.01, 7, 2, 10, 1, 200),
    "intrusion": (0.01, 5, 5, 7, 1, 200),
}
TABLE_4 = {  # S2:377–381, Cifar10: DRE w, T, B, η; GAN-FT η, T, B; GAN-MI w, T, B, η
    INF: ((16, 3000, 64, 1e-4), (1e-7, 30000, 4), (128, 100000, 64, 1e-3)),
    10: ((1, 3000, 64, 1e-3), (1e-6, 3000, 16), (128, 100000, 64, 1e-4)),
    3: ((1, 3000, 64, 1e-3), (1e-6, 30000, 4), (32, 10000, 64, 1e-3)),
    1: ((1, 3000, 64, 1e-3), (1e-6, 3000, 4), (32, 3000, 64, 1e-3)),
    0.1: ((16, 3000, 64, 1e-3), (1e-6, 30000, 4), (128, 10000, 64, 1e-3)),
}
MEPF_RATES = {  # S3:3465–3480, φ1 and φ2: the generator's rate, the average's
    ("mnist", 2): (1e-5, 1e-4),
    ("fashion-mnist", 2): (1e-4, 1e-3),
    ("mnist", INF): (1e-5, 1e-3),
    ("fashion-mnist", INF): (1e-5, 1e-3),
    ("celeba-32", 10): (3e-4, 1e-4),
    ("celeba-32", 1): (3e-4, 3e-4),
    ("celeba-32", 0.2): (1e-3, 3e-4),
    ("celeba-64", 5): (3e-4, 1e-4),
    ("celeba-64", 2): (3e-4, 1e-3),
    ("celeba-64", 0.5): (1e-3, 1e-3),
    ("cifar10", 5): (1e-3, 3e-4),
    ("cifar10", 1): (1e-3, 1e-2),
    ("cifar10", 0.2): (1e-3, 1e-2),
    ("cifar10-unlabelled", 10): (1e-3, 1e-3),
    ("cifar10-unlabelled", 0.2): (1e-3, 1e-3),
}
OTHERS: dict[tuple[str, str, float | None], dict[str, Any]] = {
    ("merf", "mnist", None): {
        "features": 10000, "length_scales": "105", "latent": 5, "hidden": 200, "network": "conv",
        "steps": 3000, "batch": 100, "block": 5000, "learning_rate": 0.01, "decays": 5, "grain": 0,
        "self_pairs": True,
    },
    ("merf", "fashion-mnist", None): {"features": 10000, "length_scales": "127", "steps": 3000},
    ("merf", "gaussians-2d", None): {
        "features": 30000, "length_scales": str(round(0.5 / 36, 4)), "learning_rate": 3e-3, "widths": "200,500,500,200",
        "steps": 50 * 90_000 // 500, "batch": 500, "decays": 50, "latent": 5, "block": 15_000,
    },
    ("merf", "cifar10", None): {"features": 500000, "length_scales": "1000", "learning_rate": 1e-3},
    ("hp", "mnist", None): {
        "order": 100, "product_order": 20, "rounds": 10, "length_scale": 0.005, "gamma": 20,
        "network": "dense", "batch": 200, "steps": 3000, "learning_rate": 0.01, "hidden": 500, "grain": 0,
        "self_pairs": True,
    },
    ("hp", "fashion-mnist", None): {"length_scale": 0.15, "gamma": 10, "network": "conv", "hidden": 500},
    ("hp", "mnist", INF): {"gamma": 5, "order": 100},
    ("hp", "mnist", 1): {"gamma": 20},
    ("hp", "fashion-mnist", INF): {"gamma": 20, "length_scale": 0.15},
    ("merf", "adult", INF): {"features": 50000, "steps": 8000},
    ("merf", "census", INF): {"features": 10000, "steps": 200},
    ("merf", "credit", INF): {"features": 50000, "steps": 4000},
    ("merf", "credit", 1): {"features": 5000, "steps": 4000},
    ("hp", "gaussians-2d", None): {
        "order": 25, "product_order": 25, "widths": "200,500,500,200", "steps": 100 * 90_000 // 500, "batch": 500,
        "decays": 100, "latent": 5, "gamma": 10,
    },
    ("hp", "adult-discrete", 0.3): {
        "order": 100, "product_order": 10, "product_dims": 5, "gamma": 1, "gamma_on": "product", "rounds": 8,
        "product_share": 0.5, "self_pairs": True,
    },
    ("hp", "adult-discrete", 0.1): {"order": 100, "product_order": 5, "product_dims": 7, "gamma": 1, "rounds": 8},
    ("mepf", "mnist", None): {
        "taps": "convolutions", "moments": 2, "network": "conv", "size": 28, "texture": False, "warp": 0, "checked": False,
        "loss": "moving-average", "steps": 100000, "batch": 100, "latent": 90, "hidden": 500, "grain": 0,
    },
    ("mepf", "fashion-mnist", None): {
        "encoder": "resnet18-cifar10", "taps": "convolutions", "steps": 100000, "batch": 100,
    },
    ("mepf", "cifar10", 1): {
        "encoder": "torchvision:vgg19", "balance": False, "network": "resnet", "width": 64,
        "batch": 128, "steps": 200000, "stop": True, "grain": 0, "loss": "moving-average",
        "stop_encoder": "fid-inception", "stop_taps": "pool3", "stop_checks": 40, "stop_records": 5000, "decays": 1,
    },
    ("mge", "any", None): {"covariance": "diagonal", "spread": 1, "grain": 0},
    ("dre", "any", None): {"cap": False, "sharpness": 1, "clip": 1, "public_records": 50000},
    ("gan-ft", "cifar10", 1): {
        "critic_steps": 5, "latent": 128, "width": 1024, "clip": 1, "loss": "wasserstein", "penalty": 1,
        "penalty_at": "record", "public_rate": 1e-4, "batch": 4, "decay": 0,
    },
    ("gan-mi", "cifar10", 1): {
        "critic_steps": 5, "latent": 25, "clip": 1, "penalty": 1, "penalty_at": "record", "batch": 64, "decay": 0,
    },
    ("dpaf", "mnist", 1): {
        "rate": 24 / 60000, "critic_steps": 3, "asymmetry": 8, "keep": 0.9, "latent": 100, "first_phase": "dp-sgd",
        "split": "0.1,rest,0.1",
    },
    ("dpaf", "faces", 10): {"rate": 64 / 5600, "latent": 100},
    ("llm", "mnist", 2): {
        "maps": 30, "projection": 300, "basis": "random", "per_map": True, "beta": 1 / 30, "rate": 500 / 60000,
        "epochs": 20, "clip": 1e-3, "learning_rate": 1e-3, "schedule": "steps",
        "input_scale": (1 / 0.3081) * (0.5 / (1 / 300)) ** 0.5,
    },
    ("llm", "fashion-mnist", 0.5): {
        "beta": 1, "rate": 500 / 60000, "epochs": 20, "schedule": "steps", "input_scale": (0.5 * 300) ** 0.5,
    },
    ("llm", "mnist", 4): {"rate": 1500 / 60000, "epochs": 60},
    ("llm", "mnist", 8): {"rate": 1500 / 60000, "epochs": 60, "clip": 1e-3},
}  # fmt: skip


def found(method: str, data: str, epsilon: float | None = None, n: int | None = None) -> Preset:
    return find_preset(get_method(method), "paper", data=data, epsilon=epsilon, n=n)


@pytest.mark.parametrize(("key", "wanted"), OTHERS.items())
def test_presets_have_the_papers_numbers(
    key: tuple[str, str, float | None], wanted: dict[str, Any]
) -> None:
    values = found(*key).values
    for name, value in wanted.items():
        if isinstance(value, str | bool):
            assert values[name] is value or values[name] == value, name
        else:
            assert values[name] == pytest.approx(value, rel=2e-4), name


@pytest.mark.parametrize("data", MERF_TABLES)
def test_merf_has_the_papers_numbers_for_tables(data: str) -> None:
    steps, share, features, undersample = MERF_TABLES[data]
    preset = found("merf", data, n=10_000)
    assert preset.values["steps"] == steps and preset.values["features"] == features
    assert preset.values["batch"] == round(share * 10_000)
    assert preset.values["category_weight"] == "length"
    assert preset.values["latent"] == 10 and preset.values["learning_rate"] == 0.01
    # The code's generator: 4 and 2 times what it makes; a constant learning rate; all frequencies in every step.
    assert (preset.values["widths"], preset.values["decays"]) == ("4d,2d", 1)
    assert 2 * preset.values["block"] >= features
    if undersample == 1:
        assert "undersample" not in preset.missing
    else:
        assert f"undersample = {undersample:g};" in preset.missing["undersample"]


@pytest.mark.parametrize("data", HP_TABLES)
def test_hp_has_the_papers_numbers_for_tables(data: str) -> None:
    share, product, dims, order, gamma, epochs = HP_TABLES[data]
    preset = found("hp", data, n=10_000)
    values = preset.values
    assert (values["order"], values["product_order"], values["rounds"]) == (order, product, epochs)
    assert (values["gamma"], values["gamma_on"]) == (gamma, "product")
    assert values["steps"] == pytest.approx(epochs / share)
    assert values["batch"] == round(share * 10_000)
    assert values["product_dims"] == dims
    assert (values["widths"], values["latent"], values["decays"]) == ("4d,2d", 10, 1)


@pytest.mark.parametrize("epsilon", TABLE_4)
def test_table_4_of_the_public_data_paper(epsilon: float) -> None:
    dre, tuned, inverted = TABLE_4[epsilon]
    values = found("dre", "cifar10", epsilon).values
    assert (values["width"], values["steps"]) == dre[:2]
    assert (values["rate"], values["learning_rate"]) == pytest.approx((dre[2] / 50000, dre[3]))
    values = found("gan-ft", "cifar10", epsilon).values
    assert (values["learning_rate"], values["critic_rate"]) == (tuned[0], tuned[0])
    assert values["batch"] == tuned[2]
    assert (values["steps"], values["rate"]) == pytest.approx((5 * tuned[1], tuned[2] / 50000))
    values = found("gan-mi", "cifar10", epsilon).values
    assert (values["width"], values["steps"]) == (inverted[0], 5 * inverted[1])
    assert (values["rate"], values["learning_rate"]) == pytest.approx(
        (inverted[2] / 50000, inverted[3])
    )


@pytest.mark.parametrize(
    (
        "data",
        "epsilon",
        "wanted",
    ),  # S3:3509–3514: rates of generator and critic, frequency, clip norm
    [
        ("cifar10", 1, (1e-4, 1e-3, 10, 1e-5)),
        ("celeba-32", 1, (3e-4, 3e-4, 10, 1e-4)),
        ("celeba-64", 0.2, (3e-4, 1e-3, 30, 1e-5)),
        ("celeba-64", 1, (3e-4, 3e-4, 30, 1e-5)),
        ("celeba-64", 2, (3e-4, 1e-3, 10, 1e-4)),
        ("celeba-64", 10, (3e-4, 1e-3, 10, 1e-5)),
    ],
)
def test_table_9_of_the_thesis(data: str, epsilon: float, wanted: tuple[float, ...]) -> None:
    n = 50_000 if data == "cifar10" else 162_770
    values = find_preset(GanFt, "dp-gan-pretrained", data=data, epsilon=epsilon, n=n).values
    names = ("learning_rate", "critic_rate", "critic_steps", "clip")
    assert tuple(values[name] for name in names) == wanted
    assert (values["rate"], values["steps"]) == (512 / n, round(10 * n / 512))
    assert (values["width"], values["network"]) == (50 if data == "celeba-64" else 64, "resnet9")


@pytest.mark.parametrize("key", MEPF_RATES)
def test_mepf_has_the_papers_learning_rates(key: tuple[str, float]) -> None:
    values = found("mepf", *key).values
    assert values["decays"] == 1  # constant
    assert (values["learning_rate"], values["average_rate"]) == MEPF_RATES[key]


def test_every_preset_is_of_known_settings_within_their_limits_and_has_sources() -> None:
    seen = 0
    for name, method in find_methods().items():
        for kind, sets in preset_names(method).items():
            assert kind in ("paper", "fast", "dpdm", "dp-gan-pretrained") and sets
            for preset in list_presets(method, kind):
                if kind == "fast":  # a change of the paper's
                    assert preset.data in {p.data for p in list_presets(method, "paper")}
                known = {s.name for s in method.settings()}
                for chosen in preset.settings:
                    assert chosen.name in known, (name, chosen)
                    assert re.fullmatch(r"S[0-4]:\d+|code|here|two cores", chosen.source), chosen
                    assert (chosen.instead is not None) == (chosen.source == "two cores")
                for epsilon in (INF, 10, 3, 1, 0.3, 0.1):
                    made = find_preset(method, kind, data=preset.data, epsilon=epsilon, n=10_000)
                    method(**made.values)  # within the limits, or it raises
                    seen += 1
    assert seen > 200


def test_the_nearest_epsilon_that_the_paper_prints_is_taken() -> None:
    def rate(epsilon: float) -> Any:
        return found("mepf", "cifar10", epsilon).values["average_rate"]

    assert [rate(e) for e in (100, 10, 4, 3, 1.5, 0.7, 0.01)] == [
        3e-4,
        3e-4,
        3e-4,
        1e-2,
        1e-2,
        1e-2,
        1e-2,
    ]
    assert found("llm", "mnist", 3.9).values["epochs"] == 20
    with pytest.raises(BadInput, match=r"average_rate of mepf depends on ε.*give epsilon="):
        find_preset(Mepf, data="cifar10", given=("learning_rate",))


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_dpaf_divides_its_budget_as_the_paper_does(epsilon: float) -> None:
    """(0.1, ×, 0.1) of ε for conv1, conv2 and the aggregates; what a part costs is 1 ÷ σ² of its Gaussian mechanism."""
    method, budget = (
        Dpaf(**found("dpaf", "mnist", epsilon).values),
        Budget(epsilon=epsilon, delta=1e-5),
    )
    parts = [
        gaussian_noise(Budget(epsilon=part, delta=1e-5)) ** -2 for part in (0.1, epsilon - 0.2, 0.1)
    ]
    schema, _ = schema_of("mnist:train")
    _, *shares = [query.share for query in method.queries(schema, budget)]  # without the counts
    assert shares == pytest.approx([part / sum(parts) for part in parts], rel=1e-6)


def test_n_is_the_published_size_of_a_named_set() -> None:
    assert found("merf", "adult:train").values["batch"] == 3256
    assert found("merf", "census").values["batch"] == round(0.5 * 199_523)
    assert found("merf", "credit", n=100).values["batch"] == 50


def test_a_preset_makes_a_method_and_says_what_it_lacks() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing of it is missing
        made = Merf.preset("paper", data="mnist", steps=7)
    assert made.get_params() == Merf(
        features=10_000, length_scales="105", network="conv", latent=5, hidden=200, steps=7,
        batch=100, block=5_000, learning_rate=0.01, decays=5, grain=0.0, self_pairs=True,
    ).get_params()  # fmt: skip
    with pytest.warns(UserWarning, match=r"changes .*steps = 1000 \(the paper has 200000\)"):
        fast = Mepf.preset("fast", data="cifar10", epsilon=1)
    assert (fast.steps, fast.width, fast.loss) == (1000, 32, "moving-average")
    with pytest.warns(UserWarning, match="lacks the paper's codec"):
        assert not Dre.preset(data="faces").cap  # an entry for any data set


@pytest.mark.parametrize(
    ("method", "name", "data", "words"),
    [
        (Merf, "papre", "mnist", "no preset 'papre'; it has paper and fast"),
        (Merf, "paper", "digits", "no preset 'paper' for 'digits'"),
        (Merf, "paper", "cervical", "batch of merf is 0.5 n"),
        (Dre, "fast", "cifar10", "no preset 'fast'; it has paper"),
        (get_method("mixture"), "paper", "mnist", "it has none"),
    ],
)
def test_a_preset_that_is_not_there_is_a_sentence(
    method: Any, name: str, data: str, words: str
) -> None:
    with pytest.raises(BadInput, match=re.escape(words)):
        find_preset(method, name, data=data, epsilon=1)


def test_presets_can_be_planned_where_the_data_are_known() -> None:
    budget = Budget(epsilon=1.0, delta=1e-5, neighbours=Neighbours.REPLACE_ONE)
    schema, _ = schema_of("mnist:train")
    (release,) = Merf(**found("merf", "mnist").values).promise(schema, budget).charges
    assert release.dimension == 10 * (10_000 + 1)
    hermite = Hp(**found("hp", "mnist").values).promise(schema, budget).charges
    assert len(hermite) == 11 and hermite[1].dimension == 10 * 21 * 21
    maps = LinearMaps(**found("llm", "mnist", 2).values).promise(schema, budget).charges
    assert (maps[0].rate, maps[0].steps) == pytest.approx((500 / 60000, 2400))
    assert maps[0].dimension == 30 * 10 * (300 + 1)
    aggregates = Dpaf(**found("dpaf", "mnist", 1).values).promise(schema, budget).charges
    assert {c.rate for c in aggregates} == {24 / 60000, 8 * 24 / 60000, 1.0}  # 1: the counts
    whole = [c.steps * (c.rate / c.noise_multiplier) ** 2 for c in aggregates[1:]]
    assert [w / sum(whole) for w in whole] == pytest.approx([0.021, 0.958, 0.021], abs=1e-3)
    schema, _ = schema_of("cifar10:train")
    # VGG19 of another file, which needs no torchvision.
    vgg19 = {**found("mepf", "cifar10", 1).values, "encoder": "vgg19"}
    perceptual = Mepf(**vgg19).promise(schema, budget).charges
    assert [c.dimension for c in perceptual] == [10 * (2 * 303_104 + 1), 2 * 2048 + 1]
    schema, _ = schema_of("fashion-mnist:train")
    taps = {**found("mepf", "fashion-mnist", 1).values, "size": 32}
    for encoder, features in (("resnet18", 47_104), ("resnet18-cifar10", 557_056)):
        (release,) = Mepf(**{**taps, "encoder": encoder}).promise(schema, budget).charges
        assert release.dimension == 10 * (2 * features + 1)


def run(*words: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    return result.stdout, result.stderr


def test_the_command_line_shows_presets_with_their_sources() -> None:
    text, _ = run("methods", "merf", "--preset", "paper")
    assert "S3:1330" in text and "S3:1784" in text and "Missing: undersample" in text
    text, _ = run("methods", "mepf", "--preset", "fast:cifar10")
    assert "two cores (paper: 200000)" in text and "mnist" not in text.partition(":")[0]
    (told,) = json.loads(run("methods", "hp", "--preset", "paper:adult-discrete", "--json")[0])
    rows = [s for s in told["settings"] if s["name"] == "product_order"]
    assert [(s["value"], s["when"], s["source"]) for s in rows] == [
        (10, "ε = 0.3", "S3:2754"),
        (5, "ε = 0.1", "S3:2755"),
    ]
    result = CliRunner().invoke(app, ["methods", "--preset", "paper"])
    assert result.exit_code == 2 and "name it" in result.stderr
    page, _ = run("methods", "--markdown")
    assert "Preset `paper` for `mnist`, `fashion-mnist`" in page


def test_set_wins_over_a_preset_and_a_fit_keeps_the_settings(tmp_path: Any) -> None:
    budget = ("--epsilon", "2", "--delta", "1e-5", "--quiet")
    small = ("features=64", "steps=4", "hidden=16", "block=16", "batch=20")
    sets = [word for pair in small for word in ("--set", pair)]
    out = tmp_path / "run"
    _, said = run(
        "fit", "merf", "--data", "digits:train", "--preset", "paper:mnist", *budget, *sets,
        "--out", str(out),
    )  # fmt: skip
    assert "lacks" not in said
    _, said = run("plan", "hp", "--data", "mnist:train", "--preset", "paper", *budget[:4])
    assert "Note: The preset paper of hp for mnist lacks the paper's product_share" in said
    settings = json.loads((out / "config.json").read_text())["settings"]
    assert (settings["features"], settings["steps"]) == (64, 4)
    assert (settings["length_scales"], settings["grain"], settings["network"]) == (
        "105",
        0.0,
        "conv",
    )
    result = CliRunner().invoke(
        app,
        [
            "fit",
            "merf",
            "--from-release",
            str(out),
            "--preset",
            "paper",
            "--out",
            str(tmp_path / "b"),
        ],
    )
    assert result.exit_code == 2 and "--preset has no place beside --from-release" in result.stderr
    text, _ = run("plan", "merf", "--data", "mnist:train", "--preset", "paper", *budget[:4])
    assert "100,010" in text
    assert len(load("digits:train")) > 0


def test_a_comparison_may_name_a_preset() -> None:
    given: dict[str, Any] = {"data": "mnist", "epsilons": [1.0, 10.0], "delta": 1e-5}
    methods = {"merf": {"preset": "paper", "steps": 5}, "ours": {"method": "merf"}}
    made = parse_config({**given, "methods": methods}).variants
    assert made["merf"].settings["length_scales"] == "105" and made["merf"].settings["steps"] == 5
    assert made["ours"].settings["length_scales"] is None
    by_epsilon = parse_config({**given, "methods": {"llm": {"preset": "paper"}}}).variants["llm"]
    assert (by_epsilon.at(1.0)["epochs"], by_epsilon.at(10.0)["epochs"]) == (20.0, 60.0)
    with pytest.raises(BadInput, match="no preset 'papre'"):
        parse_config({**given, "methods": {"merf": {"preset": "papre"}}})
    with pytest.raises(BadInput, match="preset must be a name"):
        parse_config({**given, "methods": {"merf": {"preset": 3}}})
