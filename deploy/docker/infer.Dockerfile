# syntax=docker/dockerfile:1
# An agent that serves inference with the releases of a run, without PyTorch; x86-64 and arm64. Set flags as environment variables,
# such as EDGE_AGENT_INFER_BROKER=...
#   docker build -f deploy/docker/infer.Dockerfile -t espalier-infer .
#   docker buildx build --platform linux/amd64,linux/arm64 -f deploy/docker/infer.Dockerfile -t REGISTRY/espalier-infer --push .
# For a reproducible build, pin the base image by digest: --build-arg PYTHON=python@sha256:...
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/espalier
COPY LICENSE README.md constraints.txt pyproject.toml ./
COPY coordinator coordinator
COPY edge_agent edge_agent
COPY espalier espalier
COPY export export
COPY federated federated
COPY models models
RUN /opt/espalier/bin/pip install --constraint constraints.txt ".[serve,secure]" pillow

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
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=2m CMD ["sh", "-c", "test -n \"$(find /tmp/alive -mmin -2)\""]
ENTRYPOINT ["edge-agent"]
CMD ["infer", "--store", "/var/lib/espalier/models"]
