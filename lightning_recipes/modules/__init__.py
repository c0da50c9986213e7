"""LightningModules: a base to inherit, and three ready ones."""
