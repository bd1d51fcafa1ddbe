"""The form of an app's profile: a row of tokens per stage, and the calls of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairserve.interactions.profiles.profile import MAX_STAGES
from fairserve.platform.console import forms
from fairserve.platform.tenancy.apps.schemas import ProfileBody, StageBody, StageOut

PREFIX = "profile."
TOKENS = tuple(StageBody.model_fields)
"""The tokens of a stage, in the order of the row."""
SPARE_ROWS = 2
"""Empty rows below the stages of a profile."""


def profile_of(form: Mapping[str, str]) -> ProfileBody | forms.Wrong:
    """Return the profile of a form without its empty rows, or the errors by field."""
    stages: list[StageBody] = []
    wrong: forms.Wrong = {}
    for number in range(1, MAX_STAGES + 1):
        prefix = f"{PREFIX}{number}."
        tokens = {name: forms.given(form.get(prefix + name)) for name in TOKENS}
        if not any(tokens.values()):
            continue
        stage = forms.read(StageBody, {name: text or "0" for name, text in tokens.items()}, prefix)
        if isinstance(stage, StageBody):
            stages.append(stage)
        else:  # an error of the whole stage is shown at its first field
            wrong |= {field or prefix + TOKENS[0]: text for field, text in stage.items()}
    if not stages and not wrong:
        wrong[f"{PREFIX}1.{TOKENS[0]}"] = f"The profile needs 1 to {MAX_STAGES} stages."
    if wrong:
        return wrong
    rest = {
        name: forms.given(form.get(PREFIX + name))
        for name in ("calls_per_interaction", "idle_timeout_s")
    }
    return forms.read(ProfileBody, {**rest, "stages": stages}, PREFIX)


def rows_of(
    stages: Sequence[StageBody | StageOut], given: Mapping[str, str]
) -> list[StageBody | StageOut | None]:
    """Return the stages and some empty rows, at least as many as a rejected form had."""
    numbers = (name.removeprefix(PREFIX).partition(".")[0] for name in given)
    filled = max((int(each) for each in numbers if each.isdecimal()), default=0)
    count = min(MAX_STAGES, max(len(stages) + SPARE_ROWS, min(filled, MAX_STAGES)))
    return [*stages, *([None] * (count - len(stages)))]
