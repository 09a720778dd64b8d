# docker build -t tidegate .
# docker run --rm -p 8080:8080 -p 8081:8081 tidegate

FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --profile dist --features jemalloc --locked --bin tidegate

FROM debian:bookworm-slim
RUN useradd --system --no-create-home --shell /usr/sbin/nologin tidegate
COPY --from=build /src/target/dist/tidegate /usr/local/bin/tidegate
# Under these names it is what envoyproxy/ratelimit's image has there, and reads its environment.
RUN ln -s /usr/local/bin/tidegate /bin/ratelimit \
 && ln -s /usr/local/bin/tidegate /bin/ratelimit_config_check
COPY --from=build /src/LICENSE-APACHE /src/LICENSE-MIT /usr/share/doc/tidegate/
# Paths in cluster.toml are relative to it: rules/ beside it, pki/ too when it is mounted.
COPY --from=build /src/cluster.toml /etc/tidegate/cluster.toml
COPY --from=build /src/rules /etc/tidegate/rules
# HTTP and gRPC have to be reachable from outside the container; as /bin/ratelimit they are anyway.
# The admin listener has no password without admin.token_file, and stays inside; set TIDEGATE_ADMIN__LISTEN to open it. /readyz and
# /metrics are on 8080 as well.
RUN sed -i -E 's/^listen = "127\.0\.0\.1:(8080|8081)"/listen = "0.0.0.0:\1"/' /etc/tidegate/cluster.toml
USER tidegate
WORKDIR /etc/tidegate

# HTTP, gRPC, admin, debug (as /bin/ratelimit), mesh.
EXPOSE 8080/tcp 8081/tcp 8082/tcp 6070/tcp 7600/udp

# SIGTERM drains: no new connections, requests in flight are answered, then the mesh is left.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=5s \
    CMD ["/bin/bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/${PORT:-8080} && printf 'GET /healthcheck HTTP/1.0\\r\\n\\r\\n' >&3 && grep -qm1 ' 200 ' <&3"]
ENTRYPOINT ["/usr/local/bin/tidegate"]
CMD ["serve", "--config", "/etc/tidegate/cluster.toml"]
