# The image of tidegate: one program, which is linked with its libraries, and authorities of the web.
# It has no shell and no package system, and runs as user 65532.
#
#   docker build -t tidegate .
#   docker run --rm -p 8080:8080 -p 8081:8081 tidegate
#
# A program that is built already, below dist/ARCHITECTURE (amd64, arm64), is taken as it is, so that
# an image for several architectures needs no emulated compiler:
#
#   docker buildx build --platform linux/amd64,linux/arm64 -t tidegate .

# Any Debian 12 with a Rust toolchain and ca-certificates; without a toolchain where dist/ has a program.
ARG BUILDER=rust:1-bookworm
FROM ${BUILDER} AS build
ARG TARGETARCH=amd64
WORKDIR /src
COPY . .
RUN scripts/image-files "dist/$TARGETARCH/tidegate" /image && mkdir -p /state/tidegate

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="tidegate" \
      org.opencontainers.image.description="A distributed rate limiter without a central store" \
      org.opencontainers.image.documentation="https://docs.rs/tidegate" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
COPY --from=build /image /
# For a volume: the cluster map, and counts of long windows (TIDEGATE_NODE__DATA_DIR).
COPY --from=build --chown=65532:65532 /state /var/lib
USER 65532:65532
WORKDIR /etc/tidegate

# HTTP, gRPC, admin, debug (as /bin/ratelimit), mesh.
EXPOSE 8080/tcp 8081/tcp 8082/tcp 6070/tcp 7600/udp

# SIGTERM drains: no new connections, requests in flight are answered, then the mesh is left. Docker
# kills after 10 s, unless `docker stop --time 90` or `stop_grace_period` says otherwise.
STOPSIGNAL SIGTERM
# Of the HTTP listener, which /bin/ratelimit has too; where it has another port, override this.
HEALTHCHECK --interval=10s --timeout=6s --start-period=10s \
    CMD ["/usr/bin/tidegate", "healthcheck", "--url", "http://127.0.0.1:8080"]
ENTRYPOINT ["/usr/bin/tidegate"]
CMD ["serve", "--config", "/etc/tidegate/cluster.toml"]
