"""Who works on which key ranges: pure functions, the same in the proxy, the CLI and a program."""
