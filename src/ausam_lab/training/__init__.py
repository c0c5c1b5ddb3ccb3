"""One run, from its settings to its result: the loop, its folder, checkpoints, ranks and environment.

Nothing here knows of other runs: comparing is for ``experiments``.
"""
