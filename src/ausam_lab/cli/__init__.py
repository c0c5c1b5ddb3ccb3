"""The command line: flags, commands, progress, listings and exit codes.

Only ``ausam.__main__`` imports it, and it computes nothing itself.
"""
