"""Pipeline parallelism: a model split into stages that run in separate processes."""
