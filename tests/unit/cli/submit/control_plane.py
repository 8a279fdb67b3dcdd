"""Kubernetes' own API server and etcd on this machine: objects are validated and stored, and no pod runs.

The programs are on PATH, or in the folder KUBEBUILDER_ASSETS, where `setup-envtest` puts them.
"""

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from submitting import published_schemas

from lockstep.launch.rank_environment import free_port

PROGRAMS = ("etcd", "kube-apiserver", "kubectl", "openssl")
START_S = 120.0
OPERATORS = {
    "JobSet": ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    "TrainJob": ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
    "TrainingRuntime": ("trainer.kubeflow.org", "v1alpha1", "trainingruntimes"),
    "RayJob": ("ray.io", "v1", "rayjobs"),
    "PyTorchJob": ("kubeflow.org", "v1", "pytorchjobs"),
}


def found(program: str) -> str | None:
    """The path of a program, if it is installed."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("KUBEBUILDER_ASSETS", ""), os.environ["PATH"]]))


class ControlPlane:
    """A running API server, which the file `kubeconfig` describes.

    Args:
        folder: where both programs keep their files and logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.kubeconfig = folder, folder / "kubeconfig"
        self._running = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            self._start()
            stack.pop_all()

    def close(self) -> None:
        """End both programs, the API server first."""
        self._running.close()

    def kubectl(self, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run `kubectl`."""
        command = [found("kubectl"), "--kubeconfig", str(self.kubeconfig), *words]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)

    def read(self, *words: str) -> dict:
        """The JSON that `kubectl` prints."""
        done = self.kubectl(*words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def add_operators(self) -> None:
        """Create the custom resource definitions of all operators, from the published schemas."""
        for kind, (group, version, plural) in OPERATORS.items():
            names = {"kind": kind, "plural": plural, "singular": kind.lower()}
            schema = {"openAPIV3Schema": _structural(kind)}
            versions = [{"name": version, "served": True, "storage": True, "schema": schema}]
            spec = {"group": group, "names": names, "scope": "Namespaced", "versions": versions}
            made = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
            made |= {"metadata": {"name": f"{plural}.{group}"}, "spec": spec}
            done = self.kubectl("create", "-f", "-", text=json.dumps(made))
            assert done.returncode == 0, done.stderr
        for group, _, plural in OPERATORS.values():
            done = self.kubectl("wait", "--for=condition=Established", "--timeout=60s", f"crd/{plural}.{group}")
            assert done.returncode == 0, done.stderr

    def _start(self) -> None:
        etcd, port = f"http://127.0.0.1:{free_port()}", free_port()
        peers = f"http://127.0.0.1:{free_port()}"
        key = self.folder / "service_accounts.key"
        subprocess.run([found("openssl"), "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        (self.folder / "tokens.csv").write_text("secret,admin,admin,system:masters\n")
        self._launch("etcd", "--data-dir", f"{self.folder}/etcd", "--listen-client-urls", etcd,
            "--advertise-client-urls", etcd, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
            "--initial-cluster", f"default={peers}")  # fmt: skip
        self._launch("kube-apiserver", "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--secure-port",
            str(port), "--cert-dir", f"{self.folder}/certificates", "--token-auth-file", f"{self.folder}/tokens.csv",
            "--authorization-mode", "AlwaysAllow", "--disable-admission-plugins", "ServiceAccount",
            "--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", str(key),
            "--service-account-signing-key-file", str(key), "--service-cluster-ip-range", "10.0.0.0/24")  # fmt: skip
        cluster = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": "secret"}}],
        }
        self.kubeconfig.write_text(json.dumps(config))
        deadline = time.monotonic() + START_S
        while self.kubectl("get", "--raw", "/readyz").stdout != "ok" or self.kubectl("get", "ns", "default").returncode:
            assert time.monotonic() < deadline, (self.folder / "kube-apiserver.log").read_text()[-2000:]
            time.sleep(0.2)

    def _launch(self, name: str, *words: str) -> None:
        program = found(name)
        assert program is not None
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([program, *words], stdout=log, stderr=log, cwd=self.folder)
        self._running.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _structural(kind: str) -> dict:
    """The schema of a kind as custom resource definitions take it: without references."""
    names, definitions = published_schemas()

    def inlined(schema: dict) -> dict:
        if "$ref" in schema:
            return inlined(definitions[schema["$ref"].rpartition("/")[2]])
        if isinstance(schema.get("type"), list):  # a quantity, or a port by number or name
            return {"x-kubernetes-int-or-string": True}
        if not schema or schema == {"type": "object"}:
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        result = {key: value for key, value in schema.items() if key not in ("const", "additionalProperties", "enum")}
        if "enum" in schema or "const" in schema:
            result |= {"type": "string", "enum": schema.get("enum", [schema.get("const")])}
        if isinstance(schema.get("additionalProperties"), dict):
            result["additionalProperties"] = inlined(schema["additionalProperties"])
        if "items" in schema:
            result["items"] = inlined(schema["items"])
        if "properties" in schema:
            result["properties"] = {name: inlined(item) for name, item in schema["properties"].items()}
        return result

    schema = inlined(definitions[names[kind]])
    schema["properties"]["metadata"] = {"type": "object"}  # of the object itself, which the server knows
    return schema
