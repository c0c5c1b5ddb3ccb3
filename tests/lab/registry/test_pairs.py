"""The paper's names and what they stand for."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ausam import METHODS, POLICIES
from ausam_lab.data.catalogue import resolve
from ausam_lab.experiments.cells import pair_of, run_folder
from ausam_lab.registry.expressions import brief, construct
from ausam_lab.registry.from_config import configured, method_and_policy, with_own_rho
from ausam_lab.registry.pair_names import label_of
from ausam_lab.registry.pair_table import PAIRS, Pair
from ausam_lab.registry.pairs import pair


def test_names_are_pairs():
    config = resolve(epochs=30)
    for name in PAIRS:
        method_and_policy(configured(name, config), steps=480)
    for name, known in PAIRS.items():
        assert pair(name) == replace(known, name=name)
        if known.policy == "Full" and name != "sam":
            both = pair(f"{name}-0.3")
            assert (both.method, both.policy, both.epochs) == (known.method, "AUSampling(alpha=0.3)", 1.0)
            assert both.label == f"{known.label}-0.3"
    half = Pair("AUSAM-0.35@0.5", "SAM", "AUSampling(alpha=0.35)", epochs=0.5, name="ausam-0.35@0.5")
    assert pair("ausam-0.35@0.5") == half
    method, policy = method_and_policy(configured("ausam-0.4@0.5", config), steps=240)
    assert (method, policy) == (METHODS["SAM"](rho=0.2), POLICIES["AUSampling"](alpha=0.4, epochs=15))
    assert configured("sam@0.5", config).epochs == 15


@pytest.mark.parametrize("name", ["asam", "momentum-sam", "asam-0.5", "ae-sam", "sam"])
def test_rho_is_rho_whatever_the_method_is_called(name):
    """A hidden factor once made ``asam --rho 0.2`` a tenfold of ``--method ASAM --rho 0.2``."""
    config = resolve(rho=0.2)
    method, _ = method_and_policy(configured(name, config), steps=1)
    assert getattr(method, "inner", method).rho == 0.2


def test_a_method_with_a_scale_of_its_own_does_not_take_the_rho_of_the_data():
    config = resolve()
    assert config.rho == 0.2
    for name, rho in (("asam", 0.5), ("asam+random", 0.5), ("momentum-sam", 1.0), ("sam", 0.2), ("gsam-0.5", 0.2)):
        chosen = configured(name, config, rho_given=False)
        assert chosen.rho == rho
        assert with_own_rho(resolve(method=chosen.method)).rho == rho


@pytest.mark.parametrize(
    ("spellings", "name", "label"),
    [
        (["sam x AUSampling(alpha=0.5)", "SAM × ausampling", "Sam+AUSampling(alpha=.5)"], "ausam-0.5", "AUSAM-0.5"),
        (["sam x AUSampling(alpha=0.6,ema=0.5,trim=0.8)"], "ausam-trim-0.6", "AUSAM-trim-0.6"),
        (["sam+random-0.5", "sam x Random", "SAM x Random(alpha=0.5)"], "sam+random", "SAM+Random"),
        (["plain x random-0.3", "SGD+Random-.3"], "sgd+random-0.3", "SGD+Random-0.3"),
        (["ksam x Balanced", "k-sam+balanced-0.50"], "k-sam+balanced", "K-SAM+Balanced"),
        (["SAM(m=16)", "16-SAM x Full"], "16-sam", "16-SAM"),
        (["RST(p=0.3, schedule=piecewise) x AUSampling(alpha=0.5)"], "late-sam-0.3-0.5", "Late-SAM-0.3-0.5"),
        (["sam@.50X0.250", "sam x full@0.5x0.25"], "sam@0.5x0.25", "SAM@0.5x0.25"),
        (["LookSAM(k=5)"], "looksam-5", "LookSAM-5"),
        (["LookSAM( k=10 )", "looksam(k=10) x full"], "looksam(k=10)", "LookSAM(k=10)"),
    ],
)
def test_a_pair_has_one_name_and_one_label_however_it_is_written(spellings, name, label):
    assert {(pair(text).name, pair(text).label) for text in (*spellings, name)} == {(name, label)}
    assert len({pair(text) for text in (*spellings, name)}) == 1  # the same texts of method and policy, too


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("sam-0.5", "Write ausam-0.5."),
        ("SAM-.25@0.5", "Write ausam-0.25."),
        ("sam+ausampling-0.5", "Write ausam-0.5."),
        ("gsam+ausampling", "Write gsam-0.5."),
        ("ksam-0.3", "Write k-sam-0.3."),
        ("rst-0.5", 'Write "RST x AUSampling(alpha=0.5)".'),
    ],
)
def test_a_second_spelling_is_refused_with_the_first(name, remedy):
    with pytest.raises(ValueError, match="name") as error:
        pair(name)
    assert remedy in str(error.value)


def test_families_of_pairs():
    """Any part works, the exact name wins over METHOD-ALPHA, and selection composes with both."""
    config = resolve(epochs=30)
    late = {"schedule": "piecewise", "total_steps": 480}
    for name, label, expected in (
        ("late-sam-0.1", "Late-SAM-0.1", METHODS["RST"](METHODS["SAM"](rho=0.2), p=0.1, **late)),
        ("late-sam-0.35", "Late-SAM-0.35", METHODS["RST"](METHODS["SAM"](rho=0.2), p=0.35, **late)),
        ("sam-ascent-0.25", "SAM-ascent-0.25", METHODS["SAM"](rho=0.2, ascent=0.25)),
        ("SAM-ascent-.5", "SAM-ascent-0.5", METHODS["SAM"](rho=0.2, ascent=0.5)),
        ("1-sam", "1-SAM", METHODS["SAM"](rho=0.2, m=1)),
        ("s2-sam", "S2-SAM", METHODS["PreviousGradientSAM"](rho=0.2)),
    ):
        assert pair(name).label == label
        method, policy = method_and_policy(configured(name, config), steps=480)
        assert (method, policy) == (expected, POLICIES["Full"]())
    both = pair("late-sam-0.3+random-0.25")
    assert (both.label, both.name) == ("Late-SAM-0.3+Random-0.25", "late-sam-0.3+random-0.25")
    assert (both.method, both.policy) == ("RST(p=0.3, schedule='piecewise')", "Random(alpha=0.25)")
    for name in ("late-sam-0.1", "late-sam-.35", "sam-ascent-0.25", "16-sam"):
        known = pair(f"{name}-0.5")
        assert (known.method, known.policy) == (pair(name).method, "AUSampling(alpha=0.5)")
        method_and_policy(configured(f"{name}-0.5", config), steps=480)
    assert pair("vsam-0.5").label == "vSAM-0.5"
    for name in ("late-sam-0", "late-sam-0.0", "late-sam-1", "late-sam", "sam-ascent-2", "0-sam", "ausam-0.4-0.5"):
        with pytest.raises(ValueError, match=f'There is no pair "{name}". Did you mean .*See ausam list'):
            pair(name)


def test_a_control_trains_for_a_part_of_the_epochs_with_a_part_of_the_batch():
    config = resolve(epochs=30, batch_size=64)
    assert pair("sam@0.5x0.25") == Pair("SAM@0.5x0.25", "SAM", epochs=0.5, batch=0.25, name="sam@0.5x0.25")
    one = configured("SAM+Random@.5X.5", config)
    assert (one.epochs, one.batch_size, one.lr, one.policy) == (15, 32, config.lr, "Random(alpha=0.5)")
    assert configured("sam@2", config).batch_size == 64
    assert configured("sam@0.01x0.001", config).batch_size == 1
    with pytest.raises(ValueError, match="the number after x is a fraction of the batch size, above 0 and at most 10"):
        pair("sam@0.5x0")
    for name in ("sam@0.5x", "sam@x0.5", "sam@0.5x0.5x0.5"):
        with pytest.raises(ValueError, match=r'There is no pair "sam@.*NAME@FxB'):
            pair(name)


def test_a_pair_in_brief_shows_what_differs_from_the_defaults():
    config = resolve(epochs=30)
    shown = {name: " × ".join(map(brief, method_and_policy(configured(name, config), 480))) for name in PAIRS}
    assert shown["sgd"] == "Plain() × Full()"
    assert shown["ausam-0.4"] == "SAM(rho=0.2) × AUSampling(alpha=0.4)"
    assert shown["ausam-0.5"] == "SAM(rho=0.2) × AUSampling(alpha=0.5)"
    assert shown["ae-looksam"] == "AESAM(inner=LookSAM(rho=0.2)) × Full()"
    assert shown["sam+info"] == "SAM(rho=0.2) × InfoBatch(prune=0.5, on='second')"


@pytest.mark.parametrize(
    ("name", "label", "method", "policy"),
    [
        ("sam+random-0.25", "SAM+Random-0.25", "SAM", "Random(alpha=0.25)"),
        ("sam+balanced", "SAM+Balanced", "SAM", "ClassBalanced(alpha=0.5)"),
        ("SAM+Balanced-.25", "SAM+Balanced-0.25", "SAM", "ClassBalanced(alpha=0.25)"),
        ("gsam+repeated-0.3", "GSAM+Repeated-0.3", "GSAM", "Repeated(alpha=0.3)"),
        ("sgd+orderdp", "SGD+OrderDP", "Plain", "OrderDP"),
        ("looksam-5+toploss-0.3", "LookSAM-5+TopLoss-0.3", "LookSAM(k=5)", "TopLoss(alpha=0.3)"),
        ("ausam-trim-0.6", "AUSAM-trim-0.6", "SAM", "AUSampling(alpha=0.6, ema=0.5, trim=0.8)"),
        ("gsam+info", "GSAM+Info", "GSAM", "InfoBatch"),
        ("sam+info*", "SAM+Info*", "SAM", "InfoBatch(on='first')"),
        (
            "sam x AUSampling(alpha=0.5, ema=0.5)",
            "SAM × AUSampling(alpha=0.5, ema=0.5)",
            "SAM",
            "AUSampling(alpha=0.5, ema=0.5)",
        ),
        (
            "SAM x AUSampling(alpha=0.5, odds=proportional)",
            "SAM × AUSampling(alpha=0.5, odds='proportional')",
            "SAM",
            "AUSampling(alpha=0.5, odds='proportional')",
        ),
        (
            "LookSAM(k=10, rho=1e+1) × AUSampling(score='signed', unbiased=True, ema=None)",
            "LookSAM(rho=10.0, k=10) × AUSampling(ema=None, unbiased=True, score='signed')",
            "LookSAM(rho=10.0, k=10)",
            "AUSampling(ema=None, unbiased=True, score='signed')",
        ),
    ],
)
def test_pairs_by_rule(name, label, method, policy):
    known = pair(name)
    assert (known.label, known.method, known.policy) == (label, method, policy)
    assert pair(known.name) == known
    folder = run_folder(Path(), known.name, 0)
    assert pair_of(folder.parent.name) == known.name
    assert not set(folder.parent.name) & set("/\\:'\"<>|?*")
    method_and_policy(configured(name, resolve(epochs=30)), steps=480)
    half = pair(f"{name}@0.5x0.5")
    assert (half.label, half.epochs, half.batch) == (f"{label}@0.5x0.5", 0.5, 0.5)


def test_pairs_that_the_rule_does_not_allow():
    for name, message in (
        ("sam+orderdp-0.5", '"sam+orderdp-0.5": OrderDP has no alpha. It takes s=0.75, q=0.85.'),
        ("sam+nothing-0.5", 'There is no policy "nothing"'),
        ("nothing+random", 'There is no method "nothing"'),
        ("sam x AUSampling(beta=1)", "AUSampling has no argument beta"),
        ("sam x AUSampling(0.5)", "every argument needs its name"),
        ("sgd-0.5", "never evaluates the loss at perturbed weights"),
    ):
        with pytest.raises(ValueError) as error:
            method_and_policy(configured(name, resolve(epochs=30)), steps=1)
        assert message in str(error.value)


def test_a_policy_gets_the_training_labels():
    labels = torch.tensor([0, 1, 1])
    _, policy = method_and_policy(configured("sam+balanced-0.25", resolve()), steps=1, labels=labels)
    assert torch.equal(policy.labels, labels)
    assert brief(policy) == "ClassBalanced(alpha=0.25)"


FORMS = "late-sam-P, sam-ascent-P, M-sam, ausam-ALPHA, ausam-trim-ALPHA, METHOD-ALPHA, METHOD+POLICY-ALPHA"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "ausam",
            '"ausam" needs ALPHA, the fraction of each mini-batch to keep. Did you mean ausam-0.5? See ausam list.',
        ),
        ("AUSAM-trim", "Did you mean ausam-trim-0.5? See ausam list."),
        (
            "ausam-50",
            '"ausam-50": ALPHA is 50, but it must be in (0, 1]: the fraction of each mini-batch to keep, e.g. ',
        ),
        ("ausam-70", "e.g. ausam-0.7."),
        ("ausam-1.5", "ALPHA is 1.5, but it must be in (0, 1]"),
        ("gsam-0", "ALPHA is 0, but it must be in (0, 1]: the fraction of each mini-batch to keep, e.g. gsam-0.5."),
        ("sgd,sam", '"sgd,sam": names are separated by spaces, e.g. ausam compare sgd sam.'),
        ("ausam-0,5", "Did you mean ausam-0.5? See ausam list."),
        ("ausm-0.3", 'There is no pair "ausm-0.3". Did you mean ausam-0.3? See ausam list.'),
        ("late-sam", 'There is no pair "late-sam". Did you mean late-sam-0.1? See ausam list.'),
        ("looksam-10", 'There is no pair "looksam-10". Did you mean looksam-5? See ausam list.'),
        ("zzz", f'There is no pair "zzz". Write the name of a pair, {FORMS}, '),
        ("sam+nothing", "arguments such as AUSampling(alpha=0.5), or your own as module:Class. See ausam list."),
    ],
)
def test_a_name_that_is_nearly_one_gets_the_remedy(name, message):
    with pytest.raises(ValueError) as error:
        pair(name)
    assert message in str(error.value)


def test_the_reason_why_an_argument_is_refused_ends_with_one_full_stop():
    with pytest.raises(ValueError, match=r"has the wrong type: .*>= 0\.$"):
        construct("method", "SAM(rho='x')")


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"method": "sam"}, "SAM"),
        ({"policy": "ausampling"}, "AUSAM-0.5"),
        ({"policy": "ausampling", "alpha": 0.35, "ramp": 2, "rho": 0.7}, "AUSAM-0.35"),
        ({"policy": "ausampling(ema=0.5, trim=0.8)"}, "AUSAM-trim-0.5"),
        ({"method": "gsam", "policy": "ausampling(alpha=0.25)"}, "GSAM-0.25"),
        ({"method": "plain", "base": "adam"}, "Adam"),
        ({"method": "aesam(inner=looksam())"}, "AE-LookSAM"),
        ({"policy": "infobatch(on='second')"}, "SAM+Info"),
        ({"method": "sam(rho=0.3)"}, ""),
        ({"policy": "classbalanced"}, "SAM+Balanced"),
        ({"policy": "ausampling(ema=0.9)"}, ""),
        ({"policy": "ausampling", "alpha": 0.00001}, ""),
    ],
)
def test_the_label_of_a_run(settings, label):
    assert label_of(resolve(**settings)) == label
