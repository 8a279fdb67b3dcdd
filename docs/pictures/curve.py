"""Draw the learning curve of a run as an SVG, with the standard library alone.

python docs/pictures/curve.py runs/NAME docs/pictures/cartpole.svg [LAST_STEP]

The figure of the README is the first 60 000 steps of `lockstep train cartpole --ranks 2 --set log_every=2048
--set evaluate_every=4096 --set stop_when_solved=false`.
"""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 40, 44
TRAINING, EVALUATION, GRID, TEXT = "#4878a8", "#c8553d", "#dddddd", "#333333"


def points(path: Path) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """(step, mean return) of the training episodes of each log line, and of each evaluation."""
    metrics = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    evaluations = [json.loads(line) for line in (path / "evaluations.jsonl").read_text().splitlines()]
    training = [(m["step"], m["episode/return_mean"]) for m in metrics if "episode/return_mean" in m]
    return training, [(e["step"], sum(e["returns"]) / len(e["returns"])) for e in evaluations]


def svg(path: Path, last_step: float = float("inf")) -> str:
    """The whole picture, up to `last_step`."""
    training, evaluated = ([p for p in series if p[0] <= last_step] for series in points(path))
    summary = json.loads((path / "summary.json").read_text())
    steps = max(step for step, _ in training + evaluated)
    low = min(0.0, *(value for _, value in training + evaluated))
    high = 1.05 * max(0.0, *(value for _, value in training + evaluated))

    def x(step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * step / steps, 1)

    def y(value: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low), 1)

    title = f"{summary['task']}, {summary['algo']}, {summary['world_size']} ranks, seed {summary['seed']}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14" fill="{TEXT}">{title}</text>',
    ]
    for value in ticks(low, high):
        parts.append(f'<path d="M{LEFT} {y(value)}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4}" text-anchor="end" fill="{TEXT}">{value:g}</text>')
    for step in ticks(0, steps):
        label = f"{step / 1000:g}k" if step else "0"
        parts.append(f'<text x="{x(step)}" y="{HEIGHT - 24}" text-anchor="middle" fill="{TEXT}">{label}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle" fill="{TEXT}">environment steps</text>')
    line = " ".join(f"{x(step)},{y(value)}" for step, value in training)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{TRAINING}" stroke-width="1.5"/>')
    parts += [f'<circle cx="{x(step)}" cy="{y(value)}" r="3.5" fill="{EVALUATION}"/>' for step, value in evaluated]
    legend = WIDTH - RIGHT - 350
    parts.append(f'<path d="M{legend} 16h20" stroke="{TRAINING}" stroke-width="2"/>')
    parts.append(f'<text x="{legend + 26}" y="20" fill="{TEXT}">training episodes, mean</text>')
    parts.append(f'<circle cx="{legend + 190}" cy="16" r="3.5" fill="{EVALUATION}"/>')
    parts.append(f'<text x="{legend + 200}" y="20" fill="{TEXT}">evaluation, 100 episodes</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def ticks(low: float, high: float) -> list[float]:
    """Round numbers in [low, high], about five of them."""
    step = 10.0 ** len(str(int(high - low)))
    while (high - low) / step < 4:
        step /= 2 if str(step)[0] != "5" else 2.5
    first = int(low // step) + (low % step > 0)
    return [step * i for i in range(first, int(high // step) + 1)]


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(svg(Path(sys.argv[1]), *map(float, sys.argv[3:])))
