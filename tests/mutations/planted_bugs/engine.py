"""Planted bugs of the independence of units and of the exact sums."""

from tests.mutations.planted_bugs.bug import Bug

_INDEPENDENCE = "tests/training/test_independence.py"
_LOCAL_UPDATE = "primorl/training/local_update.py"

INDEPENDENCE = [
    Bug(
        "units-share-vector-lanes",
        "independence",
        _LOCAL_UPDATE,
        "stride = size + _GAP",
        "stride = size",
        "element-wise operations run across units: the last bits of one depend on how many others there are",
        (_INDEPENDENCE,),
    ),
    Bug(
        "unit-trained-alone-by-other-products",
        "independence",
        _LOCAL_UPDATE,
        "if batches.weights.shape[1] != 1:",
        "if batches.weights.shape[1] != 0:",
        "a unit alone in its chunk has other last bits than beside others",
        (_INDEPENDENCE,),
    ),
    Bug(
        "products-chosen-by-where-matrices-lie",
        "independence",
        "primorl/__init__.py",
        'os.environ.setdefault("MKL_CBWR", "AUTO")',
        "",
        "MKL multiplies a unit's matrices otherwise beside other units, on some processors",
        ("tests/setup/test_compute.py",),
    ),
    Bug(
        "padding-runs-through-the-network",
        "independence",
        _LOCAL_UPDATE,
        "pad(batches.inputs, (0, 1), value=1.0).masked_fill_(padding, 0.0)",
        "pad(batches.inputs, (0, 1), value=1.0)",
        "padding that a longer neighbour causes overflows and zeroes a unit's update",
        (_INDEPENDENCE,),
    ),
    Bug(
        "sum-in-floating-point",
        "independence",
        _LOCAL_UPDATE,
        "update.mul_(1 / grid).trunc_()",
        "update.mul_(1 / grid)",
        "the sum of updates is rounded, and how depends on everybody",
        (_INDEPENDENCE,),
    ),
    Bug(
        "grid-rounds-up",
        "independence",
        _LOCAL_UPDATE,
        "update.mul_(1 / grid).trunc_()",
        "update.mul_(1 / grid).add_(update.sign()).trunc_()",
        "cutting an update to the grid makes its norm grow",
        (_INDEPENDENCE,),
    ),
    Bug(
        "machine-not-checked",
        "independence",
        "primorl/training/independence.py",
        "if not all(torch.equal(update, one.expand_as(update)) for",
        "if not all(torch.allclose(update, one.expand_as(update)) for",
        "a machine whose products depend on the number of units is accepted",
        (_INDEPENDENCE,),
    ),
    Bug(
        "chunk-of-a-gpu-depends-on-others",
        "independence",
        "primorl/training/chunks.py",
        "[gpu_size(plan, chunk_bytes, bytes_of, length) for length in lengths.tolist()]",
        "[gpu_size(plan, chunk_bytes, bytes_of, int(lengths.max())) for _ in lengths.tolist()]",
        "the longest unit of the cohort decides the size of everybody's chunk",
        (_INDEPENDENCE,),
    ),
    Bug(
        "clip-below-float32",
        "clip",
        "primorl/privacy/mechanism/clipping.py",
        "_LEAST_NORM, _LARGEST_NORM = 1e-6, 1e6",
        "_LEAST_NORM, _LARGEST_NORM = 1e-30, 1e6",
        "squares underflow, and updates above the bound pass",
        (_INDEPENDENCE,),
    ),
]
