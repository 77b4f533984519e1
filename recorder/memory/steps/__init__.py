"""Steps of a session: screens, targets and the sequence of actions. Spec §2.6."""
