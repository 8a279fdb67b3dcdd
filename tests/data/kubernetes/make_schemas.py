"""Write `published.json` anew from the packages that publish the models of these objects.

    python -m venv /tmp/models && /tmp/models/bin/pip install kubeflow-trainer-api==2.3.0
    /tmp/models/bin/pip download --no-deps -d /tmp/models kubeflow-training==1.9.4
    /tmp/models/bin/python tests/data/kubernetes/make_schemas.py /tmp/models/kubeflow_training-*.whl

Descriptions, the status of objects and definitions that nothing refers to are left out. Unknown fields are refused, as
`kubectl apply` refuses them; the models themselves would drop them.
"""

import ast
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

from kubeflow_trainer_api import models
from pydantic.json_schema import models_json_schema

ROOTS = {
    "Service": models.IoK8sApiCoreV1Service,
    "Job": models.IoK8sApiBatchV1Job,
    "JobSet": models.JobsetV1alpha2JobSet,
    "TrainJob": models.TrainerV1alpha1TrainJob,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
}
QUANTITY = "IoK8sApimachineryPkgApiResourceQuantity"
INT_OR_STRING = "IoK8sApimachineryPkgUtilIntstrIntOrString"
POD_TEMPLATE = "IoK8sApiCoreV1PodTemplateSpec"
OTHER_NAMES = {  # of the same definitions in kubeflow-training
    "K8sIoApimachineryPkgApiResourceQuantity": QUANTITY,
    "Quantity": QUANTITY,
    "V1LabelSelector": "IoK8sApimachineryPkgApisMetaV1LabelSelector",
    "V1ObjectMeta": "IoK8sApimachineryPkgApisMetaV1ObjectMeta",
    "V1PodTemplateSpec": POD_TEMPLATE,
}
NOTES = ("description", "title", "default")


def published() -> dict[str, Any]:
    """The definitions of the Kubeflow Trainer's models, which include those of Kubernetes and JobSet."""
    _, schema = models_json_schema([(model, "validation") for model in ROOTS.values()], by_alias=True)
    definitions = {name: clean(body) for name, body in schema["$defs"].items()}
    definitions[QUANTITY] = {"type": ["string", "number"]}
    definitions[INT_OR_STRING] = {"type": ["string", "integer"]}
    return definitions


def clean(schema: Any) -> Any:
    """Without what pydantic adds: titles, and null for optional fields."""
    if isinstance(schema, list):
        return [clean(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) == 1:
        return clean(kinds[0])
    result = {key: clean(value) for key, value in schema.items() if key not in NOTES or isinstance(value, dict)}
    if isinstance(schema.get("properties"), dict):
        result["additionalProperties"] = False
        if "$ref" in result["properties"].get("status", {}):  # of the object, and no string
            del result["properties"]["status"]
    return result


def pytorchjob(wheel: Path) -> dict[str, Any]:
    """The definitions of a PyTorchJob, from the source of its models."""
    found: dict[str, Any] = {}
    with zipfile.ZipFile(wheel) as archive:
        for path in archive.namelist():
            if re.fullmatch(r"kubeflow/training/models/kubeflow_org_v1_.*\.py", path):
                (model,) = (n for n in ast.parse(archive.read(path)).body if isinstance(n, ast.ClassDef))
                tables = {
                    node.targets[0].id: ast.literal_eval(node.value)
                    for node in model.body
                    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
                }
                types, names = tables["openapi_types"], tables["attribute_map"]
                fields = {names[key]: field(kind) for key, kind in types.items() if key != "status"}
                found[model.name] = {"type": "object", "properties": fields, "additionalProperties": False}
    return found


def field(kind: str) -> dict[str, Any]:
    """The schema of a field, from the name of its type in the models."""
    if match := re.fullmatch(r"dict\(str, (.+)\)", kind):
        return {"type": "object", "additionalProperties": field(match[1])}
    if match := re.fullmatch(r"list\[(.+)\]", kind):
        return {"type": "array", "items": field(match[1])}
    plain = {"str": "string", "int": "integer", "bool": "boolean", "object": "object", "datetime": "string"}
    if kind in plain:
        return {"type": plain[kind]}
    return {"$ref": f"#/$defs/{OTHER_NAMES.get(kind, kind)}"}


def reachable(definitions: dict[str, Any], roots: list[str]) -> dict[str, Any]:
    """The definitions that the roots need."""
    found: dict[str, Any] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = definitions.get(name, {})  # of other packages: anything
            waiting += re.findall(r'"#/\$defs/(\w+)"', json.dumps(found[name]))
    return dict(sorted(found.items()))


def main(wheel: Path) -> None:
    """Write the file: a line per definition."""
    roots = {kind: model.__name__ for kind, model in ROOTS.items()} | {"PyTorchJob": "KubeflowOrgV1PyTorchJob"}
    definitions = reachable(published() | pytorchjob(wheel), [*roots.values(), POD_TEMPLATE])
    lines = ",\n".join(f'"{name}":{json.dumps(body, separators=(",", ":"))}' for name, body in definitions.items())
    text = f'{{"kinds":{json.dumps(roots)},\n"$defs":{{\n{lines}\n}}}}\n'
    Path(__file__).with_name("published.json").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
