# The pipeline in a container, as a user without rights:
#   docker build -t primorl .
#   docker run --rm -it -v primorl:/project primorl              make run; data, ledger and results stay in the volume
#   docker run --rm -it -v primorl:/project primorl primorl ledger show
# The image holds the code and its dependencies, and neither data nor a ledger nor git's history (.dockerignore).

FROM python:3.11-slim AS base
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git make libgl1 libegl1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 primorl
USER 1000

FROM base
USER 0
RUN install --directory --owner primorl --group primorl /project
USER 1000
WORKDIR /project

# Dependencies first: an edit of the code does not install them again.
COPY --chown=primorl:primorl pyproject.toml constraints.txt README.md LICENSE Makefile ./
COPY --chown=primorl:primorl primorl/__init__.py primorl/__init__.py
RUN make setup && rm -rf "$HOME/.cache"

# DVC wants a repository. The stamp keeps `make` from installing again because files are newer.
COPY --chown=primorl:primorl . .
RUN git init --quiet && touch .venv/.pipeline .venv/.dev

ENV PATH=/project/.venv/bin:$PATH
CMD ["make", "run"]
