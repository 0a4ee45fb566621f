"""The words of a report in one sentence each, for a reader who has to sign it and has never heard them."""

from __future__ import annotations

GLOSSARY: dict[str, tuple[str, str]] = {
    "epsilon": (
        "ε (epsilon)",
        "How much any one participant can change what is published: every outcome becomes at most e^ε times as likely. "
        "Smaller is safer; at ε = 0.1 next to nothing is learnt about one, at ε = 10 hardly anything is promised.",
    ),
    "delta": (
        "δ (delta)",
        "The chance, over the noise, that the bound by ε fails. It should be far below 1 ÷ the number of participants.",
    ),
    "dp": (
        "differential privacy",
        "A promise about a computation, not about data: what comes out is nearly the same with and without any one participant.",
    ),
    "unit": (
        "unit of privacy",
        "Who counts as one participant: a record, or a person with all their records. The promise is for one unit; several "
        "together are protected less.",
    ),
    "relation": (
        "neighbours, relation",
        "In what way two data sets differ that must not be told apart: one unit is added or taken away, left out of every "
        "computation, or replaced by another.",
    ),
    "guess": (
        "best guess",
        "How often the best possible attacker, who knows everything but one unit, is right whether that unit was used: at most "
        "(e^ε + δ) ÷ (e^ε + 1). A coin is right half of the time.",
    ),
    "release": (
        "release",
        "A noisy sum over the private records that left the wall. All else is computed from releases and costs nothing more.",
    ),
    "bound": (
        "bound",
        "The most that one unit may add to a sum; longer contributions are cut to it.",
    ),
    "sensitivity": (
        "sensitivity",
        "How far one unit can move a sum under the relation; noise is scaled to it.",
    ),
    "noise": (
        "noise std",
        "The standard deviation of the Gaussian noise that was added to every number of a release.",
    ),
    "ledger": (
        "ledger",
        "The account of all runs on the same data: their costs are composed, and a run that would pass its limit is refused.",
    ),
    "verify": (
        "verify",
        "A check of the run folder that anyone can repeat without the data: files unchanged, and ε worked out again by a "
        "second route.",
    ),
    "audit": (
        "audit, lower bound",
        "An attack by ourselves: what it manages to tell apart proves that ε is at least so much. Above the claim it would "
        "prove an error; below it proves nothing.",
    ),
    "fingerprint": (
        "fingerprint",
        "The SHA-256 of a file that is released: whoever has the file can compute it, and a changed file has another one.",
    ),
    "recall": (
        "recall",
        "Of the real records of a class, the share that the classifier takes for that class.",
    ),
    "precision": (
        "precision",
        "Of the records that the classifier takes for a class, the share that is of that class.",
    ),
    "majority": (
        "commonest class",
        "The accuracy of giving every record the same answer, the one that is right most often.",
    ),
    "means": (
        "noisy class means",
        "The simplest private method: one noisy mean a class at the same ε. Synthetic records should teach more than it does.",
    ),
    "ceiling": (
        "trained on real records",
        "The accuracy of the same classifier when it learns from real records: about the most to hope for if they are as many as "
        "were fitted, less if they are few.",
    ),
    "interval": (
        "95 % interval",
        "How far the number of test records pins a measurement down; it does not include the chance in training.",
    ),
}
