# docker build -t tidegate .
# docker run --rm -p 8080:8080 -p 8081:8081 tidegate

FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin tidegate

FROM debian:bookworm-slim
RUN useradd --system --no-create-home --shell /usr/sbin/nologin tidegate
COPY --from=build /src/target/release/tidegate /usr/local/bin/tidegate
# Under these names it is what envoyproxy/ratelimit's image has there, and reads its environment.
RUN ln -s /usr/local/bin/tidegate /bin/ratelimit \
 && ln -s /usr/local/bin/tidegate /bin/ratelimit_config_check
COPY --from=build /src/LICENSE-APACHE /src/LICENSE-MIT /usr/share/doc/tidegate/
# Paths in cluster.toml are relative to it: rules/ beside it, pki/ too when it is mounted.
COPY --from=build /src/cluster.toml /etc/tidegate/cluster.toml
COPY --from=build /src/rules /etc/tidegate/rules
USER tidegate
WORKDIR /etc/tidegate

# The front doors have to be reachable from outside the container. The admin door has no password
# and stays inside; set TIDEGATE_ADMIN__LISTEN to open it. /readyz and /metrics are on 8080 as well.
ENV TIDEGATE_HTTP__LISTEN=0.0.0.0:8080 \
    TIDEGATE_GRPC__LISTEN=0.0.0.0:8081
# HTTP, gRPC, admin, debug (as /bin/ratelimit), mesh.
EXPOSE 8080/tcp 8081/tcp 8082/tcp 6070/tcp 7600/udp

# SIGTERM drains: no new connections, requests in flight are answered, then the mesh is left.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=5s \
    CMD ["/usr/local/bin/tidegate", "status", "--json"]
ENTRYPOINT ["/usr/local/bin/tidegate"]
CMD ["serve", "--config", "/etc/tidegate/cluster.toml"]
