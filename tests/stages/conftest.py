"""The dataset folder and the config that the tests of this room share."""

from tests.pets import config, pets

__all__ = ["config", "pets"]
