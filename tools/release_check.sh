#!/usr/bin/env bash
# Install what is in dist/ as a user would, once from each file, and try it. With RELEASE=0.2.0, also refuse to release
# anything but that version, or with addresses that are placeholders.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD
for file in dist/*.tar.gz dist/*.whl; do
  clean=$(mktemp -d)
  trap 'rm -rf "$clean"' EXIT
  "${PYTHON:-python3}" -m venv "$clean/venv"
  "$clean/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt "$file"
  (cd "$clean" && env -u PYTHONPATH venv/bin/python "$here/tools/smoke.py")    # outside the sources: the installed package
  "$clean/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt "$file[lab]"
  (cd "$clean" && env -u PYTHONPATH venv/bin/ausam train --epochs 2 --out run >/dev/null && test -s run/result.json)
  echo "$file: installed, trained, and the command line runs"
  rm -rf "$clean"
done
if [ -n "${RELEASE:-}" ]; then
  ls "dist/ausam-$RELEASE.tar.gz" "dist/ausam-$RELEASE-py3-none-any.whl"
  if grep -n OWNER pyproject.toml; then
    echo "Set the project's addresses in pyproject.toml before a release." >&2
    exit 1
  fi
fi
