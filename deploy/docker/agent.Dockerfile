# syntax=docker/dockerfile:1
# An agent that trains, with PyTorch for CPUs; x86-64 and arm64. Set flags as environment variables, such as EDGE_AGENT_JOIN_BROKER=...
#   docker build -f deploy/docker/agent.Dockerfile -t espalier-agent .
#   docker buildx build --platform linux/amd64,linux/arm64 -f deploy/docker/agent.Dockerfile -t REGISTRY/espalier-agent --push .
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
RUN /opt/espalier/bin/pip install --constraint constraints.txt ".[train,data]"

FROM ${PYTHON}
RUN groupadd --system --gid 10001 espalier \
    && useradd --system --uid 10001 --gid espalier --home-dir /var/lib/espalier --create-home espalier
COPY --from=build /opt/espalier /opt/espalier
ENV PATH=/opt/espalier/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ESPALIER_ALIVE=/tmp/alive
USER 10001:10001
WORKDIR /var/lib/espalier
VOLUME /var/lib/espalier
# The main loop touches the file. Between two touches, it may measure the device or restart the training process, which takes minutes.
HEALTHCHECK --interval=30s --timeout=5s --start-period=15m CMD ["sh", "-c", "test -n \"$(find /tmp/alive -mmin -10)\""]
ENTRYPOINT ["edge-agent"]
CMD ["join"]
