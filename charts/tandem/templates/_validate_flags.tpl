{{/*
The checks of what users give to programs: arguments and variables. The chart makes some itself, from values on which more
depends; given a second time behind its back, they would win, and the parts would no longer agree.
*/}}

{{/* Arguments that the chart makes from a value, by program, with what to do instead. */}}
{{- define "tandem.made.vllm" -}}
port: it follows from the role
host: it follows from the role
uds: engines are reached by their ports
config: a file could change all that the chart makes, so write its settings as arguments
model: set model.name
model-tag: set model.name
served-model-name: set model.name
block-size: set engine.blockSize
kv-cache-dtype: set engine.kvCacheDtype
max-model-len: set engine.maxModelLen
kv-transfer-config: it follows from the role and sidecar.connector
ec-transfer-config: set encoder.connector
tensor-parallel-size: set parallelism.tensor of the role
tp: set parallelism.tensor of the role
data-parallel-size: set parallelism.data of the role
dp: set parallelism.data of the role
data-parallel-size-local: set parallelism.data of the role
dpl: set parallelism.data of the role
data-parallel-multi-port-external-lb: set parallelism.data of the role
dpm: set parallelism.data of the role
data-parallel-external-lb: set parallelism.data of the role
dpe: set parallelism.data of the role
data-parallel-hybrid-lb: set parallelism.data of the role
dph: set parallelism.data of the role
data-parallel-rank: set parallelism.data of the role
dpn: set parallelism.data of the role
data-parallel-start-rank: set parallelism.data of the role
dpr: set parallelism.data of the role
data-parallel-address: set group.size of the role
dpa: set group.size of the role
data-parallel-rpc-port: set parallelism.data of the role
dpp: set parallelism.data of the role
data-parallel-backend: set parallelism.data of the role
dpb: set parallelism.data of the role
data-parallel-supervisor-port: set parallelism.data of the role
api-server-count: set parallelism.data of the role
asc: set parallelism.data of the role
pipeline-parallel-size: pipeline parallelism is not served, so set parallelism.tensor
pp: pipeline parallelism is not served, so set parallelism.tensor
nnodes: set group.size of the role
n: set group.size of the role
node-rank: set group.size of the role
r: set group.size of the role
master-addr: set group.size of the role
headless: set group.size of the role
enable-prompt-tokens-details: the chart sets it
no-enable-prompt-tokens-details: without the details, cached tokens are not reported
shutdown-timeout: set drainSeconds
api-key: it would be readable in the pod, so put it into the Secret that engine.apiKeySecret names
ssl-keyfile: set tls.prefill.secret
ssl-certfile: set tls.prefill.secret
enable-ssl-refresh: set tls.prefill.secret
otlp-traces-endpoint: set tracing.endpoint and tracing.engines
{{- if include "tandem.files" . }}
disable-hybrid-kv-cache-manager: engines with engine.sharedStorage need it
no-disable-hybrid-kv-cache-manager: engines with engine.sharedStorage would not start
enable-prefix-caching: engines with engine.sharedStorage would end with some prompts
no-enable-prefix-caching: engines with engine.sharedStorage need it
max-num-batched-tokens: with engine.sharedStorage it is engine.maxModelLen
{{- end }}
{{- end -}}

{{- define "tandem.made.sglang" -}}
port: it follows from the role
host: it follows from the role
config: a file could change all that the chart makes, so write its settings as arguments
model-path: set model.name
model: set model.name
served-model-name: set model.name
page-size: set engine.blockSize
kv-cache-dtype: set engine.kvCacheDtype
context-length: set engine.maxModelLen
tp-size: set parallelism.tensor of the role
tensor-parallel-size: set parallelism.tensor of the role
pp-size: pipeline parallelism is not served, so set parallelism.tensor
pipeline-parallel-size: pipeline parallelism is not served, so set parallelism.tensor
nnodes: set group.size of the role
node-rank: set group.size of the role
dist-init-addr: set group.size of the role
nccl-init-addr: set group.size of the role
disaggregation-mode: it follows from the role
disaggregation-transfer-backend: the chart sets it
disaggregation-bootstrap-port: set engine.bootstrapPort
enable-metrics: the chart sets it
enable-cache-report: the chart sets it
uvicorn-access-log-exclude-prefixes: the chart sets it
api-key: pickers and sidecars have no key, so have the proxy check keys (proxy.httpFilters)
ssl-keyfile: set tls.prefill.secret
ssl-certfile: set tls.prefill.secret
enable-ssl-refresh: set tls.prefill.secret
enable-trace: set tracing.endpoint and tracing.engines
otlp-traces-endpoint: set tracing.endpoint and tracing.engines
{{- end -}}

{{- define "tandem.made.trtllm" -}}
host: it follows from the role
port: it follows from the role
config: set engine.options, or options of the role
extra-llm-api-options: set engine.options, or options of the role
max-seq-len: set engine.maxModelLen
tensor-parallel-size: set parallelism.tensor of the role
tp-size: set parallelism.tensor of the role
pipeline-parallel-size: pipeline parallelism is not served, so set parallelism.tensor
pp-size: pipeline parallelism is not served, so set parallelism.tensor
context-parallel-size: context parallelism is not served, so set parallelism.tensor
cp-size: context parallelism is not served, so set parallelism.tensor
server-role: it is for TensorRT-LLM's own proxy
metadata-server-config-file: it is for TensorRT-LLM's own proxy
disagg-cluster-uri: it is for TensorRT-LLM's own proxy
otlp-traces-endpoint: set tracing.endpoint and tracing.engines
{{- end -}}

{{- define "tandem.made.sim" -}}
host: it follows from the role
port: it follows from the role
admin-port: nothing of the release may ask for faults
engine: the chart has simulated engines of vLLM only
side-channel-address: set engine.sideChannelPort
keep-alive: set engine.keepAliveSeconds
served-model-name: set model.name
max-model-len: set engine.maxModelLen
role: it follows from the role
block-size: set engine.blockSize
kv-lease: set engine.leaseSeconds
push: set sidecar.connector
kv-load-failure-policy: the chart sets it
config: a file could change all that the chart makes, so write its settings as arguments
check: it would start nothing
version: it would start nothing
{{- end -}}

{{- define "tandem.made.sidecar" -}}
host: the chart sets it
port: it follows from the role
secure-serving: set tls.sidecarSecret
secure-proxy: set tls.sidecarSecret
cert-path: set tls.sidecarSecret
client-ca: set tls.clients.caConfigMap
engine-client-cert: set tls.clients.sidecarSecret
metrics-port: the chart sets it
metrics-cert-dir: the probes and monitors of the chart ask in plaintext
metrics-client-ca-file: the probes and monitors of the chart ask in plaintext
admin-address: it stays on loopback
model-server-host: the engine is in the same pod
model-server-port: the chart sets it
vllm-port: the chart sets it
kv-connector: set sidecar.connector
connector: set sidecar.connector
first-event-timeout: set sidecar.firstEventTimeoutSeconds
prefill-timeout: set sidecar.prefillTimeoutSeconds
slow-request: set sidecar.slowRequestSeconds
tell-pods: set sidecar.tellPods
prefill-block-size: set engine.blockSize
prefill-tls: set tls.prefill.secret
prefill-use-tls: set tls.prefill.secret
prefill-tls-insecure-skip-verify: set tls.prefill.caConfigMap
ec-connector: set encoder.connector
encoder-references: set encoder.references
encode-timeout: set encoder.timeoutSeconds
mooncake-bootstrap-port: set engine.bootstrapPort
moriio-write-mode: set sidecar.connector
moriio-tp-size: set prefill.parallelism.tensor
moriio-local-pod-ip: it is the pod's address
p2p-connector-port: set engine.peerPort
lease: set engine.leaseSeconds
drain-timeout: set drainSeconds
evacuate-timeout: set drainSeconds
continue-times: set sidecar.continuation.times
continue-on-prefill: set sidecar.continuation.onPrefill
continue-discovery: it is the release's own Service
body-limit: set epp.bodyLimit
pd-header: set epp.pdHeader
prefill-allow: set sidecar.prefillAllow
enable-ssrf-protection: engine pods have no rights in the cluster, so set sidecar.prefillAllow
prefill-discovery: it is the release's own Service
warm-up: set sidecar.warmUp
read-back: set sidecar.readBack
keeper: set sidecar.keeper.enabled
keeper-transport: it follows from engine.type
keeper-library: set sidecar.keeper.library
side-channel-port: set engine.sideChannelPort
auth-file: set epp.authSecret
log-level: set sidecar.logLevel
zap-log-level: set sidecar.logLevel
v: set sidecar.logLevel
config: a file could change all that the chart makes, so write its settings as flags
check: it would start nothing
version: it would start nothing
{{- end -}}

{{- define "tandem.made.batch" -}}
host: the chart sets it
port: the chart sets it
metrics-port: the chart sets it
metrics-cert-dir: the probes and monitors of the chart ask in plaintext
metrics-client-ca-file: the probes and monitors of the chart ask in plaintext
secure-serving: set batch.tlsSecret
cert-path: set batch.tlsSecret
tenant-header: set batch.tenantHeader
data: set batch.storage
database-file: set batch.shared.databaseSecret
bucket: set batch.shared.bucket
queues-file: set batch.queues
webhook-url: set batch.webhook
webhook-secret-file: set batch.webhook
upstream: set batch.upstream
upstream-key-file: set batch.upstreamKeySecret
upstream-ca-file: it follows from tls.proxySecret
objective: set batch.objective
drain-timeout: set drainSeconds
log-level: set batch.logLevel
config: a file could change all that the chart makes, so write its settings as flags
check: it would start nothing
version: it would start nothing
{{- end -}}

{{- define "tandem.made.epp" -}}
host: the chart sets it
grpc-port: the chart sets it
grpc-health-port: the chart sets it
metrics-port: the chart sets it
metrics-cert-dir: the probes and monitors of the chart ask in plaintext
metrics-client-ca-file: the probes and monitors of the chart ask in plaintext
admin-address: it stays on loopback
share-address: the chart sets it for several replicas
share-with: the chart sets it for several replicas
share-key-file: set epp.shareKeySecret
secure-serving: set tls.eppSecret
cert-path: set tls.eppSecret
client-ca: set tls.clients.caConfigMap
body-limit: set epp.bodyLimit
drain-timeout: set drainSeconds
pool-name: set epp.discovery
pool-namespace: set epp.discovery
pool-group: set epp.discovery
endpoint-selector: set epp.discovery
endpoint-target-ports: set parallelism.data of the roles
endpoints-file: set epp.discovery
kubeconfig: set epp.discovery
config-file: set epp.config
config-text: set epp.config
policy-file: set epp.objectives and epp.rewrites
pd-header: set epp.pdHeader
auth-file: set epp.authSecret
tandem-headers: every decode pod of the chart has Tandem's sidecar
single-endpoint: set gateway.singleEndpoint
mark-pods-to-go: set epp.markPodsToGo
scaler-address: take autoscaling.scaler keda and metric tandem_desired_replicas, for which the chart sets it
log-level: set epp.logLevel
zap-log-level: set epp.logLevel
v: set epp.logLevel
config: a file could change all that the chart makes, so write its settings as flags
check: it would start nothing
version: it would start nothing
{{- end -}}

{{/*
Arguments of vLLM that both engines of a pair compare, that decide about what is in a block of the KV cache, or about which
tokens a prompt becomes: both engines read the prompt of a request, and an adapter that only one of them has fails it.
*/}}
{{- define "tandem.shared.vllm" -}}
[dtype, quantization, q, attention-backend, attention-config, ac, speculative-config, sc, revision, code-revision, tokenizer,
tokenizer-revision, hf-overrides, hf-config-path, disable-hybrid-kv-cache-manager, no-disable-hybrid-kv-cache-manager,
enforce-handshake-compat, mamba-cache-dtype, calculate-kv-scales, decode-context-parallel-size, dcp,
prefill-context-parallel-size, pcp, enable-lora, lora-modules, max-loras, max-lora-rank, lora-dtype, lora-target-modules,
tokenizer-mode, trust-remote-code, chat-template, chat-template-content-format, default-chat-template-kwargs,
trust-request-chat-template, enable-auto-tool-choice, tool-call-parser, reasoning-parser, limit-mm-per-prompt,
mm-processor-kwargs, interleave-mm-strings, config-format, model-impl, runner, convert]
{{- end -}}

{{/* The same for SGLang. */}}
{{- define "tandem.shared.sglang" -}}
[dtype, quantization, revision, tokenizer-path, tokenizer-mode, trust-remote-code, json-model-override-args, chat-template,
completion-template, tool-call-parser, reasoning-parser, model-impl, enable-lora, lora-paths, max-loras-per-batch, max-lora-rank,
lora-target-modules, enable-multimodal, enable-dp-attention, speculative-algorithm, speculative-draft-model-path]
{{- end -}}

{{/* The same for TensorRT-LLM. */}}
{{- define "tandem.shared.trtllm" -}}
[backend, chat-template, custom-tokenizer, reasoning-parser, revision, tokenizer, tool-parser, trust-remote-code]
{{- end -}}

{{/*
The name of an argument as its program understands it: _ is -, and a dot enters a JSON value. Empty for values.
*/}}
{{- define "tandem.argName" -}}
{{- if hasPrefix "-" . -}}
{{- regexReplaceAll "[=.\\s].*$" . "" | trimPrefix "-" | trimPrefix "-" | replace "_" "-" -}}
{{- end -}}
{{- end -}}

{{/*
The name in full of an argument: (dict "arg" "--block-si=16" "names" LIST "abbreviated" BOOL). vLLM takes an argument by the
beginning of its name, too.
*/}}
{{- define "tandem.argFullName" -}}
{{- $name := include "tandem.argName" .arg -}}
{{- $full := $name -}}
{{- if and .abbreviated (hasPrefix "--" .arg) (ge (len $name) 3) (not (has $name .names)) -}}
  {{- range .names | sortAlpha -}}
    {{- if hasPrefix $name . }}{{ $full = . }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{/*
Problems of a list of arguments: (dict "where" PATH "args" LIST "made" MAP "abbreviated" BOOL "program" NAME "known" LIST).
Without known the program may have flags that the chart does not know.
*/}}
{{- define "tandem.argProblems" -}}
{{- $in := . -}}
{{- range $i, $arg := .args -}}
  {{- $name := include "tandem.argName" $arg -}}
  {{- $full := include "tandem.argFullName" (dict "arg" $arg "names" (keys $in.made) "abbreviated" $in.abbreviated) -}}
  {{- if regexMatch "^--?[A-Za-z][^=\\s]*\\s" $arg }}
{{ printf (print "%s: %s is one argument with a blank in it: join name and value by =, or write "
     "two list items") $in.where (quote $arg) }}
  {{- else if and $name (hasKey $in.made $full) }}
{{ printf "%s: %s is the chart's to make: %s" $in.where (regexReplaceAll "=.*$" $arg "") (index $in.made $full) }}
  {{- else if and $name $in.known (not (has $name $in.known)) }}
{{ printf "%s: --%s is no flag of %s, which would not start: correct it or remove it (%s --help lists its flags)"
     $in.where $name $in.program $in.program }}
  {{- else if and (eq $i 0) (not (hasPrefix "-" $arg)) }}
{{ printf "%s: %s is no flag: write --name=value" $in.where (quote $arg) }}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- define "tandem.check.arguments" -}}
{{- $sim := eq .Values.engine.type "sim" -}}
{{- $made := include (print "tandem.made." .Values.engine.type) . | fromYaml -}}
{{- $shared := include (print "tandem.shared." (ternary "vllm" .Values.engine.type $sim)) . | fromYamlArray -}}
{{- $flags := .Files.Get "flags.yaml" | fromYaml -}}
{{- $engines := dict "engine.args" .Values.engine.args "prefill.args" .Values.prefill.args
      "decode.args" .Values.decode.args -}}
{{- if .Values.encoder.connector -}}
  {{- $_ := set $engines "encode.args" .Values.encode.args -}}
{{- end -}}
{{- if $sim -}}
  {{- $_ := set $engines "sim.args" .Values.sim.args -}}
{{- end -}}
{{- range $where, $args := $engines -}}
  {{- include "tandem.argProblems" (dict "where" $where "args" $args "made" $made "abbreviated" (not $sim)
        "program" "sim" "known" (ternary $flags.sim list $sim)) -}}
{{- end -}}
{{- range $role := include "tandem.roles" . | fromJsonArray -}}
  {{- if not $sim -}}
    {{- range $arg := (index $.Values $role).args -}}
      {{- if has (include "tandem.argFullName" (dict "arg" $arg "names" $shared "abbreviated" true) | trimPrefix "no-") $shared }}
{{ printf (print "%s.args: %s must be the same in both roles, or they do not read prompts and each other's KV caches alike: "
     "move it to engine.args") $role $arg }}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $program := list "sidecar" "epp" "batch" -}}
  {{- include "tandem.argProblems" (dict "where" (print $program ".extraArgs") "args" (index $.Values $program).extraArgs
        "made" (include (print "tandem.made." $program) $ | fromYaml) "program" $program "known" (index $flags $program)) -}}
{{- end -}}
{{- end -}}


{{- define "tandem.made.variables" -}}
POD_IP: it is the pod's address
VLLM_NIXL_SIDE_CHANNEL_HOST: it is the pod's address
VLLM_NIXL_SIDE_CHANNEL_PORT: set engine.sideChannelPort
VLLM_HOST_IP: it is the pod's address
VLLM_MOONCAKE_BOOTSTRAP_PORT: set engine.bootstrapPort
VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT: set sidecar.prefillTimeoutSeconds
VLLM_P2P_SIDE_CHANNEL_HOST: it is the pod's address
VLLM_P2P_SIDE_CHANNEL_PORT: set engine.peerPort
{{- if eq (include "tandem.connector" .) "offloading" }}
PYTHONHASHSEED: it is the same in all engines, since blocks travel under hashes
{{- end }}
VLLM_HTTP_TIMEOUT_KEEP_ALIVE: set engine.keepAliveSeconds
VLLM_API_KEY: set engine.apiKeySecret
SGLANG_HOST_IP: it is the pod's address
LWS_LEADER_ADDRESS: the controller of LeaderWorkerSets sets it
LWS_GROUP_SIZE: the controller of LeaderWorkerSets sets it
LWS_WORKER_INDEX: the controller of LeaderWorkerSets sets it
SGLANG_TIMEOUT_KEEP_ALIVE: set engine.keepAliveSeconds
SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT: set sidecar.prefillTimeoutSeconds
SGLANG_DISAGGREGATION_WAITING_TIMEOUT: set sidecar.prefillTimeoutSeconds
SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES: the chart sets it
SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL: the chart sets it
SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS: the chart sets it
UCX_TLS: set engine.ucxTLS
HF_TOKEN: set model.hf.tokenSecret
HF_HOME: it is the folder of model.cache
HF_HUB_OFFLINE: set model.source
HOME: it is the folder of model.cache
XDG_CACHE_HOME: it is the folder of model.cache
USER: it is the user of engine.runAsUser
{{- end -}}

{{/* Of the sidecar's own environment nothing may be changed behind its back; the library is the keeper's alone. */}}
{{- define "tandem.check.keeperEnvironment" -}}
{{- range .Values.sidecar.keeper.env -}}
  {{- if not (regexMatch "^(UCX|NIXL)_" .name) }}
{{ printf "sidecar.keeper.env sets %s, but it is for variables of UCX and NIXL (UCX_…, NIXL_…): remove it" .name }}
  {{- end -}}
{{- end -}}
{{- end -}}


{{/* A variable given twice is refused by the API server, or the last one wins; both are hard to notice. */}}
{{- define "tandem.check.environment" -}}
{{- $made := include "tandem.made.variables" . | fromYaml -}}
{{- $shared := list "VLLM_ATTENTION_BACKEND" "VLLM_KV_CACHE_LAYOUT" "VLLM_SSM_CONV_STATE_LAYOUT"
      "VLLM_USE_V2_MODEL_RUNNER" "VLLM_ALLOW_RUNTIME_LORA_UPDATING" "VLLM_PLUGINS" "VLLM_LORA_RESOLVER_CACHE_DIR" -}}
{{- $common := list -}}
{{- range .Values.engine.env }}{{ $common = append $common .name }}{{ end -}}
{{- range $place := prepend (include "tandem.roles" . | fromJsonArray) "engine" -}}
  {{- range $env := (index $.Values $place).env -}}
    {{- if hasKey $made $env.name }}
{{ printf "%s.env sets %s, which is the chart's to make: %s" $place $env.name (index $made $env.name) }}
    {{- else if and (eq $.Values.engine.type "sim") (hasPrefix "TANDEM_" $env.name) }}
{{ printf (print "%s.env sets %s, which would change a flag that the chart makes: write it as an argument in "
     "sim.args") $place $env.name }}
    {{- else if and (ne $place "engine") (has $env.name $shared) }}
{{ printf "%s.env sets %s, which must be the same in both roles, or they do not read prompts and each other's KV caches alike: move it to engine.env"
     $place $env.name }}
    {{- else if and (ne $place "engine") (has $env.name $common) }}
{{ printf "%s.env and engine.env both set %s: remove one of them" $place $env.name }}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}
