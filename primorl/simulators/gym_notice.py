"""Keeps Gym quiet. Import this module before a package that imports Gym.

Stable-Baselines3, Shimmy and ICU-Sepsis import Gym if it is installed, and Gym prints that it is unmaintained. This
project uses Gymnasium, so nobody can act on that notice. Only this notice is removed; warnings are shown as ever.
"""

from contextlib import suppress

with suppress(ImportError):  # installed only if another package needs it
    from gym_notices.notices import notices

    notices.clear()
