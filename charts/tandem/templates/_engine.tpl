{{/*
The pods that serve the model. Prefill and decode are the same but for what their role says; templates of an
engine take (dict "root" $ "component" "prefill" "values" .Values.prefill).

A decode engine listens on loopback only: what reaches it has been through the sidecar, which takes out what an engine must
not see. Each data-parallel rank is an engine with a port of its own (8000 + rank, behind a sidecar 8200 + rank), with a
sidecar and a target port of the pool to itself.

An engine that spans several pods is a group: its leader serves for all of them, and is the same pod as that of an engine in one pod. What
differs in the other ones has "worker" true among the values of a template.
*/}}
{{- define "tandem.engine.workload" -}}
{{- if include "tandem.grouped" .values -}}
{{- include "tandem.engine.groups" . -}}
{{- else -}}
{{- include "tandem.engine.deployment" . -}}
{{- end -}}
{{- end -}}

{{- define "tandem.engine.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "tandem.component.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "tandem.labels" . | nindent 4 }}
spec:
  {{- if not .values.autoscaling.enabled }}
  replicas: {{ int .values.replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  # An engine that still loads is no failure.
  progressDeadlineSeconds: {{ add 600 (mul 60 (int .root.Values.engine.startupMinutes)) }}
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: {{ .values.rollout.maxSurge }}
      maxUnavailable: {{ .values.rollout.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "tandem.selectorLabels" . | nindent 6 }}
  template:
    {{- include "tandem.engine.template" . | nindent 4 }}
{{- end -}}

{{/* The controller of LeaderWorkerSets makes a headless Service of this name, by which the pods of a group find their leader. */}}
{{- define "tandem.engine.groups" -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: {{ include "tandem.component.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "tandem.labels" . | nindent 4 }}
  {{- with .values.group.topology }}
  annotations:
    leaderworkerset.sigs.k8s.io/exclusive-topology: {{ . }}
  {{- end }}
spec:
  {{- if not .values.autoscaling.enabled }}
  replicas: {{ int .values.replicas }}
  {{- end }}
  rolloutStrategy:
    type: RollingUpdate
    rollingUpdateConfiguration:
      maxSurge: {{ .values.rollout.maxSurge }}
      maxUnavailable: {{ .values.rollout.maxUnavailable }}
  startupPolicy: LeaderCreated   # a leader is not ready before its workers are there
  leaderWorkerTemplate:
    size: {{ int .values.group.size }}
    # An engine that has lost a part answers nothing, and cannot take it up again.
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      {{- include "tandem.engine.template" . | nindent 6 }}
    workerTemplate:
      {{- include "tandem.engine.template" (merge (dict "worker" true) .) | nindent 6 }}
{{- end -}}

{{/* The template of an engine's pods. */}}
{{- define "tandem.engine.template" -}}
metadata:
  labels:
    {{- include "tandem.podLabels" . | nindent 4 }}
  annotations:
    {{- include "tandem.engine.annotations" . | nindent 4 }}
spec:
  serviceAccountName: {{ include "tandem.engine.serviceAccountName" .root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "tandem.drain.grace" .root }}
  securityContext:
    {{- include "tandem.podSecurity" (dict "user" .root.Values.engine.runAsUser) | nindent 4 }}
    {{- if or .root.Values.model.cache.claimName .root.Values.engine.sharedStorage.claimName .root.Values.encoder.sharedStorage.claimName }}
    fsGroup: {{ int .root.Values.engine.runAsUser }}
    fsGroupChangePolicy: OnRootMismatch   # a claim full of weights would be walked at every start
    {{- end }}
  {{- with include "tandem.placement" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  initContainers:
    {{- include "tandem.tools.container" .root | nindent 4 }}
    {{- with .values.initContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if and (eq .component "decode") (not .worker) }}
    {{- range $rank := until (include "tandem.ports" .values | int) }}
    {{- include "tandem.sidecar.container" (dict "root" $.root "rank" $rank) | nindent 4 }}
    {{- end }}
    {{- end }}
  containers:
    {{- include "tandem.engine.container" . | nindent 4 }}
  volumes:
    {{- include "tandem.engine.volumes" . | trim | nindent 4 }}
{{- end -}}

{{/* The Service of the ready pods of a role: (dict "root" $ "component" "prefill"). A group's leader serves for all of its pods. */}}
{{- define "tandem.engine.serviceName" -}}
{{ include "tandem.component.name" . }}{{ if include "tandem.grouped" (index .root.Values .component) }}-leaders{{ end }}
{{- end -}}

{{/* Addresses of the ready pods of a role, by name. */}}
{{- define "tandem.engine.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "tandem.engine.serviceName" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "tandem.labels" . | nindent 4 }}
spec:
  clusterIP: None
  selector:
    {{- include "tandem.selectorLabels" . | nindent 4 }}
    {{- if include "tandem.grouped" .values }}
    llm-d.ai/inference-serving: "true"   # leaders
    {{- end }}
  ports:
    - {name: http, port: 8000, targetPort: 8000}
{{- end -}}

{{/* Names the target ports of a role that has fewer ranks than the pool has target ports. */}}
{{- define "tandem.engine.annotations" -}}
{{- $own := dict "kubectl.kubernetes.io/default-container" "engine" -}}
{{- $ranks := include "tandem.ports" .values | int -}}
{{- if and (lt $ranks (int (include "tandem.ranks" .root))) (not .worker) -}}
{{- $_ := set $own "llm-d.ai/active-ports" (include "tandem.portsText" $ranks) -}}
{{- end -}}
{{- if eq .root.Values.engine.type "trtllm" -}}
{{- $_ := set $own "checksum/config" (include "tandem.engine.trtllm.config" . | sha256sum) -}}
{{- end -}}
{{- merge $own .values.podAnnotations | toYaml -}}
{{- end -}}

{{- define "tandem.engine.serviceAccountName" -}}
{{- default (include "tandem.component.name" (dict "root" . "component" "engine")) .Values.engine.serviceAccountName -}}
{{- end -}}

{{/* Puts the tandem tool where the engine's preStop hook can run it: engines' images do not have it. */}}
{{- define "tandem.tools.container" -}}
- name: tools
  {{- include "tandem.container.image" (dict "root" . "image" .Values.tools.image "name" "tandem") | nindent 2 }}
  args: [drain, --install=/tools]   # /tandem is this image's program
  securityContext:
    {{- include "tandem.containerSecurity" . | nindent 4 }}
  resources:
    requests: {cpu: 10m, memory: 32Mi}
    limits: {memory: 128Mi}
  volumeMounts:
    - {name: tools, mountPath: /tools}
{{- end -}}

{{/*
The sidecar of one rank. restartPolicy makes it a native sidecar: it starts before the engine, whose health it reports as its
readiness, and is told to stop after the engine has ended.
*/}}
{{- define "tandem.sidecar.container" -}}
{{- $values := .root.Values -}}
{{- $suffix := ternary "" (printf "-%d" .rank) (eq .rank 0) -}}
{{- $metrics := add 9095 (mul 2 .rank) -}}
- name: sidecar{{ $suffix }}
  {{- $plain := dict "image" $values.sidecar.image "name" "sidecar" }}
  {{- $withKeeper := dict "image" $values.sidecar.keeper.image "name" "sidecar-nixl" }}
  {{- $image := ternary $withKeeper $plain $values.sidecar.keeper.enabled }}
  {{- include "tandem.container.image" (merge (dict "root" .root) $image) | nindent 2 }}
  restartPolicy: Always
  args:
    - --port={{ add 8000 .rank }}
    - --model-server-port={{ add 8200 .rank }}
    - --metrics-port={{ $metrics }}
    - --admin-address=127.0.0.1:{{ add 1 $metrics }}
    {{- include "tandem.sidecar.args" .root | trim | nindent 4 }}
  {{- with include "tandem.sidecar.env" .root | trim }}
  env:
    {{- . | nindent 4 }}
  {{- end }}
  ports:
    - {name: http{{ $suffix }}, containerPort: {{ add 8000 .rank }}}
    - {name: metrics{{ $suffix }}, containerPort: {{ $metrics }}}
  startupProbe:
    httpGet: {path: /livez, port: {{ $metrics }}}
    periodSeconds: 1
    failureThreshold: 60
  readinessProbe:
    httpGet: {path: /readyz, port: {{ $metrics }}}
    periodSeconds: 5
    timeoutSeconds: 2
    failureThreshold: 2
  livenessProbe:
    httpGet: {path: /livez, port: {{ $metrics }}}
    periodSeconds: 10
    timeoutSeconds: 2
  securityContext:
    runAsUser: 65532
    runAsGroup: 65532
    {{- include "tandem.containerSecurity" . | nindent 4 }}
  resources:
    {{- include "tandem.sidecar.resources" $values.sidecar | nindent 4 }}
  {{- with include "tandem.sidecar.mounts" $values | trim }}
  volumeMounts:
    {{- . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Flags that all sidecars of the release share. */}}
{{- define "tandem.sidecar.args" -}}
{{- $sidecar := .Values.sidecar -}}
- --kv-connector={{ include "tandem.connector" . }}
{{- with .Values.encoder }}{{ if .connector }}
- --ec-connector={{ .connector }}
- --encode-timeout={{ int .timeoutSeconds }}s
{{- if .references }}
- --encoder-references
{{- end }}
{{- end }}{{ end }}
{{- if eq (include "tandem.connector" .) "mooncake" }}
- --mooncake-bootstrap-port={{ int .Values.engine.bootstrapPort }}
{{- else if eq (include "tandem.connector" .) "moriio" }}
- --moriio-write-mode
- --moriio-tp-size={{ int .Values.prefill.parallelism.tensor }}
- --moriio-local-pod-ip=$(POD_IP)
{{- else if eq (include "tandem.connector" .) "offloading" }}
- --p2p-connector-port={{ int .Values.engine.peerPort }}
{{- end }}
{{- if $sidecar.readBack }}
- --read-back
{{- end }}
- --prefill-timeout={{ int $sidecar.prefillTimeoutSeconds }}s
- --first-event-timeout={{ int $sidecar.firstEventTimeoutSeconds }}s
{{- with $sidecar.slowRequestSeconds }}
- --slow-request={{ int . }}s
{{- end }}
{{- if $sidecar.tellPods }}
- --tell-pods
{{- end }}
- {{ printf "--prefill-allow=%s" (include "tandem.sidecar.allow" .) | quote }}
{{- if include "tandem.sidecar.meets" . }}
- --prefill-discovery=dns://{{ include "tandem.engine.serviceName" (dict "root" . "component" "prefill") }}:8000
{{- end }}
{{- if $sidecar.warmUp }}
- --warm-up
{{- end }}
{{- include "tandem.sidecar.keeperArgs" . }}
- --lease={{ int .Values.engine.leaseSeconds }}s
- --prefill-block-size={{ int .Values.engine.blockSize }}
- --drain-timeout={{ include "tandem.drain.sidecar" . }}s
{{- with $sidecar.continuation }}{{ if .times }}
- --continue-times={{ int .times }}
- --continue-discovery=dns://{{ include "tandem.engine.serviceName" (dict "root" $ "component" "decode") }}:8000
{{- if .onPrefill }}
- --continue-on-prefill
{{- end }}
- --evacuate-timeout={{ include "tandem.drain.full" $ }}s
{{- end }}{{ end }}
- --body-limit={{ .Values.epp.bodyLimit }}
- --pd-header={{ ternary "on" "off" .Values.epp.pdHeader }}
{{- if .Values.epp.authSecret }}
- --auth-file=/etc/tandem/auth/secret
{{- end }}
{{- if .Values.tls.sidecarSecret }}
- --secure-serving
- --cert-path=/etc/tandem/tls
{{- end }}
{{- if .Values.tls.clients.caConfigMap }}
- --client-ca=/etc/tandem/clients-ca/ca.crt
{{- end }}
{{- if .Values.tls.prefill.secret }}
- --prefill-tls
{{- if not .Values.tls.prefill.caConfigMap }}
- --prefill-tls-insecure-skip-verify
{{- end }}
{{- if .Values.tls.clients.sidecarSecret }}
- --engine-client-cert=/etc/tandem/client
{{- end }}
{{- end }}
- --log-level={{ $sidecar.logLevel }}
- --log-format=json
{{- range $sidecar.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Whether sidecars look for prefill pods, to connect to them before traffic does. */}}
{{- define "tandem.sidecar.meets" -}}
{{- if or .Values.sidecar.keeper.enabled .Values.sidecar.warmUp }}true{{ end -}}
{{- end -}}

{{/* Simulated engines speak TCP instead of NIXL, and the image has a program of its own for that. */}}
{{- define "tandem.sidecar.keeperArgs" -}}
{{- with .Values.sidecar.keeper }}{{ if .enabled }}
{{- if eq $.Values.engine.type "sim" }}
- --keeper=/keeper-sim
- --keeper-transport=tcp
{{- else }}
- --keeper=/keeper
- --keeper-transport=nixl
{{- end }}
{{- with .library }}
- {{ printf "--keeper-library=%s" . | quote }}
{{- end }}
- --side-channel-port={{ int $.Values.engine.sideChannelPort }}
{{- end }}{{ end }}
{{- end -}}

{{/* The library takes 35 MB (measured), in addition to the sidecar, whose garbage collector's limit (goEnv) stays the same. */}}
{{- define "tandem.sidecar.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- if .keeper.enabled -}}
{{- range $kind := list "requests" "limits" -}}
{{- with dig $kind "memory" "" $resources -}}
{{- $more := include "tandem.mebibytes" . | float64 | addf 64 | ceil | int -}}
{{- $_ := set (index $resources $kind) "memory" (printf "%dMi" $more) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/*
Where prefill legs may go: as the values say, else the usual ranges of pods, at the prefill engines' ports. The legs of streams that go
on elsewhere go to the sidecars of other decode pods, too.
*/}}
{{- define "tandem.sidecar.allow" -}}
{{- $allow := .Values.sidecar.prefillAllow -}}
{{- if not $allow -}}
{{- $ranks := ternary (include "tandem.ranks" .) (include "tandem.ports" .Values.prefill) (gt (int .Values.sidecar.continuation.times) 0) -}}
{{- range $rank := until (int $ranks) -}}
{{- range list "10.0.0.0/8" "172.16.0.0/12" "192.168.0.0/16" "100.64.0.0/10" "[fc00::/7]" -}}
{{- $allow = append $allow (printf "%s:%d" . (add 8000 $rank)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- join "," $allow -}}
{{- end -}}

{{- define "tandem.sidecar.env" -}}
{{- include "tandem.goEnv" .Values.sidecar.resources }}
{{- if or (eq (include "tandem.connector" .) "moriio") .Values.sidecar.readBack }}
{{ include "tandem.engine.podIP" . }}
{{- end }}
{{- if .Values.tls.prefill.caConfigMap }}
# Trusted beside the authorities of the image.
- {name: SSL_CERT_DIR, value: /etc/tandem/prefill-ca}
{{- end }}
{{- include "tandem.otelEnv" . }}
{{- if .Values.sidecar.keeper.enabled }}{{ with .Values.sidecar.keeper.env }}
{{ toYaml . }}
{{- end }}{{ end }}
{{- end -}}

{{/* Takes the values. */}}
{{- define "tandem.sidecar.mounts" -}}
{{- if .epp.authSecret }}
- {name: auth, mountPath: /etc/tandem/auth, readOnly: true}
{{- end }}
{{- if .tls.sidecarSecret }}
- {name: sidecar-tls, mountPath: /etc/tandem/tls, readOnly: true}
{{- end }}
{{- if .tls.prefill.caConfigMap }}
- {name: prefill-ca, mountPath: /etc/tandem/prefill-ca, readOnly: true}
{{- end }}
{{- if .tls.clients.caConfigMap }}
- {name: clients-ca, mountPath: /etc/tandem/clients-ca, readOnly: true}
{{- end }}
{{- if .tls.clients.sidecarSecret }}
- {name: client-tls, mountPath: /etc/tandem/client, readOnly: true}
{{- end }}
{{- end -}}

{{- define "tandem.engine.container" -}}
{{- $engine := .root.Values.engine -}}
{{- $sim := eq $engine.type "sim" -}}
{{- $connector := include "tandem.connector" .root -}}
{{- $base := ternary 8200 8000 (eq .component "decode") -}}
- name: engine
  {{- $own := $engine.image }}
  {{- with .values.image }}
  {{- $own = dict "repository" (default $own.repository .repository) "tag" (default $own.tag .tag) "digest" .digest "pullPolicy" $own.pullPolicy }}
  {{- end }}
  {{- $image := ternary (dict "image" .root.Values.sim.image "name" "sim") (dict "image" $own) $sim }}
  {{- include "tandem.container.image" (merge (dict "root" .root) $image) | nindent 2 }}
  {{- if eq $engine.type "vllm" }}
  command: [vllm, serve]
  {{- else if eq $engine.type "sglang" }}
  command: [python3, -m, sglang.launch_server]
  {{- else if eq $engine.type "trtllm" }}
  command: [trtllm-serve, serve]
  {{- end }}
  args:
    {{- include (print "tandem.engine.args." $engine.type) . | trim | nindent 4 }}
    {{- range concat (ternary .root.Values.sim.args list $sim) $engine.args .values.args }}
    - {{ . | quote }}
    {{- end }}
  env:
    {{- include (print "tandem.engine.env." $engine.type) . | trim | nindent 4 }}
    {{- with concat $engine.env .values.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if .worker }}
  {{- include "tandem.engine.workerHook" . | nindent 2 }}
  {{- else }}
  ports:
    {{- range $rank := until (include "tandem.ports" .values | int) }}
    {{- $suffix := ternary "" (printf "-%d" $rank) (eq $rank 0) }}
    - {name: {{ ternary "engine" "http" (eq $.component "decode") }}{{ $suffix }}, containerPort: {{ add $base $rank }}}
    {{- if eq $.component "encode" }}
    {{- else if has $connector (list "sglang" "mooncake") }}
    {{- if eq $.component "prefill" }}
    - {name: bootstrap, containerPort: {{ int $engine.bootstrapPort }}}
    {{- end }}
    {{- else if eq $connector "moriio" }}
    - {name: handshake, containerPort: 6301}
    - {name: notify, containerPort: 61005}
    {{- else if eq $connector "offloading" }}
    - {name: peers{{ $suffix }}, containerPort: {{ add $engine.peerPort $rank }}}
    {{- else if and (include "tandem.leased" $.root) (or (not $sim) (eq $.component "prefill")) }}
    - {name: side-channel{{ $suffix }}, containerPort: {{ add $engine.sideChannelPort $rank }}}
    {{- end }}
    {{- end }}
  {{- include "tandem.engine.probes" . | nindent 2 }}
  lifecycle:
    preStop:
      exec:
        command: {{ include "tandem.engine.preStop" . }}
  {{- end }}
  securityContext:
    {{- include "tandem.containerSecurity" . | nindent 4 }}
    {{- if .values.rdma.ipcLock }}
      add: [IPC_LOCK]
    # Another user's process loses what is added when it is executed: Kubernetes has no ambient capabilities.
    runAsUser: 0
    runAsNonRoot: false
    {{- end }}
  resources:
    {{- include "tandem.engine.resources" . | nindent 4 }}
  volumeMounts:
    {{- include "tandem.engine.mounts" . | trim | nindent 4 }}
{{- end -}}

{{/*
vLLM's arguments without the user's. Two engines compare the model's string before a hand-off, so it is the same in both roles. A decode engine that cannot read a KV cache computes it (recompute) instead of failing the request.
*/}}
{{- define "tandem.engine.args.vllm" -}}
{{- $values := .root.Values -}}
{{- $engine := $values.engine -}}
{{- $decode := eq .component "decode" -}}
- {{ include "tandem.model.path" $values | quote }}
- --served-model-name={{ $values.model.name }}
{{- if $decode }}
- --host=127.0.0.1
{{- end }}
- --port={{ ternary 8200 8000 $decode }}
- --tensor-parallel-size={{ int .values.parallelism.tensor }}
{{- if include "tandem.grouped" .values }}
{{- with int .values.parallelism.data }}{{ if gt . 1 }}
- --data-parallel-size={{ . }}
{{- end }}{{ end }}
# The controller of LeaderWorkerSets sets the variables.
- --nnodes={{ int .values.group.size }}
- --node-rank=$(LWS_WORKER_INDEX)
- --master-addr=$(LWS_LEADER_ADDRESS)
{{- if .worker }}
- --headless
{{- end }}
{{- else }}{{ with int .values.parallelism.data }}{{ if gt . 1 }}
- --data-parallel-size={{ . }}
- --data-parallel-size-local={{ . }}
- --data-parallel-multi-port-external-lb
- --data-parallel-supervisor-port={{ include "tandem.engine.supervisorPort" $ }}
{{- end }}{{ end }}{{ end }}
- --block-size={{ int $engine.blockSize }}
- --kv-cache-dtype={{ $engine.kvCacheDtype }}
{{- with int64 $engine.maxModelLen }}
- --max-model-len={{ . }}
{{- end }}
{{- if ne .component "encode" }}
- --kv-transfer-config={{ include "tandem.engine.vllm.transfer" . }}
{{- end }}
{{- if $values.encoder.connector }}
{{- $encodings := dict "ec_connector" "ECExampleConnector" "ec_role" (ternary "ec_producer" "ec_consumer" (eq .component "encode"))
      "ec_connector_extra_config" (dict "shared_storage_path" "/encodings") }}
- --ec-transfer-config={{ toJson $encodings }}
{{- end }}
{{- if and (include "tandem.files" .root) (ne .component "encode") }}
# The connector that stores files knows one kind of cache. With longer prompts than a step, or a prompt that is in the engine's own
# cache but for its last token, it ends the engine that reads it.
- --disable-hybrid-kv-cache-manager
- --no-enable-prefix-caching
- --max-num-batched-tokens={{ int64 $engine.maxModelLen }}
{{- end }}
- --enable-prompt-tokens-details
- --shutdown-timeout={{ include "tandem.drain.engine" .root }}
# Pickers read the metrics page several times a second, and each would be a line in the log.
- --disable-uvicorn-access-log
{{- if and (not $decode) $values.tls.prefill.secret }}
- --ssl-certfile=/etc/tandem/tls/tls.crt
- --ssl-keyfile=/etc/tandem/tls/tls.key
- --enable-ssl-refresh
{{- end }}
{{- if and $values.tracing.engines $values.tracing.endpoint }}
- --otlp-traces-endpoint={{ include "tandem.tracing.url" .root }}
{{- end }}
{{- end -}}

{{/*
vLLM's configuration of hand-offs, as JSON. Roles are those of the connector: one that the engine does not have in it ends Mooncake's
engines. Engines with a shared folder too have both connectors, of which the first one that has the prompt is asked.
*/}}
{{- define "tandem.engine.vllm.transfer" -}}
{{- $engine := .root.Values.engine -}}
{{- $connector := include "tandem.connector" .root -}}
{{- $role := ternary "kv_consumer" "kv_producer" (eq .component "decode") -}}
{{- $nixl := dict "kv_connector" (ternary "NixlPushConnector" "NixlConnector" (eq $connector "nixl-push")) "kv_role" $role
      "kv_connector_extra_config" (dict "kv_lease_duration" (int $engine.leaseSeconds)) -}}
{{- if and .root.Values.sidecar.readBack (ne .component "decode") -}}
{{- $_ := set $nixl.kv_connector_extra_config "bidirectional_kv_xfer" true -}}
{{- end -}}
{{- $files := dict "kv_connector" "ExampleConnector" "kv_role" "kv_both"
      "kv_connector_extra_config" (dict "shared_storage_path" "/kv") -}}
{{- $kv := $nixl -}}
{{- if eq $connector "shared-storage" -}}
{{- $kv = $files -}}
{{- else if eq $connector "mooncake" -}}
{{- $kv = dict "kv_connector" "MooncakeConnector" "kv_role" $role
      "kv_connector_extra_config" (dict "mooncake_protocol" (ternary "rdma" "tcp" (ne .values.rdma.resource ""))) -}}
{{- else if eq $connector "moriio" -}}
{{- /* The ports are those of llm-d's sidecars, and so the defaults of ours. */ -}}
{{- $kv = dict "kv_connector" "MoRIIOConnector" "kv_role" $role "kv_connector_extra_config" (dict
      "http_port" (ternary 8200 8000 (eq .component "decode")) "handshake_port" 6301 "notify_port" 61005) -}}
{{- else if eq $connector "offloading" -}}
{{- $kv = dict "kv_connector" "OffloadingConnector" "kv_role" "kv_both"
      "kv_connector_extra_config" (dict "spec_name" "TieringOffloadingSpec"
        "cpu_bytes_to_use" (include "tandem.mebibytes" $engine.offloadSize | float64 | mulf 1048576.0 | floor | int64)
        "secondary_tiers" (list (dict "type" "p2p"))) -}}
{{- else if include "tandem.files" .root -}}
{{- $kv = dict "kv_connector" "MultiConnector" "kv_role" "kv_both"
      "kv_connector_extra_config" (dict "connectors" (list $nixl $files)) -}}
{{- end -}}
{{- set $kv "kv_load_failure_policy" "recompute" | toJson -}}
{{- end -}}

{{/*
SGLang's arguments without the user's. It has no lease, and ends by itself once its requests have ended.
*/}}
{{- define "tandem.engine.args.sglang" -}}
{{- $values := .root.Values -}}
{{- $engine := $values.engine -}}
{{- $decode := eq .component "decode" -}}
- --model-path={{ include "tandem.model.path" $values }}
- --served-model-name={{ $values.model.name }}
- --host={{ ternary "127.0.0.1" "0.0.0.0" $decode }}
- --port={{ ternary 8200 8000 $decode }}
- --tp-size={{ int .values.parallelism.tensor }}
{{- if include "tandem.grouped" .values }}
# The controller of LeaderWorkerSets sets the variables.
- --nnodes={{ int .values.group.size }}
- --node-rank=$(LWS_WORKER_INDEX)
- --dist-init-addr=$(LWS_LEADER_ADDRESS):20000
{{- end }}
- --page-size={{ int $engine.blockSize }}
- --kv-cache-dtype={{ $engine.kvCacheDtype }}
{{- with int64 $engine.maxModelLen }}
- --context-length={{ . }}
{{- end }}
- --disaggregation-mode={{ .component }}
- --disaggregation-transfer-backend=nixl
{{- if not $decode }}
- --disaggregation-bootstrap-port={{ int $engine.bootstrapPort }}
{{- end }}
- --enable-metrics
- --enable-cache-report
{{- if and (not $decode) $values.tls.prefill.secret }}
- --ssl-certfile=/etc/tandem/tls/tls.crt
- --ssl-keyfile=/etc/tandem/tls/tls.key
- --enable-ssl-refresh
{{- end }}
{{- if and $values.tracing.engines $values.tracing.endpoint }}
- --enable-trace
- --otlp-traces-endpoint={{ include "tandem.tracing.url" .root | trimPrefix "http://" }}
{{- end }}
# One argument for each kind of page that is read several times a second, and would be a line in the log each time.
- --uvicorn-access-log-exclude-prefixes
- /metrics
- /v1/loads
- /ready
{{- end -}}

{{/*
TensorRT-LLM's arguments without the user's. It ends by itself once its requests have ended. No argument gives the model another name:
engines answer to every one.
*/}}
{{- define "tandem.engine.args.trtllm" -}}
{{- $values := .root.Values -}}
{{- $decode := eq .component "decode" -}}
- {{ include "tandem.model.path" $values | quote }}
- --host={{ ternary "127.0.0.1" "0.0.0.0" $decode }}
- --port={{ ternary 8200 8000 $decode }}
- --tensor_parallel_size={{ int .values.parallelism.tensor }}
{{- with int64 $values.engine.maxModelLen }}
- --max_seq_len={{ . }}
{{- end }}
- --extra_llm_api_options=/etc/tandem/engine/config.yaml
{{- if and $values.tracing.engines $values.tracing.endpoint }}
- --otlp_traces_endpoint={{ include "tandem.tracing.url" .root }}
{{- end }}
{{- end -}}

{{/*
What TensorRT-LLM takes by a file only, with the user's options. A context engine has no overlap scheduler, which does not know
requests that end after the first token. Without the statistics of iterations the metrics page has no load. Only the Python
transceiver names an endpoint where a generation engine finds the context engine before that has answered.

For so long a context engine keeps a KV cache that is not read, and a generation engine waits for one. If both engines get a request at
once, that includes the time in which the prompt waits and is computed.
*/}}
{{- define "tandem.engine.trtllm.config" -}}
{{- $values := .root.Values -}}
{{- $transceiver := dict "backend" "NIXL" "kv_transfer_timeout_ms" (mul 1000 (int $values.engine.leaseSeconds)) -}}
{{- if eq (include "tandem.connector" .root) "trtllm-generation-first" -}}
{{- $transceiver = dict "backend" "NIXL" "transceiver_runtime" "PYTHON"
      "kv_transfer_timeout_ms" (mul 1000 (int $values.sidecar.prefillTimeoutSeconds)) -}}
{{- end -}}
{{- $own := dict "cache_transceiver_config" $transceiver "return_perf_metrics" true "enable_iter_perf_stats" true
      "kv_cache_config" (dict "tokens_per_block" (int $values.engine.blockSize) "dtype" $values.engine.kvCacheDtype) -}}
{{- if eq .component "prefill" }}{{ $_ := set $own "disable_overlap_scheduler" true }}{{ end -}}
{{- mergeOverwrite (deepCopy $values.engine.options) (deepCopy .values.options) $own | toYaml -}}
{{- end -}}

{{/* The file, for engines that have one. */}}
{{- define "tandem.engine.configMap" -}}
{{- if eq .root.Values.engine.type "trtllm" }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "tandem.component.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "tandem.labels" . | nindent 4 }}
data:
  config.yaml: |
    {{- include "tandem.engine.trtllm.config" . | nindent 4 }}
{{- end }}
{{- end -}}

{{/* Port on which vLLM's data-parallel supervisor reports whether all ranks are healthy: vLLM's default. */}}
{{- define "tandem.engine.supervisorPort" -}}9256{{- end -}}

{{/* The model that the engine loads: a name, or a folder. Takes the values. */}}
{{- define "tandem.model.path" -}}
{{- if eq .model.source "hf" -}}
{{ .model.name }}
{{- else -}}
{{ printf "/model/%s" (index .model .model.source).path | clean }}
{{- end -}}
{{- end -}}

{{/* The simulated engine moves KV bytes over one port, in place of the side channel. */}}
{{- define "tandem.engine.args.sim" -}}
{{- $engine := .root.Values.engine -}}
{{- if eq .component "decode" -}}
- --host=127.0.0.1
- --port=8200
{{- else -}}
- --host=0.0.0.0
- --port=8000
- --side-channel-address=$(POD_IP):{{ int $engine.sideChannelPort }}
{{- end }}
- --role={{ .component }}
- --served-model-name={{ .root.Values.model.name }}
- --block-size={{ int $engine.blockSize }}
{{- with int64 $engine.maxModelLen }}
- --max-model-len={{ . }}
{{- end }}
- --kv-lease={{ int $engine.leaseSeconds }}s
{{- if eq (include "tandem.connector" .root) "nixl-push" }}
- --push
{{- end }}
{{- if and .root.Values.sidecar.readBack (ne .component "decode") }}
- --bidirectional
{{- end }}
- --kv-load-failure-policy=recompute
- --keep-alive={{ int $engine.keepAliveSeconds }}s
- --log-format=json
{{- end -}}

{{- define "tandem.engine.podIP" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end -}}

{{/*
The pages of a hand-off stay pinned for as long as one engine waits for the other, 300 s unless told otherwise. The engines' own
time must end a little before the sidecar's: a decode engine forgets a prefill engine that was restarted only when a request
has run into it.
*/}}
{{- define "tandem.engine.meetSeconds" -}}
{{- sub (int .Values.sidecar.prefillTimeoutSeconds) 5 | max 5 -}}
{{- end -}}

{{- define "tandem.engine.env.sglang" -}}
{{- $engine := .root.Values.engine -}}
{{- include "tandem.engine.podIP" . }}
- {name: SGLANG_HOST_IP, value: $(POD_IP)}
- {name: SGLANG_TIMEOUT_KEEP_ALIVE, value: {{ $engine.keepAliveSeconds | int | quote }}}
- {name: SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT, value: {{ include "tandem.engine.meetSeconds" .root | quote }}}
- {name: SGLANG_DISAGGREGATION_WAITING_TIMEOUT, value: {{ include "tandem.engine.meetSeconds" .root | quote }}}
# Sidecars name the legs of messages by a header, to have them aborted. They keep such headers of clients away.
- {name: SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES, value: "1"}
# A decode engine misses two of these until it knows that a prefill engine is gone; SGLang takes no less than 2 s.
- {name: SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL, value: "2"}
# A crashed engine otherwise accepts connections for a minute more, and answers nothing.
- {name: SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS, value: "0"}
{{- include "tandem.engine.env.files" (dict "root" .root "component" .component "user" "sglang") }}
{{- end -}}

{{- define "tandem.engine.env.trtllm" -}}
{{- include "tandem.engine.podIP" . }}
{{- include "tandem.engine.env.files" (dict "root" .root "component" .component "user" "trtllm") }}
{{- end -}}

{{- define "tandem.engine.env.sim" -}}
{{- include "tandem.engine.podIP" . -}}
{{- end -}}

{{- define "tandem.engine.env.vllm" -}}
{{- $engine := .root.Values.engine -}}
{{- $connector := include "tandem.connector" .root -}}
{{- include "tandem.engine.podIP" . }}
{{- if eq .component "encode" }}
{{- else if include "tandem.leased" .root }}
# localhost is vLLM's default, where no other pod can ask for a KV cache.
- {name: VLLM_NIXL_SIDE_CHANNEL_HOST, value: $(POD_IP)}
- {name: VLLM_NIXL_SIDE_CHANNEL_PORT, value: {{ $engine.sideChannelPort | int | quote }}}
{{- if include "tandem.grouped" .values }}
- {name: VLLM_HOST_IP, value: $(POD_IP)}
{{- end }}
{{- else if eq $connector "mooncake" }}
- {name: VLLM_HOST_IP, value: $(POD_IP)}
- {name: VLLM_MOONCAKE_BOOTSTRAP_PORT, value: {{ $engine.bootstrapPort | int | quote }}}
# Engines that wait for each other keep the blocks of a request for so long; vLLM's default is 480 s.
- {name: VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT, value: {{ .root.Values.sidecar.prefillTimeoutSeconds | int | quote }}}
{{- else if eq $connector "moriio" }}
- {name: VLLM_HOST_IP, value: $(POD_IP)}
{{- else if eq $connector "offloading" }}
- {name: VLLM_P2P_SIDE_CHANNEL_HOST, value: $(POD_IP)}
- {name: VLLM_P2P_SIDE_CHANNEL_PORT, value: {{ $engine.peerPort | int | quote }}}
# Blocks travel under the hashes of their tokens, which engines compute alike only from the same seed.
- {name: PYTHONHASHSEED, value: "0"}
{{- end }}
- {name: VLLM_HTTP_TIMEOUT_KEEP_ALIVE, value: {{ $engine.keepAliveSeconds | int | quote }}}
{{- include "tandem.engine.env.files" (dict "root" .root "component" .component "user" "vllm") }}
{{- with $engine.apiKeySecret }}
- name: VLLM_API_KEY
  valueFrom: {secretKeyRef: {name: {{ quote . }}, key: VLLM_API_KEY}}
{{- end }}
{{- end -}}

{{/* What the real engines read alike: (dict "root" $ "component" "prefill" "user" NAME). */}}
{{- define "tandem.engine.env.files" -}}
{{- $engine := .root.Values.engine }}
{{- with $engine.ucxTLS }}
- {name: UCX_TLS, value: {{ quote . }}}
{{- end }}
# All that is written goes to the volume: weights, compiled kernels, and what looks for a home. USER is asked for by name
# where the image has no entry for the number.
- {name: HOME, value: /cache}
- {name: USER, value: {{ .user }}}
- {name: XDG_CACHE_HOME, value: /cache}
- {name: HF_HOME, value: /cache/huggingface}
{{- with .root.Values.model.hf.tokenSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ quote . }}, key: HF_TOKEN}}
{{- end }}
{{- if ne .root.Values.model.source "hf" }}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- end }}
{{- if and .root.Values.tracing.engines .root.Values.tracing.endpoint }}
- {name: OTEL_SERVICE_NAME, value: {{ .user }}-{{ .component }}}
{{- include "tandem.otelEnv" .root }}
{{- end }}
{{- end -}}

{{/*
Probes. A decode engine is on loopback, so its probes go through its sidecar. The model is listed only once it is loaded, but
the list is behind the API key; /health is not, and vLLM serves nothing before the weights are there. For several ranks
vLLM's supervisor answers, which ends all when one dies; behind sidecars the readiness of each is that of its rank.

SGLang's /health has the engine generate a token, which takes a second and finds a scheduler that hangs; /ready does not.
TensorRT-LLM's /health fails once its executor has ended, and answers only when the model is loaded.

Kubelets have no certificate. With tls.clients the port of the sidecar's metrics passes their probes to the engine.
*/}}
{{- define "tandem.engine.probes" -}}
{{- $values := .root.Values -}}
{{- $decode := eq .component "decode" -}}
{{- $supervised := and (not $decode) (gt (include "tandem.ports" .values | int) 1) -}}
{{- $port := ternary (include "tandem.engine.supervisorPort" .) "8000" $supervised -}}
{{- $tls := ternary $values.tls.sidecarSecret $values.tls.prefill.secret $decode -}}
{{- $scheme := ternary "HTTPS" "HTTP" (ne $tls "") -}}
{{- $loaded := ternary "/health" "/v1/models" (or $supervised (ne $values.engine.apiKeySecret "")) -}}
{{- $sglang := eq $values.engine.type "sglang" -}}
{{- if $sglang }}{{ $loaded = "/ready" }}{{ end -}}
{{- if eq $values.engine.type "trtllm" }}{{ $loaded = "/health" }}{{ end -}}
{{- $live := "/health" -}}
{{- if and $decode $values.tls.clients.caConfigMap -}}
{{- $loaded = "/engine/readyz" -}}
{{- $live = "/engine/livez" -}}
{{- $port = "9095" -}}
{{- $scheme = "HTTP" -}}
{{- end -}}
startupProbe:
  httpGet: {path: {{ $loaded }}, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ mul 12 (int $values.engine.startupMinutes) }}
readinessProbe:
  httpGet: {path: {{ $loaded }}, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 2
# A minute: an engine that is busy with long prompts answers late, and loading it again takes longer than waiting.
livenessProbe:
  httpGet: {path: {{ $live }}, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: {{ ternary 20 10 $sglang }}
  timeoutSeconds: 5
  failureThreshold: {{ ternary 3 6 $sglang }}
{{- end -}}

{{/*
The command that delays SIGTERM while the engine has work: a prefill engine works until a decode engine has read all its
hand-offs, an encoder until it has no requests, a decode engine until its sidecar has no requests that need it: it has those streams leave that can go on elsewhere.
The shell of vLLM's image waits for all ranks at once.

No page of TensorRT-LLM tells whether it has work: its gauges are those of the last iteration. All requests of a decode engine come
through its sidecar, which counts them. A prefill engine gets the whole time.
*/}}
{{- define "tandem.engine.preStop" -}}
{{- $decode := eq .component "decode" -}}
{{- $silent := eq .root.Values.engine.type "trtllm" -}}
{{- $scheme := ternary "https://" "" (and (not $decode) (ne .root.Values.tls.prefill.secret "")) -}}
{{- $settle := printf "--settle=%ss" (include "tandem.drain.settle" .root) -}}
{{- $timeout := printf "--timeout=%ss" (include "tandem.drain.hook" .root) -}}
{{- $commands := list -}}
{{- range $rank := until (include "tandem.ports" .values | int) -}}
{{- $engine := printf "--engine=%s127.0.0.1:%d" $scheme (add (ternary 8200 8000 $decode) $rank) -}}
{{- $also := ternary (printf "--sidecar=127.0.0.1:%d" (add 9095 (mul 2 $rank))) "--handoffs" $decode -}}
{{- $command := list "/tandem/tandem" "drain" -}}
{{- if not $silent }}{{ $command = append $command $engine }}{{ end -}}
{{- if ne $.component "encode" }}{{ $command = append $command $also }}{{ end -}}
{{- if and $decode $.root.Values.sidecar.continuation.times -}}
{{- $command = append $command (printf "--evacuate=127.0.0.1:%d" (add 9096 (mul 2 $rank))) -}}
{{- end -}}
{{- $commands = append $commands (concat $command (list $settle $timeout)) -}}
{{- end -}}
{{- if and $silent (not $decode) -}}
{{- list "/bin/sleep" (include "tandem.drain.hook" .root) | toJson -}}
{{- else if eq (len $commands) 1 -}}
{{- first $commands | toJson -}}
{{- else -}}
{{- $lines := list -}}
{{- range $commands }}{{ $lines = append $lines (print (join " " .) " &") }}{{ end -}}
{{- list "/bin/sh" "-c" (print (join " " $lines) " wait") | toRawJson -}}
{{- end -}}
{{- end -}}

{{/*
The hook of a group's workers: the engine must not lose a part while the leader's requests run. A worker of vLLM ends at once when it is told
to. The leader is asked at the port that its own hook asks, or that passes what it asks.
*/}}
{{- define "tandem.engine.workerHook" -}}
{{- $leader := printf "--engine=%s$LWS_LEADER_ADDRESS:8000 --handoffs" (ternary "https://" "" (ne .root.Values.tls.prefill.secret "")) -}}
{{- if eq .component "decode" }}{{ $leader = "--sidecar=$LWS_LEADER_ADDRESS:9095" }}{{ end -}}
{{- $command := printf "/tandem/tandem drain %s --settle=%ss --timeout=%ss" $leader (include "tandem.drain.settle" .root) (include "tandem.drain.hook" .root) -}}
lifecycle:
  preStop:
    exec:
      command: {{ list "/bin/sh" "-c" $command | toRawJson }}
{{- end -}}

{{/* Accelerators and RDMA devices are added here, unless the values have them. A group's pods have equal shares of an engine. */}}
{{- define "tandem.engine.resources" -}}
{{- $limits := dict -}}
{{- $given := .values.resources -}}
{{- if eq .root.Values.engine.type "sim" -}}
{{- $given = mergeOverwrite (deepCopy .root.Values.sim.resources) $given -}}
{{- else -}}
{{- with .values.accelerator -}}
{{- $_ := set $limits . (include "tandem.engine.accelerators" $.values | int) -}}
{{- end -}}
{{- with .values.rdma.resource -}}
{{- $_ := set $limits . (int $.values.rdma.count) -}}
{{- end -}}
{{- end -}}
{{- mergeOverwrite (dict "limits" $limits) $given | toYaml -}}
{{- end -}}

{{/* Accelerators of a pod, from the role's values. */}}
{{- define "tandem.engine.accelerators" -}}
{{- div (mul .parallelism.tensor .parallelism.data) .group.size -}}
{{- end -}}

{{- define "tandem.engine.mounts" -}}
{{- $values := .root.Values -}}
- {name: tools, mountPath: /tandem, readOnly: true}
{{- if ne $values.engine.type "sim" }}
- {name: cache, mountPath: /cache}
{{- if or $values.model.cache.claimName $values.model.cache.hostPath }}
# Weights alone: engines lock what they download, and are not known to share compiled kernels between pods.
- {name: weights, mountPath: /cache/huggingface}
{{- end }}
- {name: tmp, mountPath: /tmp}
- {name: shm, mountPath: /dev/shm}
{{- if and (include "tandem.files" .root) (ne .component "encode") }}
- {name: kv, mountPath: /kv}
{{- end }}
{{- if $values.encoder.connector }}
- {name: encodings, mountPath: /encodings}
{{- end }}
{{- if ne $values.model.source "hf" }}
- {name: model, mountPath: /model, readOnly: true}
{{- end }}
{{- if eq $values.engine.type "trtllm" }}
- {name: config, mountPath: /etc/tandem/engine, readOnly: true}
{{- end }}
{{- if and (ne .component "decode") $values.tls.prefill.secret }}
- {name: engine-tls, mountPath: /etc/tandem/tls, readOnly: true}
{{- end }}
{{- end }}
{{- with .values.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tandem.engine.volumes" -}}
{{- $values := .root.Values -}}
- name: tools
  emptyDir: {sizeLimit: 256Mi}
{{- if ne $values.engine.type "sim" }}
- name: cache
  emptyDir: {sizeLimit: {{ $values.model.cache.size }}}
{{- with $values.model.cache.claimName }}
- name: weights
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- with $values.model.cache.hostPath }}
- name: weights
  hostPath: {path: {{ . }}, type: Directory}   # made by the kubelet, it would belong to root
{{- end }}
- name: tmp
  emptyDir: {}
{{- $shared := dict -}}
{{- if ne .component "encode" }}{{ $_ := set $shared "kv" $values.engine.sharedStorage }}{{ end -}}
{{- if $values.encoder.connector }}{{ $_ := set $shared "encodings" $values.encoder.sharedStorage }}{{ end -}}
{{- range $name, $storage := $shared }}
{{- with $storage.claimName }}
- name: {{ $name }}
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- with $storage.hostPath }}
- name: {{ $name }}
  hostPath: {path: {{ . }}, type: Directory}   # made by the kubelet, it would belong to root
{{- end }}
{{- end }}
# Memory of the engine's processes; it counts against the container's limit.
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .values.shmSize }}}
{{- if eq $values.model.source "pvc" }}
- name: model
  persistentVolumeClaim: {claimName: {{ $values.model.pvc.claimName }}, readOnly: true}
{{- else if eq $values.model.source "oci" }}
- name: model
  image: {reference: {{ $values.model.oci.image }}, pullPolicy: IfNotPresent}
{{- end }}
{{- if eq $values.engine.type "trtllm" }}
- name: config
  configMap: {name: {{ include "tandem.component.name" . }}}
{{- end }}
{{- if and (ne .component "decode") $values.tls.prefill.secret }}
- name: engine-tls
  secret: {secretName: {{ $values.tls.prefill.secret }}}
{{- end }}
{{- end }}
{{- if and (eq .component "decode") (not .worker) }}
{{- with $values.epp.authSecret }}
- name: auth
  secret: {secretName: {{ . }}, items: [{key: secret, path: secret}]}
{{- end }}
{{- with $values.tls.sidecarSecret }}
- name: sidecar-tls
  secret: {secretName: {{ . }}}
{{- end }}
{{- with $values.tls.prefill.caConfigMap }}
- name: prefill-ca
  configMap: {name: {{ . }}, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- with $values.tls.clients.caConfigMap }}
- name: clients-ca
  configMap: {name: {{ . }}, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- with $values.tls.clients.sidecarSecret }}
- name: client-tls
  secret: {secretName: {{ . }}, items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]}
{{- end }}
{{- end }}
{{- with .values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
