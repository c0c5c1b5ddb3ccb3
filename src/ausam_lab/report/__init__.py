"""How results are reported: statistics, summary, charts, pages and tables.

Everything here is a function of records. Nothing here trains, or reads the folder of a run itself.
"""
