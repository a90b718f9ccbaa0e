"""The command `keylane`: a module for each of its words.

Called by the shell script and by `python -m keylane`; nothing else imports it.
"""
