#!/bin/bash
# Makes the Python environment with stock PyTorch that the long tests use, once, outside of the
# checkout. Prints the path of its interpreter.
set -euo pipefail
torch=2.15.0
packages=(numpy==2.4.6 pytest==9.2.0 safetensors==0.8.0)

cache=${XDG_CACHE_HOME:-$HOME/.cache}/moraine
env=$cache/torch-$torch
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # two test binaries may ask at once
made="torch==$torch ${packages[*]}"
if [ "$(cat "$env/made" 2>/dev/null)" != "$made" ]; then
  rm -rf "$env"
  free=$(df --output=avail -B1 "$cache" | tail -1)
  if [ "$free" -lt 15000000000 ]; then
    echo "stock PyTorch needs 15 GB free in $cache" >&2
    exit 1
  fi
  python3 -m venv "$env" >&2
  pip=("$env/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir)
  # The build without CUDA is a fifth of the size, but few indexes have it.
  "${pip[@]}" "torch==$torch+cpu" "${packages[@]}" 2>/dev/null || "${pip[@]}" "torch==$torch" "${packages[@]}" >&2
  echo "$made" >"$env/made"
fi
echo "$env/bin/python"
