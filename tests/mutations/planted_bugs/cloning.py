"""Planted bugs of private behaviour cloning."""

from tests.mutations.planted_bugs.bug import Bug

_NETWORK, _SETUP = "primorl/training/policy_network.py", "primorl/setup/cloning.py"
_WORK = "primorl/setup/clone_work.py"
_KERNEL, _STAGE = "tests/training/test_policy_network.py", "tests/pipeline/test_clone_behaviour.py"

CLONING = [
    Bug(
        "cloning-softmax-across-units",
        "independence",
        _NETWORK,
        "output.amax(dim=-1, keepdim=True)",
        "output.amax()",
        "a clone's softmax is shifted by the largest logit of all units: the last bits of one depend on the others",
        (_KERNEL,),
    ),
    Bug(
        "cloning-mean-not-squashed-back",
        "data flow",
        _NETWORK,
        "        _tanh_backward_into(scaled, mean, grad_input=scaled)\n",
        "",
        "a clone's gradient is that of another loss",
        (_KERNEL,),
    ),
    Bug(
        "cloning-costs-more",
        "accounting",
        _SETUP,
        'noise_for(epsilon, delta) if variant == "private"',
        'noise_for(2 * epsilon, delta) if variant == "private"',
        "a clone spends more than the ε that params.yaml names",
        (_STAGE,),
    ),
    Bug(
        "cloning-identity-without-draw",
        "ledger",
        _WORK,
        '        "draw": params.privacy.draw,\n',
        "",
        "another draw of a clone that was asked for is not made",
        (_STAGE,),
    ),
    Bug(
        "cloning-charged-for-a-constant",
        "ledger",
        _WORK,
        '        "draw": params.privacy.draw,\n',
        '        "draw": params.privacy.draw,\n        "rounds": ROUNDS,\n',
        "a version that clones otherwise charges the same people again",
        (_STAGE,),
    ),
    Bug(
        "cloning-random-start",
        "data flow",
        _SETUP,
        "return replace(setup, start=_public_start(setup, public)) if begun else setup",
        "return setup",
        "a clone begins with random weights and takes the small steps that suit weights of the public split",
        (_STAGE,),
    ),
    Bug(
        "cloning-loss-unnoticed",
        "ledger",
        "primorl/setup/losses.py",
        "for folder in (MODEL, BEHAVIOUR):",
        "for folder in (MODEL,):",
        "a clone that dvc.lock names and whose charge the ledger lacks is not missed",
        (_STAGE,),
    ),
]
