"""What is said of results: records, statistics, summary, charts, page, tables and CSV.

Everything here is a function of records; nothing here trains, or reads the folder of a run by itself.
"""
