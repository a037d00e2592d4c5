from tests.pipeline.conftest import no_verdict, small

__all__ = ["no_verdict", "small"]
