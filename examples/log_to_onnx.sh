#!/usr/bin/env bash
# From a log of decisions to one file that scores actions without Lockstep: record, prepare, learn, judge, export, score.
# Needs the extras torch, offline and export. With a log of your own, start at `prepare`.
#
#   examples/log_to_onnx.sh FOLDER
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:?name a folder for the log, the data and the policy}
[ ! -e "$folder/runs/logged" ] || { echo "$folder holds runs/logged of an earlier start; name another folder" >&2; exit 2; }
mkdir -p "$folder" && cd "$folder"

lockstep offline record CartPole-v1 --out log.jsonl.zst --episodes "${EPISODES:-100}"
lockstep offline record CartPole-v1 --out eval.jsonl.zst --episodes "${EPISODES:-50}" --seed 1
lockstep offline prepare log.jsonl.zst --out data/
lockstep offline prepare eval.jsonl.zst --out eval/ --like data/
lockstep offline train data/ --ranks 2 --run-dir runs/logged --set epochs="${EPOCHS:-20}"
lockstep offline evaluate runs/logged --data eval/
lockstep export runs/logged --format onnx
python "$here/score_actions.py" runs/logged/policy.onnx '{"0": 0.02, "1": -0.4, "2": 0.05, "3": 0.3}'
