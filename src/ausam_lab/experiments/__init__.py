"""Experiments with runs: comparisons, searches for settings, audits of labels, and measurements of minima.

``training`` handles a single run, and ``report`` the presentation of results.
"""
