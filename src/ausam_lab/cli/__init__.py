"""The command line: flags, commands, progress, listings and exit codes.

Nothing else imports it, and it computes nothing itself.
"""
