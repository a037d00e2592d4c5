"""How long an episode can be, where no environment tells."""

from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.trajectories.storage.manifest import Manifest


def declared_horizon(params: Params, manifest: Manifest) -> int:
    """The most steps an episode can have.

    Data without an environment cannot do without it: nobody could judge a policy. Declared later, it would be of other
    data, and a model charged anew.

    Raises:
        PipelineError: nobody declared it.
    """
    if manifest.info.horizon is None:
        raise PipelineError(
            f"datasets/{params.dataset}.yaml: horizon: found null, and there is no environment that knows; "
            "allowed is the most steps an episode can have, known beforehand, not counted in the data"
        )
    return manifest.info.horizon
