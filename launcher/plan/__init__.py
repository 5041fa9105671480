"""Pure: a job and the facts of a target in, a launch plan out."""
