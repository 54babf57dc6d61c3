"""Does an environment keep what `contracts.Env` promises? Found out by trying, on anybody's environment.

A check is a function of a `Trial`. It raises `Broken` with what it saw, or `Skipped` with why it could not look.
"""

from vlarge.sim.conformance.playing import Broken as Broken
from vlarge.sim.conformance.playing import Skipped as Skipped
from vlarge.sim.conformance.playing import Trial as Trial
from vlarge.sim.conformance.suite import CHECKS as CHECKS
from vlarge.sim.conformance.suite import Finding as Finding
from vlarge.sim.conformance.suite import check_env as check_env
