"""The names that a user can choose from: presets and devices."""

from headwise.config.presets import PRESETS
from headwise.cost.devices import DEVICES, HERE

PRESET_NAMES = tuple(PRESETS)
DEVICE_NAMES = (*DEVICES, HERE)
