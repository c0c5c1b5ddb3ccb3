"""One run, from its settings to its result: the loop, its folder, checkpoints, ranks, and what it ran on.

Nothing here knows a second run: comparing is for ``experiments``.
"""
