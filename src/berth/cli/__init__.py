"""The command line: one file per verb. Verbs import what is heavy only when they run."""
