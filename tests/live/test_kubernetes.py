"""The manifests in deploy/kubernetes: valid, with commands that exist, few rights, and a configuration NATS takes."""

from __future__ import annotations

import copy
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml

from penstock import __version__
from penstock.cli.app import app
from penstock.jetstream import Topology
from penstock.pipelines import Project
from penstock.server.binary import find_binary

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
# Kinds that are no part of Kubernetes itself, so that its schemas do not know them.
FOREIGN = {
    ("kustomize.config.k8s.io/v1beta1", "Kustomization"),  # read by kubectl
    ("monitoring.coreos.com/v1", "ServiceMonitor"),  # brought by the Prometheus operator
}
VERSIONS = ["1.31", kubernetes_validate.latest_version()]  # the oldest that clouds still run, and the newest known


def documents() -> list[tuple[str, dict[str, Any]]]:
    """Give every object of every file, with a name to tell it by."""
    return copy.deepcopy(_read())


@functools.cache
def _read() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for path in sorted(FOLDER.rglob("*.yaml")):
        for content in yaml.safe_load_all(path.read_text()):
            found.append((f"{path.name}:{content['kind']}:{content.get('metadata', {}).get('name', '')}", content))
    # The pods of executors are made by Spark, from a file in a config map.
    found.append(("executor.yaml", yaml.safe_load(one("ConfigMap", "pipeline", found)["data"]["executor.yaml"])))
    return found


def one(kind: str, name: str, among: list[tuple[str, dict[str, Any]]] | None = None) -> dict[str, Any]:
    (found,) = [
        content
        for _, content in (documents() if among is None else among)
        if content["kind"] == kind and content.get("metadata", {}).get("name") == name
    ]
    return found


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Give the spec of every pod."""
    for name, content in documents():
        if content["kind"] == "Pod":
            yield name, content["spec"]
        elif "template" in content.get("spec", {}):
            yield name, content["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_fits_its_schema(version: str):
    """Kubernetes would take each object: its kind exists, and it has no field that is unknown or of another type."""
    checked = 0
    for name, content in documents():
        if (content["apiVersion"], content["kind"]) in FOREIGN:
            continue
        if name == "executor.yaml":  # Spark adds the image
            content["spec"]["containers"][0]["image"] = "penstock"
        try:
            kubernetes_validate.validate(content, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            pytest.fail(f"{name}: {error}")
        checked += 1
    assert checked > 20


def test_a_wrong_field_is_found():
    """The validator sees a field that is misspelt, so that what passes above means something."""
    wrong = one("StatefulSet", "nats")
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def commands() -> list[list[str]]:
    return [
        words
        for _, spec in pods()
        for container in spec["containers"]
        if (words := [*container.get("command", []), *container.get("args", [])])[:1] == ["penstock"]
    ]


def test_every_command_is_one_that_our_parser_takes():
    """Each `penstock` command has a name, options and values that this version knows."""
    assert {next(word for word in words[1:] if not word.startswith("-")) for words in commands()} == {
        *("pipeline", "console", "metrics", "channels"),
    }
    for words in commands():
        parse(words[1:])


@pytest.mark.parametrize(
    "change", [("--standby", "--stand-by"), ("--replicas=3", "--replicas=three"), ("serve", "srv")]
)
def test_a_command_that_is_gone_is_found(change: tuple[str, str]):
    """An option, a value or a word that the parser does not know fails."""
    (words,) = [words for words in commands() if change[0] in words and "channels" in words]
    with pytest.raises(Exception, match=r"No such option|valid integer|srv"):
        parse([change[1] if word == change[0] else word for word in words[1:]])


def parse(words: list[str]) -> None:
    """Let our own parser read a command, down to its last option, and run nothing."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("penstock", list(words))
    while hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


def test_pods_have_no_right_that_they_do_not_need():
    """No pod runs as root, writes to its own image, has a capability or a token; but the driver asks for executors."""
    for name, spec in pods():
        around = spec["securityContext"]
        assert around["runAsNonRoot"] is True, name
        assert around["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["automountServiceAccountToken"] is (":pipeline" in name), name
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
    rules = one("Role", "pipeline")["rules"]
    assert {resource for rule in rules for resource in rule["resources"]} <= {
        *("pods", "configmaps", "persistentvolumeclaims", "services"),
    }
    assert not any("*" in rule[part] for rule in rules for part in ("apiGroups", "resources", "verbs"))


def test_no_secret_is_in_a_file():
    """Passwords and tokens come from secrets that the page makes, with every key that is asked for."""
    page = (FOLDER.parents[1] / "docs" / "howto" / "kubernetes.md").read_text()
    for name, content in documents():
        assert content["kind"] != "Secret", name
    for name, spec in pods():
        for entry in spec["containers"][0].get("env", []):
            if re.search("PASSWORD|TOKEN", entry["name"]):
                asked = entry["valueFrom"]["secretKeyRef"]
                made = page.partition(f"create secret generic {asked['name']} ")[2].partition("\n```")[0]
                assert f"--from-literal={asked['key']}=" in made, name


def test_what_is_referred_to_exists():
    """Services, accounts and volumes that are named are there; all pods but NATS have this version's image."""
    kinds = {(content["kind"], content.get("metadata", {}).get("name")) for _, content in documents()}
    for name, spec in pods():
        if "serviceAccountName" in spec:
            assert ("ServiceAccount", spec["serviceAccountName"]) in kinds, name
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in kinds, name
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in kinds, name
        for container in spec["containers"]:
            if container.get("args", [""])[0] == "penstock":
                assert container["image"] == f"registry.example.com/penstock:{__version__}", name
    resources = one_of("Kustomization")["resources"]
    assert sorted(path.name for path in FOLDER.glob("*.yaml")) == sorted([*resources, "kustomization.yaml"])
    for name in ("nats", "pipeline"):
        assert ("Service", one("StatefulSet", name)["spec"]["serviceName"]) in kinds
    for name, kind in (("nats", "StatefulSet"), ("gateway", "Deployment")):
        assert one("PodDisruptionBudget", name)["spec"]["selector"] == one(kind, name)["spec"]["selector"]


def one_of(kind: str) -> dict[str, Any]:
    (found,) = [content for _, content in documents() if content["kind"] == kind]
    return found


def variables() -> dict[str, str]:
    """Give the variables of the NATS container, as Kubernetes would fill them in."""
    made: dict[str, str] = {}
    for entry in one("StatefulSet", "nats")["spec"]["template"]["spec"]["containers"][0]["env"]:
        if "value" in entry:
            made[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda match: made[match[1]], entry["value"])
        else:
            made[entry["name"]] = "nats-1" if "fieldRef" in entry["valueFrom"] else f"pw-{len(made)}e5"
    return made


def test_nats_takes_its_configuration(tmp_path: Path):
    """A real nats-server reads the configuration with the variables that its pod has, and refuses it without one."""
    config = tmp_path / "nats.conf"
    text = one("ConfigMap", "nats-config")["data"]["nats.conf"]
    config.write_text(text.replace('"/data"', f'"{tmp_path}/data"').replace("/run/nats", str(tmp_path)))
    base = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    def check(given: dict[str, str]) -> subprocess.CompletedProcess[str]:
        words = [str(find_binary().path), "-t", "-c", str(config)]
        return subprocess.run(words, env={**base, **given}, capture_output=True, text=True, timeout=60)

    whole = check(variables())
    assert whole.returncode == 0, whole.stderr
    lacking = check({name: value for name, value in variables().items() if name != "CONSOLE_PASSWORD"})
    assert lacking.returncode != 0
    assert "CONSOLE_PASSWORD" in lacking.stderr


def test_the_pipeline_in_the_config_map_is_whole(tmp_path: Path):
    """What is mounted is a project that loads, with a topology of three replicas and files that Python reads."""
    content = one("ConfigMap", "pipeline")["data"]
    spec = one("StatefulSet", "pipeline")["spec"]["template"]["spec"]
    (items,) = [volume["configMap"]["items"] for volume in spec["volumes"] if volume["name"] == "project"]
    assert {item["key"] for item in items} == content.keys()
    for item in items:
        target = tmp_path / "project" / item["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content[item["key"]])
    project = Project.load(tmp_path / "project", storage=tmp_path / "storage")
    assert project.name == "meters"
    driver = yaml.safe_load(content["spark-pipeline.yaml"])["configuration"]
    service = one("StatefulSet", "pipeline")["spec"]["serviceName"]
    assert driver["spark.driver.host"] == f"{driver['spark.kubernetes.driver.pod.name']}.{service}.penstock.svc"
    ports = [port["port"] for port in one("Service", service)["spec"]["ports"]]
    assert ports == [int(driver["spark.driver.port"]), int(driver["spark.blockManager.port"])]
    topology = Topology.load(tmp_path / "project" / "topology.toml")
    assert {name: stream.num_replicas for name, stream in topology.streams.items()} == {"METERS": 3, "HIGH": 3}
    compile(content["high.py"], "high.py", "exec")


def test_the_entrypoint_runs_commands_and_makes_executors(tmp_path: Path):
    """It runs what it is given; `executor` starts Java with what Spark's driver says, options in their order."""
    entrypoint = FOLDER / "image" / "entrypoint.sh"
    bash = shutil.which("bash") or "bash"
    done = subprocess.run([bash, entrypoint, "echo", "a b"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "a b\n")
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    told = {"DRIVER_URL": "spark://x:7078", "EXECUTOR_ID": "3", "EXECUTOR_CORES": "1", "EXECUTOR_MEMORY": "1024m"}
    told |= {"APPLICATION_ID": "app-1", "EXECUTOR_POD_IP": "10.0.0.9", "EXECUTOR_POD_NAME": "pod-3"}
    told |= {f"JAVA_OPT_{number}": f"-Da{number}=b c" for number in range(12)}
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"} | {f"SPARK_{key}": told[key] for key in told}
    done = subprocess.run([bash, entrypoint, "executor"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert words[:12] == [f"-Da{number}=b c" for number in range(12)]
    assert words[12:14] == ["-Xms1024m", "-Xmx1024m"]
    assert words[words.index("--driver-url") + 1] == "spark://x:7078"
    assert words[-2:] == ["--podName", "pod-3"]
