"""The evidence for `fedfw.estimators`: real hospitals and studies, cost, and coverage."""
