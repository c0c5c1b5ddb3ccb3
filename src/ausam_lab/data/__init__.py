"""Learning problems: data sets, their tasks, labels, augmentation and loading, and the catalogue of names.

Nothing here depends on a network, an optimizer or a result. A module in ``sources`` covers one data set and
nothing that another could use.
"""
