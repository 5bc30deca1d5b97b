"""Times that are measured after the trainings, or instead of them: the time pass, the profile and the prediction."""
