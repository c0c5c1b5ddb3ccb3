"""What is learnt: data sets, their tasks, labels, augmentation and loading, and the catalogue that names them.

Nothing here knows a network, an optimizer or a result; a source holds one data set and nothing that another could use.
"""
