"""The same scheduler over a real engine: a journal, a controller, and back ends that run what was decided."""
