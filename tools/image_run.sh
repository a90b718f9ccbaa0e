#!/bin/sh
# Entry point of an image: keylane with what image_build.sh made.
# numba asks for a cache folder that it may write to, even where it only reads, and the root file
# system is read-only: the compiled kernels (a few MiB) are copied to the temporary folder.
set -eu
umask 077
KEYLANE_HOME=${KEYLANE_HOME:-$(cd "$(dirname "$0")/.." && pwd)}
. "$KEYLANE_HOME/bin/env.sh"
# In a container the process is number 1, so a restart takes the folder of the one before.
NUMBA_CACHE_DIR=${TMPDIR:-/tmp}/keylane-kernels-$$
# Never what somebody else, or an earlier version, has left there.
rm -rf "$NUMBA_CACHE_DIR"
cp -R "$KEYLANE_HOME/kernels" "$NUMBA_CACHE_DIR"
export NUMBA_CACHE_DIR
# Modules come from the environment, never from the folder that this is started in; nor do those of
# workers.
export PYTHONSAFEPATH=1
exec "$KEYLANE_HOME/venv/bin/python" -P -m keylane "$@"
