"""Identity of a dataset and of the people in it: fingerprint, membership, duplicates, consent and
withdrawal.
"""
