# proxyfl in a container: as a program (`docker run proxyfl demo`), or as server and sites (compose.yaml).
# CPU by default; for CUDA: --build-arg TORCH="torch==2.13.0" --build-arg TORCH_INDEX=<an index with CUDA builds>
FROM python:3.11-slim AS build
ARG TORCH="torch==2.13.0"
ARG TORCH_INDEX=""
ARG EXTRAS="all"
WORKDIR /source
COPY constraints.txt ./
RUN python -m venv /opt/proxyfl \
 && /opt/proxyfl/bin/pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$TORCH"
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/proxyfl/bin/pip install --no-cache-dir -c constraints.txt ".[${EXTRAS}]"

FROM python:3.11-slim
RUN useradd --uid 10001 --create-home --home-dir /home/proxyfl proxyfl
COPY --from=build /opt/proxyfl /opt/proxyfl
ENV PATH=/opt/proxyfl/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PROXYFL_DATA=/data \
    PROXYFL_RUNS=/home/proxyfl/runs
# Everything that is written goes to /home/proxyfl and /tmp: the root file system may be read-only.
USER 10001
WORKDIR /home/proxyfl
VOLUME ["/home/proxyfl", "/data"]
ENTRYPOINT ["proxyfl"]
CMD ["--help"]
