"""How many steps before a loss breaks a warning stood, on trainings that diverge by themselves, beside other tools."""
