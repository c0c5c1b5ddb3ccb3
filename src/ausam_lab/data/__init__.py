"""Learning problems: data sets, their tasks, labels, augmentation and loading, and the catalogue of names.

Nothing here builds a network or an optimizer. ``sources`` reads the published data sets.
"""
