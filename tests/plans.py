"""What a method would be charged at a given noise, for tests that look at the arithmetic of a plan."""

from __future__ import annotations

from sfumato.data import Schema
from sfumato.methods import Method
from sfumato.privacy import Budget, Plan
from sfumato.privacy.query import plan


def plan_of(method: Method, schema: Schema, noise: float) -> Plan:
    method.check(schema)
    return plan(method.queries(schema, Budget(epsilon=1.0, delta=1e-5)), noise)
