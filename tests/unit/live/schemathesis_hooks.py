"""Hooks of schemathesis: submissions that the small cluster of the test accepts, so that job links are followed."""

import schemathesis

_NAMES_OF_ANOTHER_CLUSTER = ("kind", "any_of", "model", "required", "preferred")


@schemathesis.hook
def before_call(ctx, case, **kwargs):
    """Rewrite a valid submission of the stateful phase: one device of any type, and a new job each time."""
    submits = case.operation.label == "POST /api/v1/jobs"
    if submits and case.meta.phase.name.value == "stateful" and case.meta.generation.mode.is_positive:
        spec = {
            name: value for name, value in case.body["spec"].items() if name not in _NAMES_OF_ANOTHER_CLUSTER
        }
        case.body = {"spec": spec | {"gpus": 1}}
