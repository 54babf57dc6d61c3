"""Plan, run, verdict: `plan.make_plan` fixes the episodes, `run.run` judges on them, `verdict.gate` compares two."""
