"""Checks of a deployment, which `recorder doctor` runs for its operator. Contract §9."""
