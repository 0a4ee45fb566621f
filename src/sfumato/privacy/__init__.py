"""The wall between private rows and everything else. See `docs/privacy.md`."""

from sfumato.privacy.accounting import Charge, Plan, calibrate, epsilon_of, epsilon_of_k
from sfumato.privacy.bounding import (
    BoundedSum,
    FeatureMap,
    OuterMap,
    OuterSum,
    RecordMap,
    balanced,
    decides,
    enforced_bound,
)
from sfumato.privacy.budget import Budget, Neighbours
from sfumato.privacy.dataset_ledger import DataSetLedger, LedgerRun, Reservation
from sfumato.privacy.gate import Gate, Paid, Series
from sfumato.privacy.gradients import GradientSum, enforced_gradient_bound, records
from sfumato.privacy.groups import GroupSum, ShardStates, ShardSum, enforced_group_bound
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.overlap import keyed_digest, refuse_overlap, refuse_trained_on, remember
from sfumato.privacy.query import Query, gradient_query
from sfumato.privacy.release import Release
from sfumato.privacy.statement import PrivacyStatement
from sfumato.privacy.store import RunStore
from sfumato.privacy.verification import second_epsilon
from sfumato.privacy.wall import PaidSteps, PrivateData, Step, charge_of

__all__ = [
    "BoundedSum",
    "Budget",
    "Charge",
    "DataSetLedger",
    "FeatureMap",
    "Gate",
    "GradientSum",
    "GroupSum",
    "Ledger",
    "LedgerRun",
    "Neighbours",
    "OuterMap",
    "OuterSum",
    "Paid",
    "PaidSteps",
    "Plan",
    "PrivacyStatement",
    "PrivateData",
    "Query",
    "RecordMap",
    "Release",
    "Reservation",
    "RunStore",
    "Series",
    "ShardStates",
    "ShardSum",
    "Step",
    "balanced",
    "calibrate",
    "charge_of",
    "decides",
    "enforced_bound",
    "enforced_gradient_bound",
    "enforced_group_bound",
    "epsilon_of",
    "epsilon_of_k",
    "gradient_query",
    "keyed_digest",
    "records",
    "refuse_overlap",
    "refuse_trained_on",
    "remember",
    "second_epsilon",
]
