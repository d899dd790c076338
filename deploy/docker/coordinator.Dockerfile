# syntax=docker/dockerfile:1
# The coordinator with PyTorch for CPUs, and mosquitto, which the coordinator starts as its broker; x86-64 and arm64.
#   docker build -f deploy/docker/coordinator.Dockerfile -t espalier-coordinator .
#   docker buildx build --platform linux/amd64,linux/arm64 -f deploy/docker/coordinator.Dockerfile -t REGISTRY/espalier-coordinator --push .
# For a reproducible build, pin the base image by digest: --build-arg PYTHON=python@sha256:...
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/espalier
COPY LICENSE README.md constraints.txt pyproject.toml ./
# CPU builds have their own index. The builds on PyPI include gigabytes of CUDA, even those for arm64.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN /opt/espalier/bin/pip install --no-deps --index-url "${TORCH_INDEX}" --constraint constraints.txt torch torchvision
COPY coordinator coordinator
COPY edge_agent edge_agent
COPY espalier espalier
COPY export export
COPY federated federated
COPY models models
RUN /opt/espalier/bin/pip install --constraint constraints.txt ".[coordinator,export]"

FROM ${PYTHON}
# hadolint ignore=DL3008  # no version is pinned, because the distribution keeps one version and patches it
RUN apt-get update \
    && apt-get install -y --no-install-recommends mosquitto \
    && rm -rf /var/lib/apt/lists/*
RUN groupadd --system --gid 10001 espalier \
    && useradd --system --uid 10001 --gid espalier --home-dir /var/lib/espalier --create-home espalier \
    && install -d -o espalier -g espalier -m 0700 /broker /tokens
COPY --from=build /opt/espalier /opt/espalier
ENV PATH=/opt/espalier/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ESPALIER_ALIVE=/tmp/alive
USER 10001:10001
WORKDIR /var/lib/espalier
VOLUME /var/lib/espalier
EXPOSE 8883 8884
# The main loop touches the file. Between two touches, it may evaluate a large network, which takes minutes.
HEALTHCHECK --interval=30s --timeout=5s --start-period=5m CMD ["sh", "-c", "test -n \"$(find /tmp/alive -mmin -15)\""]
ENTRYPOINT ["coordinator"]
CMD ["start", "--name", "fleet", "--or-resume"]
