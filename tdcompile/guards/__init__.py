"""Guard-narrowing passes: which guards a compiled tensordict function does without, and why."""
