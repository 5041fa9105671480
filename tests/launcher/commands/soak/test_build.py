"""``launcher build``: what is refused before an engine is asked."""

import pytest

TAGS = ("Train:1", "a b", "train:", "train@sha256:" + "0" * 64, "https://registry.example/train")


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_that_no_image_may_have_is_refused(launcher, tag):
    told = launcher.fails(2, "build", "--base", "base:1", "--tag", tag)
    assert told.startswith(f"error: --tag {tag}: ")
    assert "fix: --tag registry.example/me/train:1" in told


@pytest.mark.parametrize("tag", ["train:1", "me/train:1"])
def test_a_push_to_no_registry_is_refused_before_anything_is_built(launcher, tag):
    told = launcher.fails(2, "build", "--base", "base:1", "--tag", tag, "--push")
    assert f"--push: --tag {tag} names no registry" in told
    assert "docker.io/me/train:1" in told


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("absent.py",), "absent.py: no such file"),
        (("absent.yaml",), "absent.yaml"),
        (("-m", "absent"), "absent: its code is not here"),
        (("train.py", "--code", "image"), "train.py: its code is not here"),
        (("train.py", "--code", "absent"), "code: found absent; no such folder"),
        (("--code", "absent"), "--code absent: no such folder"),
        (("train.py", "--requirements", "absent.txt"), "absent.txt: cannot be read: No such file"),
        (("train.py", "--wheelhouse", "absent"), "--wheelhouse absent: is no folder with packages"),
        (("train.py", "--nnodes", "2"), "--nnodes 2: python -m launcher build does not take it"),
    ],
)
def test_what_is_not_there_is_named_with_the_fix(launcher, words, what):
    (launcher.folder / "train.py").touch()
    told = launcher.fails(2, "build", *words, "--base", "base:1", "--tag", "train:1")
    assert what in told
    assert "fix: " in told
