# Any builder that knows BUILDPLATFORM can build this: docker, podman, kaniko.
#
#   docker build --target sidecar --build-arg VERSION=v0.1.0 -t tandem/sidecar:v0.1.0 .
#
# One target for each command: epp, sidecar, sim, tandem. dockerfile_test.go holds what it has to be, builds it without a
# container engine, and runs what comes out. Where supply chains matter, add the digest of the builder's image to its tag.
ARG GO_VERSION=1.26.8

FROM --platform=$BUILDPLATFORM golang:${GO_VERSION} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG VERSION
RUN CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} go build -trimpath \
      -ldflags "-s -w -X github.com/tandem-serving/tandem/cmd/internal/boot.version=${VERSION}" \
      -o /out/ ./cmd/...

# base is empty but for the certificates with which a collector or an engine
# is verified. The user is numeric, so that runAsNonRoot can be checked.
FROM scratch AS base
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
USER 65532:65532
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.vendor="Tandem" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/tandem-serving/tandem" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM base AS epp
LABEL org.opencontainers.image.title="tandem epp" \
      org.opencontainers.image.description="Endpoint picker for disaggregated prefill/decode serving"
COPY --from=build /out/epp /epp
# ext-proc and EDS; gRPC health; metrics and probes. The admin port stays on loopback.
EXPOSE 9002 9003 9090
ENTRYPOINT ["/epp"]

FROM base AS sidecar
LABEL org.opencontainers.image.title="tandem sidecar" \
      org.opencontainers.image.description="Routing sidecar for disaggregated prefill/decode serving"
COPY --from=build /out/sidecar /sidecar
# data port; metrics and probes. The admin port stays on loopback.
EXPOSE 8000 9095
ENTRYPOINT ["/sidecar"]

FROM base AS sim
LABEL org.opencontainers.image.title="tandem sim" \
      org.opencontainers.image.description="Simulated inference engine that moves real KV bytes"
COPY --from=build /out/sim /sim
# data port. The others are free ones unless they are chosen.
EXPOSE 8000
ENTRYPOINT ["/sim"]

FROM base AS tandem
LABEL org.opencontainers.image.title="tandem" \
      org.opencontainers.image.description="Tool to try, check and measure Tandem"
COPY --from=build /out/tandem /tandem
ENTRYPOINT ["/tandem"]
