# Any builder that knows BUILDPLATFORM can build this: docker, podman, kaniko.
#
#   docker build --target sidecar --build-arg VERSION=v0.1.0 -t tandem/sidecar:v0.1.0 .
#
# One target for each command: epp, sidecar, batch, sim, tandem. sidecar-nixl is the sidecar with what it needs to hold and release
# KV itself (--keeper=/keeper). e2e/image holds what it has to be, builds it without a container engine, and runs
# what comes out. Where supply chains matter, add the digests of the builders' images to their tags.
ARG GO_VERSION=1.26.8
ARG PYTHON_VERSION=3.13.7

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

# keeper opens a library that is not Go, so it is linked where it could run: for another architecture the builder has to
# emulate that. The shared libraries are those of the system that it was linked on; for names and users it needs none.
FROM golang:${GO_VERSION} AS build-nixl
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION
RUN CGO_ENABLED=1 go build -trimpath -tags nixl,netgo,osusergo \
      -ldflags "-s -w -X github.com/tandem-serving/tandem/cmd/internal/boot.version=${VERSION}" \
      -o /out/ ./cmd/keeper
RUN mkdir -p /out/root/lib && \
    for lib in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 \
        libgcc_s.so.1 libstdc++.so.6 libz.so.1 libssl.so.3 libcrypto.so.3; do \
      cp --dereference "$(gcc -print-file-name=$lib)" /out/root/lib/ || exit 1; \
    done && \
    loader=$(readelf --program-headers --wide /out/keeper | sed -n 's/.*interpreter: \(.*\)]/\1/p') && \
    cp --dereference --parents "$loader" /out/root/

# NIXL's library comes out of its wheel, which pip fetches by version and hash, and UCX is all that it is to work with. The
# licences of what is in there come along: read them before you pass on an image with it.
FROM --platform=$BUILDPLATFORM python:${PYTHON_VERSION}-slim AS wheel
WORKDIR /wheel
COPY cmd/keeper/nixl.txt ./
ARG TARGETARCH
RUN arch=$(echo "$TARGETARCH" | sed 's/amd64/x86_64/; s/arm64/aarch64/') && \
    python3 -m pip download --no-cache-dir --require-hashes --no-deps --only-binary :all: --python-version 311 \
      --platform "manylinux_2_28_$arch" --dest . --requirement nixl.txt
RUN python3 -m zipfile -e *.whl whole && mkdir -p /out/nixl && \
    mv whole/.nixl_cu12.mesonpy.libs whole/nixl_cu12.libs whole/nixl_cu12-*.dist-info/licenses /out/nixl/ && \
    rm -r /out/nixl/nixl_cu12.libs/nixl && \
    find /out/nixl/.nixl_cu12.mesonpy.libs/plugins -type f ! -name libplugin_UCX.so -delete

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

FROM base AS sidecar-nixl
LABEL org.opencontainers.image.title="tandem sidecar with NIXL" \
      org.opencontainers.image.description="Routing sidecar that tells prefill engines itself, over NIXL, what becomes of their KV"
COPY --from=build /out/sidecar /sidecar
COPY --from=build-nixl /out/keeper /keeper
# For trials with simulated engines, which speak TCP.
COPY --from=build /out/keeper /keeper-sim
COPY --from=build-nixl /out/root/ /
COPY --from=wheel /out/nixl/ /nixl/
# TCP reaches engines in other pods, and needs no device. Where engines have none, give it what they have in UCX_TLS.
ENV TANDEM_NIXL_LIB=/nixl/.nixl_cu12.mesonpy.libs UCX_TLS=tcp
EXPOSE 8000 9095
ENTRYPOINT ["/sidecar"]

FROM base AS batch
LABEL org.opencontainers.image.title="tandem batch" \
      org.opencontainers.image.description="OpenAI Batch API on capacity that online traffic leaves"
COPY --from=build /out/batch /batch
# API; metrics and probes, with --host=0.0.0.0. --data names a volume that user 65532 may write to.
EXPOSE 8085 9097
ENTRYPOINT ["/batch"]

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
