"""The rows of a comparison by name, and what they stand for."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ausam import METHODS, POLICIES
from ausam_lab.data.catalogue import resolve
from ausam_lab.experiments.cells import pair_of, run_folder
from ausam_lab.names.expressions import brief
from ausam_lab.names.from_config import configured, method_and_policy, with_own_rho
from ausam_lab.names.pairs import PAIRS, Pair, pair


def test_the_names_of_the_table():
    config = resolve(epochs=30)
    for name, known in PAIRS.items():
        method_and_policy(configured(name, config), steps=480)
        assert pair(name) == pair(name.upper()) == replace(known, name=name)
    half = Pair("AUSAM-0.4 (half the epochs)", "SAM", "AUSampling(alpha=0.4)", epochs=0.5, name="ausam-0.4@0.5")
    assert pair("ausam-0.4@0.5") == half
    method, policy = method_and_policy(configured("ausam-0.4@0.5", config), steps=240)
    assert (method, policy) == (METHODS["SAM"](rho=0.2), POLICIES["AUSampling"](alpha=0.4, epochs=15))


@pytest.mark.parametrize(
    ("text", "label", "method", "policy"),
    [
        ("SAM + AUSampling(alpha=0.35)", "", "SAM", "AUSampling(alpha=0.35)"),
        ("SAM(0.1, m=16)+AUSampling(0.35)", "SAM(rho=0.1, m=16) + AUSampling(alpha=0.35)", "SAM(rho=0.1, m=16)", None),
        ("LookSAM( k=10 )", "LookSAM(k=10)", "LookSAM(k=10)", "Full"),
        ("ksam + classbalanced", "KSAM + ClassBalanced", "KSAM", "ClassBalanced"),
        ("sgd + Random(alpha=0.25)", "Plain + Random(alpha=0.25)", "Plain", "Random(alpha=0.25)"),
        ("looksam-5 + TopLoss", "LookSAM(k=5) + TopLoss", "LookSAM(k=5)", "TopLoss"),
        ("RST(p=0.3, schedule='piecewise')", "", "RST(p=0.3, schedule='piecewise')", "Full"),
        ("AESAM(inner=LookSAM(k=3))", "", "AESAM(inner=LookSAM(k=3))", "Full"),
        ("SAM + Trusted(alpha=1e-1)", "SAM + Trusted(alpha=0.1)", "SAM", "Trusted(alpha=0.1)"),
    ],
)
def test_a_method_and_a_policy_as_python_writes_them(text, label, method, policy):
    known = pair(text)
    assert known.name == text  # what was written
    assert known.label == (label or text)
    assert known.method == method
    assert policy is None or known.policy == policy
    method_and_policy(configured(text, resolve(epochs=30)), steps=480)
    folder = run_folder(Path(), known.name, 0).parent.name
    assert pair_of(folder) == known.name
    assert not set(folder) & set("/\\:'\"<>|?*")
    half = pair(f"{text}@0.5x0.25")
    assert (half.label, half.epochs, half.batch) == (f"{known.label} (half the epochs, batch × 0.25)", 0.5, 0.25)


def test_a_run_keeps_the_label_and_the_kind_of_its_row():
    config = resolve(epochs=30, base="adam")
    told = {name: configured(name, config) for name in ("sgd", "sam@0.5", "sam+trusted")}
    assert [run.label for run in told.values()] == ["Adam", "SAM (half the epochs)", "SAM+Trusted"]
    assert [run.kind for run in told.values()] == ["method", "baseline", "contender"]
    assert pair("absent:MySAM + Random").kind == pair("SAM + absent.py:My(alpha=1)").kind == "own"
    assert pair("sgd+random").kind == "baseline"
    assert pair("SAM + TopLoss").kind == "method"


@pytest.mark.parametrize("name", ["asam", "momentum-sam", "ASAM + AUSampling", "ae-sam", "sam"])
def test_rho_is_rho_whatever_the_method_is_called(name):
    """A hidden factor once made ``asam --rho 0.2`` a tenfold of ``--method ASAM --rho 0.2``."""
    method, _ = method_and_policy(configured(name, resolve(rho=0.2)), steps=1)
    assert getattr(method, "inner", method).rho == 0.2


def test_a_method_with_a_scale_of_its_own_does_not_take_the_rho_of_the_data():
    config = resolve()
    assert config.rho == 0.2
    own = {"asam": 0.5, "asam + Random": 0.5, "RST(inner=ASAM)": 0.5, "momentum-sam": 1.0}
    for name, rho in (own | {"sam": 0.2, "gsam": 0.2}).items():
        chosen = configured(name, config, rho_given=False)
        assert chosen.rho == rho
        assert with_own_rho(resolve(method=chosen.method)).rho == rho


@pytest.mark.parametrize("name", ["VSAM", "RST(inner=VSAM)"])
def test_what_a_paper_counts_in_epochs_is_so_for_an_inner_method_too(name):
    method, _ = method_and_policy(resolve(method=name, epochs=30), steps=480)
    assert getattr(method, "inner", method).warmup == 3 * 480 // 30


def test_a_row_trains_for_a_part_of_the_epochs_with_a_part_of_the_batch():
    config = resolve(epochs=30, batch_size=64)
    assert pair("sam@0.5x0.25") == Pair(
        "SAM (half the epochs, batch × 0.25)", "SAM", epochs=0.5, batch=0.25, name="sam@0.5x0.25"
    )
    one = configured("SAM+Random@.5X.5", config)
    assert (one.epochs, one.batch_size, one.lr, one.policy) == (15, 32, config.lr, "Random(alpha=0.5)")
    assert configured("sam@2", config).batch_size == 64
    assert configured("sam@0.01x0.001", config).batch_size == 1
    with pytest.raises(ValueError, match=r"batch is 0\.0"):
        pair("sam@0.5x0")
    for name in ("sam@0.5x", "sam@x0.5", "sam@0.5x0.5x0.5"):
        with pytest.raises(ValueError, match='There is no pair "sam@'):
            pair(name)


def test_a_pair_in_brief_shows_what_differs_from_the_defaults():
    config = resolve(epochs=30)
    shown = {name: list(map(brief, method_and_policy(configured(name, config), 480))) for name in PAIRS}
    assert shown["sgd"] == ["Plain()", "Full()"]
    assert shown["ausam-0.4"] == ["SAM(rho=0.2)", "AUSampling(alpha=0.4)"]
    assert shown["ae-looksam"] == ["AESAM(inner=LookSAM(rho=0.2))", "Full()"]
    assert shown["sam+info"] == ["SAM(rho=0.2)", "InfoBatch(prune=0.5, on='second')"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ausm-0.5", "Did you mean ausam-0.5?"),
        ("zzz", "Write a name of the table"),
        ("sam+nothing", 'no policy "nothing"'),
        ("nothing+random", 'no method "nothing"'),
        ("sam + OrderDP(alpha=0.5)", "OrderDP takes s=0.75, q=0.85."),
        ("SAM + AUSampling(0.5, alpha=0.5)", "multiple values for argument"),
        ("RST(0.5)", "inner is 0.5, which is not a method. RST takes inner="),
        ("sgd+ausampling", "never evaluates the loss at perturbed weights"),
        ("SAM(rho=open('x'))", 'no method "open"'),
        ("SAM(rho=0.1", "is not a method"),
    ],
)
def test_a_name_that_is_none_gets_the_remedy(name, message):
    with pytest.raises(ValueError) as error:
        method_and_policy(configured(name, resolve(epochs=30)), steps=1)
    assert message in str(error.value)


def test_a_policy_gets_the_training_labels():
    labels = torch.tensor([0, 1, 1])
    config = configured("SAM + ClassBalanced(alpha=0.25)", resolve())
    _, policy = method_and_policy(config, steps=1, labels=labels)
    assert torch.equal(policy.labels, labels)
    assert brief(policy) == "ClassBalanced(alpha=0.25)"
