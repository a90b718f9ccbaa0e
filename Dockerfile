# syntax=docker/dockerfile:1
# keylane in an image: what tools/image_build.sh installs, and nothing of what it needed for that.
#   docker build -t keylane .
#   docker run --read-only --tmpfs /tmp -p 19092-19095:19092-19095 keylane proxy \
#     --bootstrap kafka:9092 --listen 0.0.0.0:19092 --advertise localhost --control 127.0.0.1:19090
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /source
COPY . .
# git and a compiler are not needed: all dependencies come as wheels.
RUN tools/image_build.sh /opt/keylane

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="keylane" \
      org.opencontainers.image.description="More working consumers than partitions on Apache Kafka" \
      org.opencontainers.image.licenses="Apache-2.0"
# The same path as at the build: a virtual environment cannot be moved.
COPY --from=build /opt/keylane /opt/keylane
RUN groupadd --gid 10001 keylane \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin keylane
USER 10001:10001
ENV PATH=/opt/keylane/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /tmp
# The control port on its default; Kubernetes has probes of its own and ignores this.
ENV KEYLANE_HEALTH=http://127.0.0.1:19090/readyz
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["/opt/keylane/venv/bin/python", "-c", "import os, urllib.request; urllib.request.urlopen(os.environ['KEYLANE_HEALTH'], timeout=4)"]
EXPOSE 19092 19090
# SIGTERM drains: requests under way are answered, offsets are saved.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/keylane/bin/keylane"]
CMD ["proxy", "--config", "/etc/keylane/keylane.yaml"]
