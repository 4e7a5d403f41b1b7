# Three images from one file:
#
#   docker build --target controlplane -t weir .            the control plane and command line
#   docker build --target filter       -t weir-filter .     only /plugin.wasm, as Istio and Envoy Gateway fetch it
#   docker build --target envoy        -t weir-envoy .      Envoy with the filter and envoy.yaml

FROM golang:1.26-bookworm AS source
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download

FROM source AS build-controlplane
ARG VERSION=dev
COPY . .
RUN CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /weir .

# The compiler comes first, in layers that a change of the filter does not touch.
FROM source AS build-filter
ENV WEIR_CACHE=/var/cache/weir
COPY wasm-build.sh ./
COPY tools/setup.sh tools/requirements.txt ./tools/
COPY tools/tinygo ./tools/tinygo
RUN ./wasm-build.sh --compiler-only
COPY . .
RUN ./wasm-build.sh -o /plugin.wasm

FROM scratch AS filter
COPY --from=build-filter /plugin.wasm ./

FROM envoyproxy/envoy:v1.40.0 AS envoy
COPY --from=build-filter /plugin.wasm /etc/envoy/weir.wasm
COPY envoy.yaml /etc/envoy/envoy.yaml

# Alpine rather than scratch for the health check and for a shell to look around in.
FROM alpine:3.22 AS controlplane
RUN adduser -D -H -u 65532 weir && install -d -o weir /var/lib/weir
COPY --from=build-controlplane /weir /usr/local/bin/weir
USER weir
# Orchestrators take an address away while the process ends: it serves those that still call it.
ENV WEIR_LISTEN=0.0.0.0:8080 WEIR_DATA_DIR=/var/lib/weir WEIR_DRAIN=2s
VOLUME /var/lib/weir
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s CMD ["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8080/readyz"]
ENTRYPOINT ["weir"]
CMD ["serve"]
