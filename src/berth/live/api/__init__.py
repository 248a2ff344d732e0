"""HTTP: what people and their tools may ask, and who may."""
