import pytest

from resync.java import Java, JavaMissing, find_java


@pytest.fixture
def install(tmp_path):
    """Put a program in place of Java that prints what a Java of that version prints."""

    def install(script: str):
        path = tmp_path / "bin" / "java"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return install


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ('openjdk version "17.0.9" 2023-10-17', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
    ],
)
def test_a_java_that_is_new_enough(install, tmp_path, printed, version):
    path = install(f"echo '{printed}' >&2")
    assert find_java({"JAVA_HOME": str(tmp_path)}) == Java(path, version)
    assert find_java({"PATH": str(path.parent)}) == Java(path, version)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'openjdk version \"1.8.0_392\"' >&2", "is Java 8, which is too old"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "is Java 11, which is too old"),
        ("echo 'what?'", "does not work as a Java"),
        ("echo 'openjdk version \"17\"'; exit 1", "does not work as a Java"),
    ],
)
def test_a_java_that_will_not_do(install, tmp_path, script, reason):
    install(script)
    with pytest.raises(JavaMissing, match=reason) as caught:
        find_java({"JAVA_HOME": str(tmp_path)})
    assert "install Java 17 or newer" in str(caught.value)


def test_no_java_at_all(tmp_path):
    with pytest.raises(JavaMissing, match="No Java was found"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(JavaMissing, match="where there is no bin/java"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_a_java_that_cannot_be_started(install, tmp_path):
    install("").chmod(0o644)
    with pytest.raises(JavaMissing, match="cannot be started"):
        find_java({"JAVA_HOME": str(tmp_path)})
