"""Times that are measured after the trainings, or instead of them: time pass, profile and prediction."""
