"""Bugs in what a log says of its behaviour policy, and in where the stores think that trajectories begin."""

from tests.mutations.planted_bugs.bug import Bug

_BOTH = "tests/trajectories/storage/test_behaviour_probabilities.py"
_ICU = "tests/trajectories/sources/test_icu_sepsis.py"
_TABULAR = "tests/trajectories/sources/test_tabular_probabilities.py"

BEHAVIOUR: tuple[Bug, ...] = (
    Bug(
        "behaviour-probability-names-people",
        "data flow",
        "primorl/trajectories/storage/schema.py",
        '    for name in ("observation", "action", "reward", "next_observation", "terminated", "truncated"):\n',
        '    names = ("observation", "action", "reward", "next_observation", "terminated", "truncated")\n'
        "    for name in (*names, *({BEHAVIOUR_PROBABILITY} & set(table.column_names))):\n",
        "the ledger does not recognise people once their log names probabilities",
        (_BOTH,),
    ),
    Bug(
        "behaviour-probability-without-fingerprint",
        "data flow",
        "primorl/trajectories/identity/fingerprint.py",
        "self._columns = {field.name: hashlib.sha256() for field in schema}",
        "self._columns = {field.name: hashlib.sha256() for field in arrow_schema(spaces)}",
        "a dataset with other probabilities passes for the same one",
        (_BOTH, _TABULAR),
    ),
    Bug(
        "behaviour-probability-above-one",
        "data flow",
        "primorl/trajectories/checks.py",
        "return ~(fit & (values <= 1)),",
        "return ~fit,",
        "probabilities of discrete actions above 1 are taken",
        (_BOTH, _TABULAR),
    ),
    Bug(
        "behaviour-probability-of-the-next-state",
        "data flow",
        "primorl/trajectories/sources/icu_sepsis.py",
        "by_patient[:, :-1][done >= 0]",
        "by_patient[:, 1:][done >= 0]",
        "actions are weighed as if they had been chosen one state later",
        (_ICU,),
    ),
    Bug(
        "behaviour-begins-with-the-row-group",
        "data flow",
        "primorl/trajectories/storage/sharded.py",
        'extras[:, 0] = table["step"].to_numpy() == 0',
        "extras[:, 0] = np.arange(len(extras)) == 0",
        "trajectories of one unit run into each other where it is read from disk",
        (_BOTH,),
    ),
    Bug(
        "behaviour-padding-begins-anothers",
        "data flow",
        "primorl/trajectories/storage/memory.py",
        "return self._begins[self._chosen(units, steps)]",
        "return self._begins[(self._starts[units, None] + steps).clamp(max=len(self._places) - 1)]",
        "where a trajectory begins is read from the next unit's rows",
        (_BOTH,),
    ),
)
