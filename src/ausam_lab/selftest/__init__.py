"""``ausam selftest``: does the library do on this device what it does on the CPU? Needs nothing but torch.

:mod:`checks` has a function per promise, :mod:`processes` what two processes do, :mod:`speed` the time of a step, and
:mod:`run` the table of what passed and failed.
"""
