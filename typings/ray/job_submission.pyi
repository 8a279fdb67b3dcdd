from typing import Any

class JobSubmissionClient:
    def __init__(self, address: str | None = None) -> None: ...
    def submit_job(
        self,
        *,
        entrypoint: str,
        submission_id: str | None = None,
        runtime_env: dict[str, Any] | None = None,
        metadata: dict[str, str] | None = None,
        entrypoint_num_cpus: float | None = None,
    ) -> str: ...
