"""What a metric is called in plain words, how its family is read, and its badge. Public: it knows names, no data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sfumato.published import BADGE

CLASSIFIERS = {
    "logreg": "logistic regression",
    "mlp": "perceptron",
    "cnn": "convolutional network",
    "resnet9": "residual network",
    "rf": "random forest",
    "gnb": "naive Bayes, Gaussian",
    "bnb": "naive Bayes, Bernoulli",
    "svc": "linear support vectors",
    "lda": "linear discriminant analysis",
    "tree": "decision tree",
    "adaboost": "AdaBoost",
    "bagging": "bagged trees",
    "gbm": "gradient boosting",
    "xgb": "XGBoost",
    "mean12": "mean of the twelve classifiers",
}
_TITLES = {
    "curve.effective": "worth so many real records",
    "fid": "Fréchet distance (FID)",
    "kid": "kernel distance (KID)",
    "memorisation.share": "suspiciously near to a training record",
    "memorisation.p": "p-value: nearer than test records",
    "memorisation.nearer": "nearer to training than to test records",
    "prd.f8": "recall (F8)",
    "prd.f1-8": "precision (F1/8)",
    "ndb": "bins that differ (NDB)",
    "marginals.3way": "three columns at a time",
    "marginals.4way": "four columns at a time",
    "nll": "negative log-likelihood",
    "modes.covered": "Gaussians covered",
    "diversity.lpips": "synthetic images",
    "diversity.lpips-real": "real images, to compare with",
}


@dataclass(frozen=True)
class Family:
    """The metrics whose names begin alike. `unit`: "%" (a share, told in percent), "share" (from 0 to 1) or "" (any number)."""

    title: str
    reading: str
    unit: str = ""


_TRAINED = (
    "Each classifier is trained on synthetic records only and scored on real ones; more is better."
)
FAMILIES = {
    "accuracy": Family("Accuracy", _TRAINED, "%"),
    "roc": Family("Area under the ROC curve", _TRAINED, "share"),
    "prc": Family("Average precision", _TRAINED, "share"),
    "f1": Family("F1 score", _TRAINED, "share"),
    "roc-hard": Family("Area under the ROC curve, hard decisions", _TRAINED, "share"),
    "prc-hard": Family("Average precision, hard decisions", _TRAINED, "share"),
    "curve": Family(
        "Accuracy by the number of records",
        "A logistic regression trained on so many synthetic records and scored on real ones; and how many real records "
        "would teach it as much.",
        "%",
    ),
    "fid": Family("Distance of the images", "Between Inception features; less is better."),
    "kid": Family("Distance of the images", "Between Inception features; less is better."),
    "prdc": Family(
        "Fidelity and diversity",
        "Neighbourhoods in Inception features. Precision and density: synthetic images look real; recall and coverage: "
        "the variety of the real ones is there. More is better; density may exceed 1.",
        "share",
    ),
    "prdc-pixels": Family(
        "Fidelity and diversity, in pixels",
        "Neighbourhoods of pixels. Precision and density: synthetic images look real; recall and coverage: the variety of "
        "the real ones is there. More is better; density may exceed 1.",
        "share",
    ),
    "memorisation": Family(
        "Signs of memorised records",
        "Are synthetic records nearer to the training records than chance has it? Expected: 0.01 suspiciously near, 0.5 nearer "
        "to training than to test records. Passing is no proof of privacy.",
        "share",
    ),
    "prd": Family("Precision and recall of distributions", "More is better.", "share"),
    "ndb": Family(
        "Shares of similar images", "Less is better; 0.05 is expected of equal sets.", "share"
    ),
    "marginals": Family(
        "Distance of marginals", "Total variation, from 0 to 1; less is better.", "share"
    ),
    "nll": Family("Likelihood under the exact density", "Less is better."),
    "modes": Family("Modes", "Share of the 25 Gaussians; more is better.", "share"),
    "diversity": Family(
        "Diversity within a class", "LPIPS distance; good is as much as the real images have."
    ),
}
_OTHER = Family("Other measurements", "")


def family_of(name: str) -> Family:
    return FAMILIES.get(name.partition(".")[0], _OTHER)


def title_of(name: str) -> str:
    """In plain words under the family's heading; an unknown metric keeps its name."""
    if name in _TITLES:
        return _TITLES[name]
    family, _, member = name.partition(".")
    if family == "curve" and member.isdigit():
        return f"{int(member):,} records"
    if family in ("prdc", "prdc-pixels"):
        return member
    return CLASSIFIERS.get(member, name) if family in FAMILIES else name


def badge_of(metric: Mapping[str, Any]) -> str:
    """What stands beside a metric's number wherever that is shown; empty where no real record was read.

    Files of earlier versions have no badge; what does not say that it read synthetic data only gets one.
    """
    return "" if str(metric["source"]).startswith("synthetic data only") else BADGE
