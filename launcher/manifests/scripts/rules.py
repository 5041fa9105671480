"""Every rule of training scripts: how bad a breach is (error or warning), and why it hurts."""

from __future__ import annotations

import enum

from launcher.manifests.checks.rules import ERROR, WARNING, AnyRule


@enum.unique
class ScriptRule(AnyRule):
    """Every rule of training scripts: what breaks, or is lost, with more than one GPU."""

    UNREADABLE = ERROR, "no worker could run it"
    FIRST_GPU = ERROR, "all processes of a node use its first GPU, and the others are idle"
    RANK_AS_DEVICE = ERROR, "ranks count over all nodes: the second node has no GPU of that number"
    VISIBLE_DEVICES = ERROR, "all processes of a node see these GPUs, not those they were given"
    DATA_PARALLEL = ERROR, "each process drives all GPUs of its node, and gradients stay in it"
    NCCL_WITHOUT_DEVICE = WARNING, "barriers and collectives of objects guess a GPU, and may hang"
    TENSOR_NOT_BUFFER = ERROR, "it stays on the CPU when the module moves; no checkpoint holds it"
    NO_SET_EPOCH = WARNING, "every epoch has the order of the first one"
    LOADER_WITHOUT_SAMPLER = ERROR, "each rank reads all data: the same work is done many times"
    SAMPLER_WITH_SHUFFLE = ERROR, "DataLoader refuses both together: the sampler shuffles"
    WORKER_SEEDS = WARNING, "loader workers draw equal random numbers, or different ones each run"
    DOWNLOAD_BY_ALL = WARNING, "processes of a node write the same files: one may read half of one"
    DOWNLOAD_WITHOUT_BARRIER = ERROR, "the other ranks read files that are not there, or not whole"
    PICKLED_FUNCTION = ERROR, "a spawned process gets it pickled; lambdas and local functions fail"
    ADDRESS_SET = ERROR, "it replaces what the launcher gave each worker: ranks never meet"
    OWN_WORLD = ERROR, "each worker of the launcher starts a world of its own, on its node alone"
    WORLD_SIZE_OF_NODE = ERROR, "it counts one node's GPUs, not processes: a second node is unused"
    SOME_RANKS_ONLY = ERROR, "the ranks that reach it wait for the others until the time limit"
    GROUP_DESTROYED_EARLY = WARNING, "the model still uses the group: an error or a hang at the end"
    FABRIC_CPU = ERROR, "under torchrun each process trains alone and takes itself for rank 0"
    SAVE_BY_ALL = ERROR, "all ranks write the same file at once: what is left may be broken"
    LOAD_WITHOUT_WEIGHTS_ONLY = WARNING, "torch < 2.6 runs its code, later ones take weights alone"
    NO_CHECKPOINT = WARNING, "when the job restarts, the training begins again"
    NAME_BY_EACH_RANK = WARNING, "ranks start at other moments: a run's files lie in many folders"
    RELATIVE_CHECKPOINT = WARNING, "on hosts and clusters it lies in a copy of the code, of one run"
    LIGHTNING_DROPPED = ERROR, "Lightning 2 has it no more: it is refused, or never called"
