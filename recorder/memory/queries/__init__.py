"""What the memory graph answers, from columns in memory. Spec §4.2."""
