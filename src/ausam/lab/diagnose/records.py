"""The records of a diagnosis: frozen dataclasses of plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

from ausam.diagnostics import (
    Agreement,
    Eigenvalues,
    Group,
    Sharpness,
    Slice,
    StepGeometry,
    Surface,
    Trace,
)
from ausam.lab.config import Config
from ausam.lab.records.results import Environment
from ausam.paper.theory import AverageDLP, Theorem1Summary, Theorem2, Theorem3

VERSION = 3  # of the records and of the measurements; pieces with another version are measured again

# -- measured at one epoch; one file per record ------------------------------------------------------------------------


@dataclass(frozen=True)
class Lemma1At:
    """Lemma 1 after an epoch: per-sample figures in the order of the samples, and the run's own scores."""

    epoch: int
    norm: Agreement
    projection: Agreement
    cosine: float
    dlp: tuple[float, ...]  # divided by rho
    norms: tuple[float, ...]
    projections: tuple[float, ...]
    table: Agreement | None  # the run's scores against the norms, if its policy ranks by sharpness


@dataclass(frozen=True)
class Theorem1Of:
    """Theorem 1 for the samples that one policy keeps."""

    policy: str
    summary: Theorem1Summary


@dataclass(frozen=True)
class Theorem1At:
    """Theorem 1 after an epoch, over the mini-batches."""

    epoch: int
    policies: tuple[Theorem1Of, ...]


@dataclass(frozen=True)
class Theorem4Of:
    """The bias of one policy: means over mini-batches; ``*_holds`` is the fraction in which a bound holds."""

    policy: str
    exact: bool
    batches: int
    gradient_norm: float
    bias: float
    relative: float
    error: float  # standard error of ``relative``; 0 if exact
    cosine: float
    gap: float
    paper: float
    corrected: float
    paper_holds: float
    corrected_holds: float


@dataclass(frozen=True)
class Theorem4At:
    """Theorem 4 after an epoch."""

    epoch: int
    policies: tuple[Theorem4Of, ...]


@dataclass(frozen=True)
class GeometryAt:
    """The geometry of a step after an epoch: means over the mini-batches."""

    epoch: int
    step: StepGeometry


# -- the parts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lemma1Row:
    """Lemma 1 after an epoch; ``average`` covers the DLP measured at earlier epochs, if any."""

    epoch: int
    norm: Agreement
    projection: Agreement
    cosine: float
    table: Agreement | None
    average: AverageDLP | None


@dataclass(frozen=True)
class Point:
    """One sample: DLP / rho, gradient norm and projection."""

    dlp: float
    norm: float
    projection: float


@dataclass(frozen=True)
class Lemma1Part:
    """Lemma 1 over training, and individual samples at the end."""

    rows: tuple[Lemma1Row, ...]
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Theorem1Part:
    """Theorem 1 over training."""

    rows: tuple[Theorem1At, ...]


@dataclass(frozen=True)
class Theorem2Part:
    """Theorem 2 over the checkpoints of ``epochs``."""

    epochs: tuple[int, ...]
    found: Theorem2


@dataclass(frozen=True)
class Theorem3Part:
    """Theorem 3 for logistic regression on the samples of the run."""

    classes: str
    found: tuple[Theorem3, ...]
    counterexample: bool  # whether the stated bound fails in the counterexample


@dataclass(frozen=True)
class Theorem4Part:
    """Theorem 4 over training."""

    rows: tuple[Theorem4At, ...]


@dataclass(frozen=True)
class HessianPart:
    """Curvature at the last weights."""

    eigenvalues: Eigenvalues
    trace: Trace


@dataclass(frozen=True)
class SharpnessPart:
    """The rise in loss near the last weights: for all samples, for groups, and in the adaptive ball."""

    whole: Sharpness
    groups: Sharpness
    adaptive: Sharpness


@dataclass(frozen=True)
class Fit:
    """How well the last weights fit the training samples."""

    accuracy: float  # fraction of the samples that are given their label, right or wrong
    memorised: float | None  # the same of the samples with a wrong label; None if there are none


@dataclass(frozen=True)
class LandscapePart:
    """Slices of the loss at the last weights, and from earlier ones (``since``) to them."""

    line: Slice
    surface: Surface
    since: int
    between: Slice | None  # None without earlier weights


@dataclass(frozen=True)
class GeometryPart:
    """SAM's step over training."""

    rows: tuple[GeometryAt, ...]


@dataclass(frozen=True)
class SelectionPart:
    """Which samples were selected; gaps are counted in periods between saved epochs."""

    samples: int
    epochs: int
    period: int  # epochs between two saved tables; 0 if only the last table is known
    mean: float
    fewest: int
    most: int
    effective: float
    never: int
    worst_gap: int | None
    scored: bool  # whether only visits that gave the sample a score are counted
    groups: dict[str, tuple[Group, ...]]


# -- the whole ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """A sentence computed from the figures. ``holds`` tells whether a claim holds; None if nothing is claimed."""

    part: str
    text: str
    holds: bool | None = None


@dataclass(frozen=True)
class Left:
    """A part that was not measured, and why."""

    part: str
    why: str


@dataclass(frozen=True)
class Conditions:
    """The conditions under which the figures were measured."""

    pair: str
    parameters: int
    trained: int  # completed epochs
    epochs: tuple[int, ...]  # epochs with known weights
    samples: int
    batch_size: int
    rho: float
    rho_from: str
    config: Config
    environment: Environment


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of one run."""

    command: str
    created: str
    conditions: Conditions
    findings: tuple[Finding, ...]
    left: tuple[Left, ...]
    lemma1: Lemma1Part | None = None
    theorem1: Theorem1Part | None = None
    theorem2: Theorem2Part | None = None
    theorem3: Theorem3Part | None = None
    theorem4: Theorem4Part | None = None
    hessian: HessianPart | None = None
    sharpness: SharpnessPart | None = None
    landscape: LandscapePart | None = None
    geometry: GeometryPart | None = None
    selection: SelectionPart | None = None


@dataclass(frozen=True)
class FlatRun:
    """How flat the minimum of one run of a comparison is."""

    name: str
    label: str
    seed: int
    epoch: int
    test: float | None  # None until the run has ended
    fit: Fit
    eigenvalues: Eigenvalues
    trace: Trace
    whole: Sharpness
    groups: Sharpness
    adaptive: Sharpness
    line: Slice


@dataclass(frozen=True)
class Between:
    """The loss on the straight line from one run's weights to another's."""

    first: str
    second: str
    seed: int
    slice: Slice


@dataclass(frozen=True)
class FlatComparison:
    """The minima of a comparison, side by side."""

    command: str
    created: str
    title: str
    conditions: Conditions  # of the first run
    findings: tuple[Finding, ...]
    left: tuple[Left, ...]
    runs: tuple[FlatRun, ...]
    between: tuple[Between, ...]


NAMES = {Diagnosis: "diagnosis", FlatComparison: "flatness"}
