"""A weighted mix of models, for traces that do not name the model of a job.

The model of a job depends only on the seed and on the index of the job. So the same trace under the same seed
always trains the same models, whatever else changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from berth.arrays import Int64Array
from berth.errors import InputError, UnknownNameError, nearest
from berth.workload.streams import uniforms
from berth.workload.weights import WeightedChoice, parse_weights

# A model's sensitivity to distance grows with its bytes over its compute time. `sensitive` and `insensitive`
# take the two ends of that order, `balanced` some of each family.
_NAMED = {
    "balanced": "resnet50=2,vgg16,inception3,mobilenetv3,vit-b16,bert-base=2,bert-large,gpt2,transformer-xl,"
    "deepspeech2,dlrm,graphsage",
    "sensitive": "vgg16=2,vgg19,bert-large=2,gpt2-medium,transformer-xl=2,vit-l16,dlrm",
    "insensitive": "resnet50=2,inception3,mobilenetv3,cyclegan,deepspeech2,graphsage",
    "vision": "alexnet,vgg16,resnet50=3,resnet152,inception3,mobilenetv3,vit-b16=2",
    "language": "bert-base=3,bert-large=2,gpt2=2,gpt2-medium,transformer,transformer-xl,lstm",
}
MIXES = {name: parse_weights(text, "mix") for name, text in _NAMED.items()}


@dataclass(frozen=True, slots=True)
class Mix:
    """Models and their shares."""

    text: str  # as given
    weighted: WeightedChoice

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models."""
        return self.weighted.choices

    def assign(self, jobs: int, seed: int) -> Int64Array:
        """Return the model of each of `jobs` jobs, as an index into `models`."""
        return self.weighted.pick(uniforms(seed, "models", jobs))


def load_mix(text: str) -> Mix:
    """Return a mix by name, or written out: `vgg16=2,resnet50=1`, or one model. Models may be YAML files."""
    from berth.workload.profiles import load_profile

    if text.strip().lower() in MIXES:
        return Mix(text.strip().lower(), WeightedChoice.of(MIXES[text.strip().lower()]))
    written = parse_weights(text, "mix")
    try:
        named = [_spelled(name, load_profile(name).name) for name in written]
    except UnknownNameError as error:
        near = nearest(text.strip(), MIXES) if "=" not in text else None
        error.hint = f"did you mean {near!r}?" if near else f"{error.hint}; mixes: {', '.join(MIXES)}"
        raise
    if twice := [name for name in named if named.count(name) > 1]:
        raise InputError(f"mix {text!r}: {twice[0]!r} is given twice", hint="add up its weights")
    return Mix(text, WeightedChoice.of(dict(zip(named, written.values(), strict=True))))


def _spelled(written: str, name: str) -> str:
    """An alias becomes the profile's name; a file stays the path that finds it again."""
    return written if "/" in written or written.endswith((".yaml", ".yml")) else name
