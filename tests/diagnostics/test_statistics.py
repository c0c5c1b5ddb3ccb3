"""Correlations against scipy, and agreement by hand."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from ausam.diagnostics import agreement, pearson, spearman

values = st.lists(st.integers(-5, 5), min_size=3, max_size=30)  # few values: many ties


@given(values, st.integers(0, 2**31))
def test_correlations_are_scipys(a, seed):
    b = np.random.default_rng(seed).integers(-5, 5, len(a)) + 0.5 * np.array(a)
    if min(a) == max(a) or b.min() == b.max():
        assert np.isnan(pearson(a, b))
        assert np.isnan(spearman(a, b))
    else:
        assert pearson(a, b) == pytest.approx(scipy.stats.pearsonr(a, b).statistic, abs=1e-9)
        assert spearman(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic, abs=1e-9)


def test_agreement_by_hand():
    result = agreement([1.0, 2.0, float("nan"), 3.0], [2.0, 2.0, 1.0, 8.0])
    assert result.samples == 3
    assert result.relative_error == pytest.approx((1 + 0 + 5) / 12)
    assert result.ratio == pytest.approx(6 / 12)
    assert pearson([1e-200, 2e-200, 4e-200], [1.0, 2.0, 4.0]) == pytest.approx(1.0)
