#!/bin/sh
# Everything that an image holds: `tools/image_build.sh [FOLDER]` installs keylane from the tree
# around it into FOLDER (/opt/keylane), with its kernels compiled. Dockerfile runs it; so does
# tests/integration/test_chart.py without Docker. It needs a Python of 3.11 or newer.
# What is fetched has the sums of requirements/lock-build.txt and lock-image.txt, whatever index pip
# is set to, and is a wheel: nothing of another's is built, and so nothing is fetched to build it.
# KEYLANE_LIBRARIES: a site-packages folder that has all dependencies and setuptools, so that none
# are fetched (for tests).
set -eu
tree=$(cd "$(dirname "$0")/.." && pwd)
KEYLANE_HOME=${1:-${KEYLANE_HOME:-/opt/keylane}}
. "$tree/tools/image_env.sh"
mkdir -p "$KEYLANE_HOME/bin"

# A copy, so that setuptools leaves nothing in the tree, which may be read-only.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
(cd "$tree" && tar -cf - pyproject.toml setup.py README.md LICENSE NOTICE keylane proxy assignor cache \
    $(for part in client pipeline; do [ -d "$part" ] && echo "$part"; done)) | tar -xf - -C "$copy"

"${PYTHON:-python3}" -m venv "$KEYLANE_HOME/venv"
python=$KEYLANE_HOME/venv/bin/python
pip() { "$python" -m pip --disable-pip-version-check "$@"; }
if [ -n "${KEYLANE_LIBRARIES:-}" ]; then
    echo "$KEYLANE_LIBRARIES" >"$("$python" -c 'import site; print(site.getsitepackages()[0])')/libraries.pth"
    # Its setuptools comes before the one that venv has put in.
    export PYTHONPATH="$KEYLANE_LIBRARIES"
else
    for lock in build image; do
        pip install --no-cache-dir --quiet --require-hashes --no-deps --only-binary :all: --no-compile \
            -r "$tree/requirements/lock-$lock.txt"
    done
fi
# By way of a wheel: what is installed from a folder keeps the folder's name, another one each time.
pip wheel --no-cache-dir --quiet --no-deps --no-build-isolation --wheel-dir "$copy/wheel" "$copy"
pip install --no-cache-dir --quiet --no-deps --no-index --find-links "$copy/wheel" --no-compile \
    --ignore-installed keylane
unset PYTHONPATH
pip check >/dev/null || { pip check; exit 1; }

# What it is made of, and under which licences.
cp "$tree/LICENSE" "$tree/NOTICE" "$tree/requirements/lock-image.txt" "$KEYLANE_HOME/"
"$python" "$tree/tools/image_sbom.py" "$tree/requirements/sbom-image.cdx.json" \
    "$KEYLANE_HOME/sbom.cdx.json" "${KEYLANE_LIBRARIES:-whole}"
cp "$tree/tools/image_env.sh" "$KEYLANE_HOME/bin/env.sh"
cp "$tree/tools/image_run.sh" "$KEYLANE_HOME/bin/keylane"
chmod 755 "$KEYLANE_HOME/bin/keylane"

# Outside the tree, so that what was installed is what is compiled.
cd "$KEYLANE_HOME"
NUMBA_CACHE_DIR="$KEYLANE_HOME/kernels" "$python" -c \
    'from keylane.kernel.warmup import warm_up; warm_up()'
# Nothing is installed later.
"$python" -m pip uninstall --yes --quiet pip setuptools 2>/dev/null || true
# By the sums of the sources, not by their times, so that two builds are the same bytes. Not what a
# node never imports: tests, and numba, whose work is done.
find "$KEYLANE_HOME/venv/lib" -name __pycache__ -prune -exec rm -rf {} +
PYTHONHASHSEED=0 "$python" -m compileall -q --invalidation-mode unchecked-hash \
    -x '/(tests|numba)/' "$KEYLANE_HOME/venv/lib" || true  # data files that look like code
