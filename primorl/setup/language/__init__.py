"""Language models, prompts and sentiment rewards, by name: needs the extra ``rlhf``."""
