"""Several runs: comparisons, the paper's tables, estimates of their cost, and measurements side by side.

A single run is for ``training``, and how results look is for ``report``.
"""
