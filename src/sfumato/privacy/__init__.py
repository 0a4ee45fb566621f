"""The wall between private rows and everything else. See `docs/privacy.md`."""

from sfumato.privacy.accounting import Charge, Plan, calibrate, epsilon_of
from sfumato.privacy.bounding import BoundedSum, FeatureMap, enforced_bound
from sfumato.privacy.budget import Budget, Neighbours
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.release import Release, ReleaseStore
from sfumato.privacy.statement import PrivacyStatement
from sfumato.privacy.wall import PrivateData, Step, charge_of

__all__ = [
    "BoundedSum",
    "Budget",
    "Charge",
    "FeatureMap",
    "Ledger",
    "Neighbours",
    "Plan",
    "PrivacyStatement",
    "PrivateData",
    "Release",
    "ReleaseStore",
    "Step",
    "calibrate",
    "charge_of",
    "enforced_bound",
    "epsilon_of",
]
