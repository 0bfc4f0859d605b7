"""Settings of the whole suite: a slow machine must not fail a property test by its clock."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("elasmo", deadline=None)
settings.load_profile("elasmo")
