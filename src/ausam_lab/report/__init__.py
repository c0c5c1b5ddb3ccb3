"""How results are reported: records, statistics, summary, charts, page, tables and CSV.

Everything here is a function of records. Nothing here trains, or reads the folder of a run itself.
"""
