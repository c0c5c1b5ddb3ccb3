"""Measure the flatness of a run, or of all runs of a comparison, from the weights that they have kept.

The measurements themselves are in :mod:`ausam.diagnostics`, the pages in :mod:`ausam_lab.report.pages`.
"""
