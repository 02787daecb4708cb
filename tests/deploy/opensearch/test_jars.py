"""What is missing for a node is said with the package that brings it; another plugin than ours is refused."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from deploy.java.server import JavaServerFailed
from deploy.opensearch import node
from deploy.opensearch.node import class_path, find_java

pytestmark = pytest.mark.servers


def program(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def silent(_text: str) -> None:
    pass


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        (None, r"needs a JDK 17 or newer \(Debian: apt-get install default-jdk-headless\)"),
        ("java.base@21.0.1", "has no compiler"),
        ("jdk.compiler@11.0.2", "is of version 11"),
    ],
)
def test_a_java_that_will_not_do_is_said(tmp_path: Path, modules: str | None, words: str) -> None:
    if modules:
        program(tmp_path, "java", f"echo {modules}")
    with pytest.raises(JavaServerFailed, match=words):
        find_java({"PATH": str(tmp_path)})


def test_the_java_of_java_home_comes_first(tmp_path: Path) -> None:
    for place in ("home/bin", "path"):
        (tmp_path / place).mkdir(parents=True)
        program(tmp_path / place, "java", "echo jdk.compiler@17.0.1")
    environ = {"PATH": str(tmp_path / "path"), "JAVA_HOME": str(tmp_path / "home")}
    assert find_java(environ) == tmp_path / "home/bin/java"


def test_without_maven_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(JavaServerFailed, match="apt-get install maven"):
        class_path(tmp_path, {"PATH": str(tmp_path)}, silent)


def test_a_download_that_fails_is_said_and_tried_again(tmp_path: Path) -> None:
    program(tmp_path, "mvn", "echo '[ERROR] no network'; exit 1")
    environ = {"PATH": f"{tmp_path}:{os.defpath}"}
    for _ in range(2):
        with pytest.raises(JavaServerFailed, match="no network"):
            class_path(tmp_path, environ, silent)


def test_another_plugin_than_the_expected_one_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "prepared.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("knn.jar", b"not the plugin")
        made.writestr("plugin-descriptor.properties", b"")
    copies = f"""for part in "$@"; do case $part in -DoutputDirectory=*) to=${{part#*=}};; esac; done
mkdir -p $to; cp {archive} $to/{node.KNN_ARCHIVE}"""
    program(tmp_path, "mvn", copies)
    environ = {"PATH": f"{tmp_path}:{os.defpath}"}
    with pytest.raises(JavaServerFailed, match="its SHA-256 differs"):
        class_path(tmp_path, environ, silent)
    # With the expected one its jars, and they alone, are on the class path; it is not asked again.
    expected = hashlib.sha256(archive.read_bytes()).hexdigest()
    told: list[str] = []
    found = class_path(tmp_path, environ, told.append, knn_sha256=expected)
    assert found.endswith("/*")
    assert [path.name for path in Path(found[:-2]).iterdir()] == ["knn.jar"]
    assert class_path(tmp_path, {"PATH": ""}, told.append) == found
    assert told == ["downloading the jars of OpenSearch from Maven Central (60 MB, once)"]
