#!/usr/bin/env bash
# From a log of decisions to one file that scores actions without Lockstep: record, prepare, learn, evaluate, export, score.
# The log is that of a policy with 3 of 10 actions at random. With a log of your own, start at `prepare`.
# Needs the extras torch, offline and export.
#
#   examples/log_to_onnx.sh FOLDER
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:?name a folder for the log, the data and the policy}
[ ! -e "$folder/runs/behavior" ] || { echo "$folder holds runs/behavior of an earlier start; name another folder" >&2; exit 2; }
mkdir -p "$folder" && cd "$folder"

lockstep train lockstep/Corridor-v0 --run-dir runs/behavior --set total_steps="${STEPS:-20000}"
lockstep offline record runs/behavior --epsilon 0.3 --out log.jsonl.zst --episodes "${EPISODES:-500}"
lockstep offline record runs/behavior --epsilon 0.3 --out eval.jsonl.zst --episodes "${EPISODES:-300}" --seed 1
lockstep offline prepare log.jsonl.zst --out data/
lockstep offline prepare eval.jsonl.zst --out eval/ --like data/
lockstep offline train data/ --ranks 2 --run-dir runs/logged --set epochs="${EPOCHS:-100}"
lockstep offline evaluate runs/logged --data eval/
lockstep export runs/logged --format onnx
python "$here/score_actions.py" runs/logged/policy.onnx '{"4": 1}'
