"""Online updates of a language model: a user gives one prompt, and rewards score the answers to it."""
