"""How curvatures of many tasks are added in constant memory: the study behind DCO-KRON's sum."""
