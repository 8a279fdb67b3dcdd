"""The version of the code that trains a run."""

import os
import subprocess

from lockstep.record.summary import versions

_GIT_TIMEOUT_S = 5.0


def code_version(framework: str | None) -> dict[str, str]:
    """Versions of the packages, and `git_commit` of the working directory, if it is in a repository.

    The commit ends with `+changes` if the working tree differs from it.
    """
    found = versions(framework)
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    if commit:
        found["git_commit"] = commit + ("+changes" if changes else "")
    return found


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
