#!/usr/bin/env bash
# Install Isaac Lab 3 with skrl, rl_games and rsl_rl on a CPU, without Isaac Sim: about 3 minutes and 3 GB.
# Usage: install.sh VENV      robots are written to VENV/assets
# Isaac Lab's own requirements are left out: they ask for CUDA builds of torch (8 GB) and Python 3.12.
set -euo pipefail
venv=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
free_kb=$(df --output=avail "$(dirname "$venv")" | tail -n 1)
if [ ! -d "$venv/assets" ] && [ "$free_kb" -lt 5000000 ]; then
    echo "$venv: Isaac Lab needs 5 GB while it is installed, and $((free_kb / 1000000)) GB are free" >&2
    exit 1
fi
python=${PYTHON:-python3}
"$python" -m venv "$venv" || # a system without the venv module's own pip has pip
    { "$python" -m venv --without-pip "$venv" && "$python" -m pip --python "$venv/bin/python" install pip; }
pip=("$venv/bin/pip" install --disable-pip-version-check --quiet)
"${pip[@]}" torch==2.13.0 warp-lang==1.17.0 mujoco==3.12.0 mujoco-warp==3.12.0 usd-exchange==3.0.1 \
    newton-usd-schemas==0.6.0 gymnasium==1.4.0 hydra-core prettytable trimesh scipy pillow psutil filelock lazy_loader einops rich
"${pip[@]}" --no-deps newton==1.6.1
"${pip[@]}" --no-deps --ignore-requires-python isaaclab==3.0.0
"${pip[@]}" torch==2.13.0 skrl==2.1.1 rl-games==1.6.5 rsl-rl-lib==5.5.1 gym==0.23.1 tqdm h5py \
    jax==0.10.2 flax optax pytest tensorboard
"${pip[@]}" torch==2.13.0 --no-build-isolation setuptools
"${pip[@]}" --no-build-isolation -e "$root"
"$venv/bin/python" "$root/tests/isaac/make_assets.py" "$venv/assets"
