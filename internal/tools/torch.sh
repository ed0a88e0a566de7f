#!/bin/bash
# Makes the Python environment with stock PyTorch that the long tests use, once, outside of the
# checkout. With `libraries` it has also those that use moraine.fsspec. Prints the path of its
# interpreter.
set -euo pipefail
torch=2.15.0
packages=(numpy==2.4.6 pytest==9.2.0 safetensors==0.8.0)
libraries=(fsspec==2026.9.0 pandas==3.1.1 pyarrow==26.0.1 datasets==5.2.0 webdataset==1.0.2 'ray[data]==2.60.0')

cache=${XDG_CACHE_HOME:-$HOME/.cache}/moraine
env=$cache/torch-$torch
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # two test binaries may ask at once

# need: WHAT needs BYTES free, GB in words.
need() {
  if [ "$(df --output=avail -B1 "$cache" | tail -1)" -lt "$2" ]; then
    echo "$1 $3 GB free in $cache" >&2
    exit 1
  fi
}
pip=("$env/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir)

made="torch==$torch ${packages[*]}"
if [ "$(cat "$env/made" 2>/dev/null)" != "$made" ]; then
  rm -rf "$env"
  need "stock PyTorch needs" 15000000000 15
  python3 -m venv "$env" >&2
  # The build without CUDA is a fifth of the size, but few indexes have it.
  "${pip[@]}" "torch==$torch+cpu" "${packages[@]}" 2>/dev/null || "${pip[@]}" "torch==$torch" "${packages[@]}" >&2
  echo "$made" >"$env/made"
fi
if [ "${1:-}" = libraries ] && [ "$(cat "$env/made-libraries" 2>/dev/null)" != "${libraries[*]}" ]; then
  need "pandas, datasets, webdataset and ray need" 3000000000 3
  # What is there stays as it is.
  "${pip[@]}" "${libraries[@]}" "${packages[@]}" "$("$env/bin/python" -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))')" >&2
  echo "${libraries[*]}" >"$env/made-libraries"
fi
echo "$env/bin/python"
