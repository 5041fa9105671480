"""What the engine sees of its workers: hangs, stacks, profiles, vitals; and the node's health."""
