"""Plans of members and key ranges: the same pure functions in the proxy, the CLI and a program."""
