"""One run, from its settings to its result: the loop, its folder, checkpoints, ranks and environment.

A module here sees one run: ``experiments`` compares several.
"""
