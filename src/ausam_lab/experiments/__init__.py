"""Groups of runs: comparisons, the paper's tables, estimates of their cost, and side-by-side measurements.

``training`` handles a single run, and ``report`` the presentation of results.
"""
