"""Results for people: terminal tables, plots, one-file pages."""
