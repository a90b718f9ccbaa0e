# keylane in an image: what tools/image_build.sh installs, without the tools of the build.
#   make base-digest    # once, and to renew it: writes requirements/base-image.txt
#   docker build --build-arg PYTHON_IMAGE="$(cat requirements/base-image.txt)" -t keylane .
#   docker run --read-only --tmpfs /tmp -p 19092-19095:19092-19095 keylane proxy \
#     --bootstrap kafka:9092 --listen 0.0.0.0:19092 --advertise localhost --control 127.0.0.1:19090
# A Python of 3.11 or newer on Debian, by its digest: a tag can be another image tomorrow. There is
# no default, and no frontend of BuildKit is named, which would be fetched by a tag as well.
ARG PYTHON_IMAGE

FROM ${PYTHON_IMAGE} AS build
ARG PYTHON_IMAGE
RUN case "$PYTHON_IMAGE" in *@sha256:*) ;; *) \
    echo "PYTHON_IMAGE=$PYTHON_IMAGE has no digest (NAME:TAG@sha256:...)" >&2; exit 1 ;; esac
WORKDIR /source
COPY . .
# git and a compiler are not needed: all dependencies come as wheels.
RUN tools/image_build.sh /opt/keylane

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="keylane" \
      org.opencontainers.image.description="More working consumers than partitions on Apache Kafka" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.url="https://keylane.invalid" \
      org.opencontainers.image.source="https://keylane.invalid/source"
# The same path as at the build: a virtual environment cannot be moved.
COPY --from=build /opt/keylane /opt/keylane
RUN groupadd --gid 10001 keylane \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin keylane
USER 10001:10001
ENV PATH=/opt/keylane/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /tmp
# The control port on its default; Kubernetes has its own probes and ignores this.
ENV KEYLANE_HEALTH=http://127.0.0.1:19090/readyz
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["/opt/keylane/venv/bin/python", "-c", "import os, urllib.request; urllib.request.urlopen(os.environ['KEYLANE_HEALTH'], timeout=4)"]
EXPOSE 19092 19090
# SIGTERM drains: requests in progress are answered, offsets are saved.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/keylane/bin/keylane"]
CMD ["proxy", "--config", "/etc/keylane/keylane.yaml"]
