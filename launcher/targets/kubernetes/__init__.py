"""A cluster: PyTorchJob, TrainJob, JobSet or an Indexed Job."""
