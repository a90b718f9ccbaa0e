"""Write the locks of the jars that keylane runs, with the sum of each.

For another version of Kafka or of Spark's connector: change it where `LOCKS` has it from, and run
`make lock-jars`. All files are fetched anew into an empty folder, since a cache on this machine
proves nothing, and each is compared with the sum that the repository publishes beside it. That
shows a damaged file, not a false one: a run decides which sums are trusted from then on, so a
review looks at the change of the locks. The sum of a version that stands in a lock already may not
change: released versions never do.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from keylane.embedded.jar_lock import FILE_NAME, LockedJar, dump_lock, parse_lock
from keylane.embedded.resolve import KAFKA_VERSION, fetch_jar, open_maven
from keylane.errors import KafkaUnavailable
from keylane.pipeline.needs import CONNECTOR, WANTED

if TYPE_CHECKING:
    from jgo.maven import Artifact, MavenContext

ROOT: Final = Path(__file__).resolve().parents[1]
SPARK_VERSION: Final = "4.2.0"
"""Version of the connector: the newest of the pyspark versions that `spark` allows."""
PARALLEL_CONSUMER_VERSION: Final = "0.5.3.3"
JAVA_COMPILER_VERSION: Final = "3.46.0"
"""Eclipse's compiler, which needs Java 17 and no JDK: the packaged Java has no compiler."""
HADOOP_VERSION: Final = "3.5.0"
"""The version of Hadoop in the pyspark that the tests run."""
AWS_VERSION: Final = "2.57.8"
"""Modules in place of the `bundle` that hadoop-aws names: 20 MB for hundreds."""
PUBLISHED: Final = ("sha512", "sha256", "sha1")
"""Sums that repositories have beside a file, best first; Central has the last of every file."""
THREADS: Final = 6

CONNECT_GROUPS: Final = (
    "io.swagger",
    "jakarta.",
    "javax.",
    "com.fasterxml.jackson.jakarta",
    "com.fasterxml.jackson.module",
    "com.sun.activation",
    "io.github.classgraph",
    "org.codehaus.plexus",
    "org.eclipse.jetty",
    "org.glassfish",
    "org.javassist",
)
"""Groups that only Kafka Connect needs; kafka-tools has them for one tool about its plugins."""
AWS_MODULES: Final = (
    "annotations",
    "apache-client",
    "arns",
    "auth",
    "aws-core",
    "aws-query-protocol",
    "aws-xml-protocol",
    "checksums",
    "checksums-spi",
    "crt-core",
    "endpoints-spi",
    "eventstream",
    "http-auth",
    "http-auth-aws",
    "http-auth-aws-eventstream",
    "http-auth-spi",
    "http-client-spi",
    "identity-spi",
    "json-utils",
    "metrics-spi",
    "netty-nio-client",
    "profiles",
    "protocol-core",
    "regions",
    "retries",
    "retries-spi",
    "s3",
    "s3-transfer-manager",
    "sdk-core",
    "sts",
    "third-party-jackson-core",
    "utils",
    "utils-lite",
)
"""What Hadoop reads S3 with, less the parts that pyspark brings."""


class LockRefused(Exception):
    """A lock is not written; the text has the jar and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One lock: `coordinates` with all they need, less what is not wanted."""

    folder: str
    coordinates: tuple[str, ...]
    unused_groups: tuple[str, ...] = ()
    is_whole: bool = False
    """The coordinates are all there is: jgo cannot read each pom."""
    only: frozenset[str] = frozenset()
    """group:artifact; empty for all."""
    beside: str | None = None
    """The folder of a lock whose jars are on the same class path before these."""


LOCKS: Final = (
    Wanted(
        folder="keylane/embedded",
        coordinates=(
            f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
            f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
            # The version of the slf4j-api that Kafka brings.
            "org.slf4j:slf4j-simple:1.7.36",
        ),
        unused_groups=CONNECT_GROUPS,
    ),
    Wanted(
        folder="pipeline",
        coordinates=(f"{CONNECTOR}:{SPARK_VERSION}",),
        only=WANTED,
    ),
    Wanted(
        folder="bench/peers",
        coordinates=(
            "io.confluent.parallelconsumer:parallel-consumer-core:" + PARALLEL_CONSUMER_VERSION,
        ),
        beside="keylane/embedded",
    ),
    Wanted(
        folder="tests/streams",
        coordinates=(
            f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",
            f"org.eclipse.jdt:ecj:{JAVA_COMPILER_VERSION}",
        ),
        beside="keylane/embedded",
    ),
    Wanted(
        folder="tests/spark",
        coordinates=(
            f"org.apache.hadoop:hadoop-aws:{HADOOP_VERSION}",
            "org.reactivestreams:reactive-streams:1.0.4",
            "org.wildfly.openssl:wildfly-openssl:2.2.5.Final",
            "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
            *(f"software.amazon.awssdk:{module}:{AWS_VERSION}" for module in AWS_MODULES),
        ),
        is_whole=True,
    ),
)


def main() -> int:
    """Write all locks, or none."""
    texts: dict[Path, str] = {}
    written: dict[str, tuple[LockedJar, ...]] = {}
    try:
        for wanted in LOCKS:
            path = ROOT / wanted.folder / FILE_NAME
            beside = written.get(wanted.beside or "", ())
            jars = make_lock(wanted, {_name(jar.coordinates) for jar in beside})
            refuse_changed(read_old(path), jars)
            written[wanted.folder] = jars
            texts[path] = dump_lock(jars)
            print(f"{path.relative_to(ROOT)}: {len(jars)} jars")
    except (LockRefused, KafkaUnavailable) as error:
        print(f"no lock was written: {error}", file=sys.stderr)
        return 1
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return 0


def make_lock(wanted: Wanted, left_out: set[str]) -> tuple[LockedJar, ...]:
    """Fetch and sum. Raises: LockRefused, KafkaUnavailable."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(THREADS) as pool:
        maven = open_maven(Path(folder))
        try:
            listed = list_artifacts if wanted.is_whole else resolve
            artifacts = [*choose(wanted, listed(wanted.coordinates, maven), left_out)]
            return tuple(pool.map(lock_one, artifacts))
        except (OSError, RuntimeError, ValueError) as error:  # requests' errors are OSErrors
            raise LockRefused(f"{wanted.folder}: {error}") from error


def resolve(coordinates: Sequence[str], maven: MavenContext) -> list[Artifact]:
    """Return every artifact that `coordinates` need, in the order of a class path."""
    from jgo.parse import Coordinate  # noqa: PLC0415  # belongs to an extra

    parsed = [replace(Coordinate.parse(text), scope="compile") for text in coordinates]
    inputs, others = maven.resolver.resolve([maven.create_dependency(item) for item in parsed])
    run_with = [item for item in others if item.scope in {"compile", "runtime"}]
    return [item.artifact for item in (*inputs, *run_with)]


def list_artifacts(coordinates: Sequence[str], maven: MavenContext) -> list[Artifact]:
    """Return the artifacts of `coordinates`, without what they need."""
    parts = [text.split(":") for text in coordinates]
    return [
        maven.project(group, name).at_version(version).artifact() for group, name, version in parts
    ]


def choose(wanted: Wanted, found: Sequence[Artifact], left_out: set[str]) -> Iterator[Artifact]:
    """Return the artifacts of `found` that belong into the lock. Raises: LockRefused."""
    names = {f"{item.groupId}:{item.artifactId}" for item in found}
    if not names >= wanted.only:
        raise LockRefused(f"{wanted.folder}: {', '.join(sorted(wanted.only - names))} is missing")
    for item in found:
        name = f"{item.groupId}:{item.artifactId}"
        if name in left_out or item.groupId.startswith(wanted.unused_groups or ("\0",)):
            continue
        if wanted.only and name not in wanted.only:
            continue
        if item.packaging != "jar" or item.classifier:
            raise LockRefused(f"{item}: only plain jars can be locked")
        yield item


def lock_one(artifact: Artifact) -> LockedJar:
    """Its sum, compared with the one that the repository publishes. Raises: LockRefused."""
    path = fetch_jar(artifact)
    data = path.read_bytes()
    name, published = read_published(artifact)
    if hashlib.new(name, data).hexdigest() != published:
        raise LockRefused(f"{artifact}: it has not the {name} that its repository publishes")
    coordinates = f"{artifact.groupId}:{artifact.artifactId}:{artifact.version}"
    return LockedJar(coordinates, hashlib.sha256(data).hexdigest(), len(data))


def read_published(artifact: Artifact) -> tuple[str, str]:
    """The best sum that a repository has beside the file: its kind, and it. Raises: LockRefused."""
    from jgo.util import http  # noqa: PLC0415  # belongs to an extra

    folder = artifact.component.path_prefix.as_posix()
    for repository in artifact.context.remote_repos.values():
        for name in PUBLISHED:
            url = f"{repository}/{folder}/{artifact.filename}.{name}"
            answer = http.get(url, timeout=artifact.context.timeout)
            if answer.status_code == 200 and answer.text.split():
                return name, answer.text.split()[0].lower()
    raise LockRefused(f"{artifact}: no repository publishes a sum of it")


def read_old(path: Path) -> tuple[LockedJar, ...]:
    """The lock as it is; empty where there is none yet."""
    try:
        return parse_lock(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return ()


def refuse_changed(old: Sequence[LockedJar], new: Sequence[LockedJar]) -> None:
    """A version that is locked keeps its bytes. Raises: LockRefused."""
    known = {jar.coordinates: jar for jar in old}
    for jar in new:
        before = known.get(jar.coordinates, jar)
        if before != jar:
            raise LockRefused(
                f"{jar.coordinates}: locked is sha256 {before.sha256}, the repository has"
                f" {jar.sha256}: find out why; a released version never changes"
            )


def _name(coordinates: str) -> str:
    return coordinates.rpartition(":")[0]


if __name__ == "__main__":
    sys.exit(main())
