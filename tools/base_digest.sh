#!/bin/sh
# Writes requirements/base-image.txt: the base image of keylane's image with the digest that it has
# now, `NAME:TAG@sha256:...`. It needs a registry of images, and skopeo, crane or docker to ask it.
#   tools/base_digest.sh [NAME:TAG]
set -eu
tree=$(cd "$(dirname "$0")/.." && pwd)
image=${1:-python:3.11-slim-bookworm}
# The digest of the list of platforms, so that the file is right for x86 and ARM.
if command -v skopeo >/dev/null; then
    manifest=$(mktemp)
    trap 'rm -f "$manifest"' EXIT
    skopeo inspect --raw "docker://$image" >"$manifest"
    digest=$(skopeo manifest-digest "$manifest")
elif command -v crane >/dev/null; then
    digest=$(crane digest "$image")
elif docker buildx version >/dev/null 2>&1; then
    digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$image")
else
    echo "base_digest: skopeo, crane or docker with buildx is needed" >&2
    exit 1
fi
case "$digest" in
sha256:????????????????????????????????????????????????????????????????) ;;
*)
    echo "base_digest: no digest of $image: ${digest:-no answer}" >&2
    exit 1
    ;;
esac
printf '%s@%s\n' "$image" "$digest" >"$tree/requirements/base-image.txt"
cat "$tree/requirements/base-image.txt"
