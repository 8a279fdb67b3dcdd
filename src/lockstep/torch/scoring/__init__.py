"""What scores actions: networks over features and candidates, and the policy around them (`policy.py`)."""
