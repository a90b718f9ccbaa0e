"""A real API server of Kubernetes, with etcd behind it: no kubelet, no controllers.

It admits, defaults, validates and stores objects as any cluster does. Nothing acts on them.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final, Self

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from keylane.embedded.child import GuardedChild
from keylane.embedded.ports import find_free_port
from tools.go_tools import API_SERVER, ETCD, find_tool

from .rendering import Object

READY_TIMEOUT_S: Final = 240.0
TOKEN: Final = "admin-of-this-test"
PAUSE_S: Final = 0.2
"""Between two questions: the server answers when asked, and announces neither state."""


class Refused(Exception):
    """The API server refused an object; the text is its own."""


class ApiServer:
    """kube-apiserver and etcd on loopback, as long as the context lasts."""

    def __init__(self, folder: Path) -> None:
        """Plan both. Raises: GoToolMissing."""
        self._folder = folder
        # Before the ports are drawn: a build takes minutes, and free ports do not stay free.
        etcd, api_server = find_tool(ETCD), find_tool(API_SERVER)
        first = find_free_port(in_a_row=3)
        peer, store, self._port = (str(first + place) for place in range(3))
        store_url, peer_url = (f"http://127.0.0.1:{port}" for port in (store, peer))
        self._etcd = GuardedChild(
            [str(etcd), "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync",
             "--listen-client-urls", store_url, "--advertise-client-urls", store_url,
             "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url,
             "--initial-cluster", f"default={peer_url}"],
            log_path=folder / "etcd.log",
            ready_text="ready to serve client requests",
        )  # fmt: skip
        key = folder / "accounts.key"
        self._server = GuardedChild(
            [str(api_server), "--etcd-servers", store_url,
             "--bind-address", "127.0.0.1", "--secure-port", self._port,
             "--cert-dir", str(folder), "--token-auth-file", str(folder / "tokens.csv"),
             "--service-account-key-file", str(key), "--service-account-signing-key-file", str(key),
             "--service-account-issuer", "https://kubernetes.default.svc",
             "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.96.0.0/16",
             # Accounts are made by a controller, and there are none.
             "--disable-admission-plugins", "ServiceAccount"],
            log_path=folder / "apiserver.log",
            ready_text="Serving securely on",
        )  # fmt: skip
        self.kubeconfig = folder / "kubeconfig"
        self._context: ssl.SSLContext | None = None
        self._resources: dict[str, dict[str, Object]] = {}

    def __enter__(self) -> Self:
        """Start both, and wait until the server is ready."""
        key = self._folder / "accounts.key"
        key.write_bytes(
            rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        (self._folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
        deadline = time.monotonic() + READY_TIMEOUT_S
        try:
            for child in (self._etcd, self._server):
                child.launch()
                child.await_ready(deadline)
            certificate = self._folder / "apiserver.crt"
            self._context = ssl.create_default_context(cafile=str(certificate))
            self.kubeconfig.write_text(yaml.safe_dump(self._client_config(certificate)))
            self._await_ready(deadline)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End both."""
        self._server.stop()
        self._etcd.stop()

    def _client_config(self, certificate: Path) -> Object:
        cluster = {"server": self._url(""), "certificate-authority": str(certificate)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }

    def _url(self, path: str) -> str:
        return f"https://127.0.0.1:{self._port}{path}"

    def _await_ready(self, deadline: float) -> None:
        while True:
            try:
                self.ask("GET", "/readyz")
            except (Refused, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_S)
            else:
                return

    def ask(self, method: str, path: str, body: Object | None = None) -> str:
        """Return the answer's text. Raises: Refused."""
        request = urllib.request.Request(  # noqa: S310 - https alone is asked
            self._url(path),
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(  # noqa: S310 - same
                request, timeout=60, context=self._context
            ) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.read().decode()) from None

    def get(self, path: str) -> Any:
        """Return the object at a path. Raises: Refused."""
        return json.loads(self.ask("GET", path))

    def create(self, one: Object, namespace: str, *, dry_run: bool = False) -> Any:
        """Create an object; a field that its kind does not have is an error. Raises: Refused."""
        version = one["apiVersion"]
        base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        if one["kind"] not in self._resources.get(base, {}):
            listed = self.get(base)["resources"]
            self._resources[base] = {each["kind"]: each for each in reversed(listed)}
        resource = self._resources[base][one["kind"]]
        place = f"/namespaces/{namespace}" if resource["namespaced"] else ""
        options = "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        return json.loads(self.ask("POST", f"{base}{place}/{resource['name']}{options}", one))

    def install_crd(self, path: Path) -> None:
        """Create a CustomResourceDefinition, and wait until its objects can be created."""
        # The parser in C, as safe: the one in Python takes half a minute for a large one.
        definition = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
        self.create(definition, "")
        spec = definition["spec"]
        deadline = time.monotonic() + READY_TIMEOUT_S
        for version in (each["name"] for each in spec["versions"] if each["served"]):
            while not self._has_kind(f"/apis/{spec['group']}/{version}", spec["names"]["kind"]):
                if time.monotonic() > deadline:
                    raise Refused(f"{definition['metadata']['name']} {version} is not served")
                time.sleep(PAUSE_S)

    def _has_kind(self, base: str, kind: str) -> bool:
        """Return whether a version is served: later than its definition says `Established`."""
        try:
            return any(each["kind"] == kind for each in self.get(base)["resources"])
        except Refused:
            return False
