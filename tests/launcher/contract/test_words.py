"""Words for a person: commands to type, words that are meant; and words for torch's agent."""

import pytest

from launcher.contract import protocol
from launcher.contract.errors import closest
from launcher.contract.node_plan import place_node
from launcher.contract.typed import as_called, command, program
from tests.launcher.node_plans import node_plan


def test_commands_are_told_as_this_call_was_typed():
    with as_called(".venv/bin/launcher", ("--runs-dir", "my runs")):
        with as_called("python -m launcher"):
            assert command("stop", "a b") == "python -m launcher stop 'a b'"
            assert program() == "python -m launcher"
        assert command("stop", "a") == ".venv/bin/launcher stop --runs-dir 'my runs' a"
        assert command("run", "a.yaml") == ".venv/bin/launcher run a.yaml"
    with pytest.raises(KeyError), as_called("other"):
        raise KeyError
    assert (command("stop"), program()) == ("launcher stop", "launcher")


@pytest.mark.parametrize(
    ("word", "meant"),
    [("nproc_pre_node", "nproc_per_node"), ("nodes", "nnodes"), ("zzz", ""), ("nnodez", "nnodes")],
)
def test_a_misspelt_word_is_known(word, meant):
    assert closest(word, ["nnodes", "nproc_per_node", "name"]) == meant
    assert closest(word, []) == ""


def test_how_alike_words_must_be_can_be_said():
    assert closest("abxx", ["abcd"]) == ""
    assert closest("abxx", ["abcd"], cutoff=0.5) == "abcd"
    assert closest("abcx", ["abcd"]) == "abcd"


@pytest.mark.parametrize(
    ("word", "passed_on"),
    [
        ("--lr=0.1", "--lr=0.1"),
        ("$HOME", "$HOME"),
        ("$$", "$$$$"),
        ("${local_rank}", "$${local_rank}"),
        ("$local_rank of $HOME", "$$local_rank of $$HOME"),
    ],
)
def test_torch_expands_nothing_of_what_was_typed(word, passed_on):
    from torch.distributed.elastic.utils.api import macros

    command = node_plan(command=("t.py", word)).literal_command
    assert command == ("t.py", passed_on)
    assert macros.substitute(list(command), "3")[-1] == word


def test_a_node_at_another_place_is_that_node_everywhere():
    env = ((protocol.NODE_INDEX, "0"), ("A", "1"), (protocol.INCARNATION, "0"))
    placed = place_node(node_plan(env=env), 12, 3)
    assert (placed.node_index, placed.incarnation, placed.log_dir) == (12, 3, "/run/nodes/12/3")
    assert placed.env == (
        (protocol.NODE_INDEX, "12"),
        ("A", "1"),
        (protocol.INCARNATION, "3"),
        (protocol.LINE_PREFIX_TEMPLATE, "[12/${rank}] "),
    )
