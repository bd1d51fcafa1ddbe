"""All mutations, by area."""

from __future__ import annotations

from catalogue.engines import ENGINES
from catalogue.evidence import EVIDENCE
from catalogue.mutation import AREAS, Mutation
from catalogue.operating import OPERATING
from catalogue.policies import POLICIES
from catalogue.server import SERVER

MUTATIONS: tuple[Mutation, ...] = (*POLICIES, *SERVER, *OPERATING, *ENGINES, *EVIDENCE)

__all__ = ["AREAS", "MUTATIONS", "Mutation"]

_NAMES = [each.name for each in MUTATIONS]
assert len(set(_NAMES)) == len(_NAMES), "two mutations have the same name"
assert {each.area for each in MUTATIONS} == set(AREAS), "an unknown area, or one without mutations"
