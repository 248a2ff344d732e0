"""A model cut into stages that run in processes of their own, micro-batches on their way through them."""
