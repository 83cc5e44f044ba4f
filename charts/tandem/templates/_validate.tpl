{{/*
What values.schema.json cannot see: values that are fine alone and contradict each other. All problems are collected and
told at once, each in one line that says what contradicts what, and what to change.

A check is a template that prints a line for each problem. Helm renders validate.yaml before the objects, so that nothing
else stumbles first.
*/}}
{{- define "tandem.validate" -}}
{{- $root := . -}}
{{- $missing := list -}}
{{- range $line := include "tandem.check.missing" . | splitList "\n" -}}
  {{- with trim $line }}{{ $missing = append $missing (print "  - " .) }}{{ end -}}
{{- end -}}
{{- with $missing -}}
  {{- fail (printf "\nValues are missing that have no default:\n%s\n" (join "\n" .)) -}}
{{- end -}}
{{- $problems := list -}}
{{- range $check := list "names" "source" "labels" "arguments" "environment" "keeperEnvironment" "version" "parallelism" "groups"
      "memory" "options" "length" "connector" "encoder" "timeouts" "bodies" "network" "keeper" "keepAlive" "drain" "continuation" "picker" "config" "replicas" "disruptions" "batch" "autoscaling" "variants" "mode" "tls" "monitoring" -}}
  {{- range $line := include (print "tandem.check." $check) $root | splitList "\n" -}}
    {{- with trim $line }}{{ $problems = append $problems (print "  - " .) }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- $told := $problems -}}
{{- range $line := include "tandem.check.eachVariant" . | splitList "\n" -}}
  {{- $problem := print "  - " (regexReplaceAll "^[^:]*: " (trim $line) "") -}}
  {{- if and (trim $line) (not (has $problem $told)) -}}
    {{- $told = append $told $problem -}}
    {{- $problems = append $problems (print "  - " (trim $line)) -}}
  {{- end -}}
{{- end -}}
{{- with $problems -}}
  {{- fail (printf "\nThese values do not fit together:\n%s\n" (join "\n" .)) -}}
{{- end -}}
{{- end -}}


{{/* What only the user can know. Nothing else is looked at before it is there. */}}
{{- define "tandem.check.missing" -}}
{{- if not .Values.model.name }}
{{ print "model.name is empty: name the model that the engines load, or begin with a preset of the chart, of which "
     "values-sim.yaml needs no GPU" }}
{{- end -}}
{{- $engine := ternary .Values.sim.image .Values.engine.image (eq .Values.engine.type "sim") -}}
{{- $sidecar := ternary .Values.sidecar.keeper.image .Values.sidecar.image .Values.sidecar.keeper.enabled -}}
{{- $without := 0 -}}
{{- $batch := ternary .Values.batch.image (dict "repository" "none") .Values.batch.enabled -}}
{{- range list $engine $sidecar .Values.epp.image .Values.tools.image $batch -}}
  {{- if not .repository }}{{ $without = add1 $without }}{{ end -}}
{{- end -}}
{{- if and $without (not .Values.images.registry) }}
{{ print "images.registry is empty, and no images of this project are published: build and push them (make push "
     "REGISTRY=registry.example.com/tandem), and name that registry" }}
{{- end -}}
{{- end -}}


{{- define "tandem.check.names" -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) }}
serviceAccount.create is false: name the account that the picker runs as in serviceAccount.name, or create one
{{- end -}}
{{- end -}}


{{- define "tandem.check.source" -}}
{{- $model := .Values.model -}}
{{- if and (eq .Values.engine.type "sim") (ne $model.source "hf") }}
{{ printf "model.source is %s, but engine.type sim has no weights to load: set model.source to hf, or engine.type to vllm, sglang or trtllm"
     $model.source }}
{{- end -}}
{{- if and (eq $model.source "pvc") (not $model.pvc.claimName) }}
model.source is pvc: name the claim that holds the model in model.pvc.claimName
{{- end -}}
{{- if and (eq $model.source "oci") (not $model.oci.image) }}
model.source is oci: name the image that holds the model in model.oci.image
{{- end -}}
{{- range $key := list "claimName" "hostPath" -}}
  {{- if and (index $model.cache $key) (or (ne $model.source "hf") (eq $.Values.engine.type "sim")) }}
{{ printf "model.cache.%s is for weights that engines download, but these do not: remove it, or set model.source to hf" $key }}
  {{- end -}}
{{- end -}}
{{- if and $model.cache.claimName $model.cache.hostPath }}
model.cache has a claim and a folder of the node: remove claimName or hostPath
{{- end -}}
{{- range $role := include "tandem.roles" . | fromJsonArray -}}
  {{- range (index $.Values $role).initContainers -}}
    {{- if regexMatch "^(tools|engine|sidecar(-[0-9]+)?)$" .name }}
{{ printf "%s.initContainers has one of the name %s, which a container of the chart has: rename it" $role .name }}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if and $model.hf.tokenSecret (ne $model.source "hf") }}
{{ printf "model.hf.tokenSecret is given, but model.source is %s, which needs no token: remove it, or set model.source to hf"
     $model.source }}
{{- end -}}
{{- end -}}


{{/* Labels by which pods are selected, told apart and counted: another value would hide a pod from its own release, or give
it to another one. */}}
{{- define "tandem.check.labels" -}}
{{- $made := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component"
      "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" "llm-d.ai/role" "llm-d.ai/engine-type"
      "llm-d.ai/inference-serving" "inference.networking.k8s.io/engine-type" -}}
{{- $places := dict "commonLabels" .Values.commonLabels "prefill.podLabels" .Values.prefill.podLabels
      "decode.podLabels" .Values.decode.podLabels "epp.podLabels" .Values.epp.podLabels
      "proxy.podLabels" .Values.proxy.podLabels "batch.podLabels" .Values.batch.podLabels "encode.podLabels" .Values.encode.podLabels -}}
{{- range $where, $labels := $places -}}
  {{- range $key, $value := $labels -}}
    {{- if has $key $made }}
{{ printf "%s sets %s to %s, but the chart sets it, since pods are found by it: remove it" $where $key (quote $value) }}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $role := include "tandem.roles" . | fromJsonArray -}}
  {{- range $key, $value := (index $.Values $role).podAnnotations -}}
    {{- if has $key (list "llm-d.ai/active-ports" "inference.networking.k8s.io/active-ports") }}
{{ printf "%s.podAnnotations sets %s, so ranks that run would get no requests: remove it, and set %s.parallelism.data"
     $role $key $role }}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}


{{/* The oldest vLLM whose hand-offs are leases (kv_lease_duration) and carry the members that the sidecar asks for. */}}
{{- define "tandem.check.version" -}}
{{- $oldest := "0.22.0" -}}
{{- $moving := list "latest" "nightly" "main" "master" "dev" "edge" -}}
{{- $images := dict "engine.image" .Values.engine.image "sidecar.image" .Values.sidecar.image
      "sidecar.keeper.image" .Values.sidecar.keeper.image "epp.image" .Values.epp.image
      "proxy.image" .Values.proxy.image "tools.image" .Values.tools.image "batch.image" .Values.batch.image "sim.image" .Values.sim.image
      "images" (dict "tag" .Values.images.tag "digest" "") -}}
{{- range $where, $image := $images -}}
  {{- if and (has $image.tag $moving) (not $image.digest) }}
{{ printf (print "%s.tag is %s, which moves: pods that start on different days would differ and refuse each other, so "
     "name a version or a digest")
     $where $image.tag }}
  {{- end -}}
{{- end -}}
{{- $image := .Values.engine.image -}}
{{- $version := regexFind "^v?[0-9]+\\.[0-9]+" $image.tag -}}
{{- $release := regexFind "^v?[0-9]+\\.[0-9]+(\\.[0-9]+)?" $image.tag -}}
{{- $others := list "proxy.image" -}}
{{- if ne .Values.engine.type "sim" }}{{ $others = append $others "engine.image" }}{{ end -}}
{{- range $where := $others -}}
  {{- if not (index $images $where).repository }}
{{ printf "%s.repository is empty: name the repository, which images.registry is not for" $where }}
  {{- end -}}
{{- end -}}
{{- if not (or .Values.proxy.image.tag .Values.proxy.image.digest) }}
proxy.image has neither tag nor digest: name a version of Envoy
{{- end -}}
{{- if eq .Values.engine.type "vllm" -}}
  {{- if not (or $image.tag $image.digest) }}
{{ printf "engine.image has neither tag nor digest: name a version of vLLM from %s on" $oldest }}
  {{- else if and $version (hasSuffix "vllm/vllm-openai" $image.repository)
        (not (semverCompare (print ">=" $oldest) $version)) }}
{{ printf "engine.image.tag is %s, but sidecar.connector %s needs the kv_transfer_params of vLLM %s or newer: raise the tag"
     $image.tag (include "tandem.connector" .) $oldest }}
  {{- end -}}
{{- else if eq .Values.engine.type "sglang" -}}
  {{- if hasSuffix "vllm/vllm-openai" $image.repository }}
{{ printf "engine.type is sglang, but engine.image.repository is %s: name an image of SGLang, such as lmsysorg/sglang" $image.repository }}
  {{- else if not (or $image.tag $image.digest) }}
engine.image has neither tag nor digest: name a version of SGLang from 0.5.23 on
  {{- else if and $version (hasSuffix "lmsysorg/sglang" $image.repository) (not (semverCompare ">=0.5.23" $release)) }}
{{ printf "engine.image.tag is %s, but this chart asks engines for what SGLang has from 0.5.23 on: raise the tag" $image.tag }}
  {{- end -}}
{{- else if eq .Values.engine.type "trtllm" -}}
  {{- if hasSuffix "vllm/vllm-openai" $image.repository }}
{{ printf "engine.type is trtllm, but engine.image.repository is %s: name an image of TensorRT-LLM, such as nvcr.io/nvidia/tensorrt-llm/release"
     $image.repository }}
  {{- else if not (or $image.tag $image.digest) }}
engine.image has neither tag nor digest: name a version of TensorRT-LLM from 1.2.0 on
  {{- else if and $version (hasSuffix "tensorrt-llm/release" $image.repository) (not (semverCompare ">=1.2" $version)) }}
{{ printf "engine.image.tag is %s, but sidecars send engines what TensorRT-LLM knows from 1.2.0 on: raise the tag" $image.tag }}
  {{- end -}}
{{- end -}}
{{- end -}}


{{- define "tandem.check.parallelism" -}}
{{- $prefill := int .Values.prefill.parallelism.tensor -}}
{{- $decode := int .Values.decode.parallelism.tensor -}}
{{- $connector := include "tandem.connector" . -}}
{{- if and (eq $connector "shared-storage") (gt (max $prefill $decode) 1) }}
{{ printf (print "parallelism.tensor is %d in prefill and %d in decode, but vLLM's ExampleConnector (sidecar.connector shared-storage) "
     "stores one file for each layer, which several accelerators would overwrite: set both to 1")
     $prefill $decode }}
{{- else if and (has $connector (list "mooncake" "moriio" "offloading")) (ne $prefill $decode) }}
{{ printf (print "prefill.parallelism.tensor is %d and decode's %d, but engines of sidecar.connector %s hand over only to engines that "
     "share the model alike: make them equal")
     $prefill $decode $connector }}
{{- else if and (gt $prefill $decode) (not .Values.model.mla) (not (has .Values.engine.type (list "sglang" "trtllm"))) }}
{{ printf (print "prefill.parallelism.tensor is %d and decode's %d: vLLM cannot hand over to fewer GPUs, so lower the "
     "first, raise the second, or set model.mla for a model with multi-head latent attention")
     $prefill $decode }}
{{- else if and (ne $decode 0) (ne (mod (max $prefill $decode) (min $prefill $decode)) 0) }}
{{ printf (print "prefill.parallelism.tensor is %d and decode's %d: one must be a multiple of the other, or the heads "
     "of the KV cache do not line up")
     $prefill $decode }}
{{- end -}}
{{- range $name := include "tandem.roles" . | fromJsonArray -}}
  {{- $role := index $.Values $name -}}
  {{- if and (eq $.Values.engine.type "sim") (gt (int $role.parallelism.data) 1) }}
{{ printf "%s.parallelism.data is %d, but the simulated engine has one rank: set it to 1"
     $name (int $role.parallelism.data) }}
  {{- else if and (eq $.Values.engine.type "sglang") (gt (int $role.parallelism.data) 1) }}
{{ printf "%s.parallelism.data is %d, but the ranks of an SGLang engine have one port: set it to 1, and --dp-size in %s.args"
     $name (int $role.parallelism.data) $name }}
  {{- else if and (eq $.Values.engine.type "trtllm") (gt (int $role.parallelism.data) 1) }}
{{ printf "%s.parallelism.data is %d, but the ranks of an engine of TensorRT-LLM have one port: set it to 1, and enable_attention_dp in %s.options"
     $name (int $role.parallelism.data) $name }}
  {{- else if and (eq $connector "moriio") (gt (int $role.parallelism.data) 1) }}
{{ printf (print "%s.parallelism.data is %d, but the chart's ranks are engines of their own, which would all open MoRI-IO's "
     "ports: set it to 1, and replicas of the role instead")
     $name (int $role.parallelism.data) }}
  {{- else if and (eq $connector "mooncake") (gt (int $role.parallelism.data) 1) }}
{{ printf (print "%s.parallelism.data is %d, but the chart's ranks are engines of their own, which would all open Mooncake's "
     "bootstrap port: set it to 1, and replicas of the role instead")
     $name (int $role.parallelism.data) }}
  {{- end -}}
  {{- $needed := include "tandem.engine.accelerators" $role | int -}}
  {{- $shares := ternary (printf " / group.size %v" $role.group.size) "" (eq (include "tandem.grouped" $role) "true") -}}
  {{- if and $role.accelerator (ne $.Values.engine.type "sim") -}}
    {{- range $kind := list "requests" "limits" -}}
      {{- $given := dig $kind $role.accelerator "" $role.resources -}}
      {{- if and (ne (toString $given) "") (ne (int $given) (int $needed)) }}
{{ printf (print "%s.resources.%s has %v of %s, but parallelism needs tensor %v * data %v%s = %d: remove it, since the "
     "chart asks for them")
     $name $kind $given $role.accelerator $role.parallelism.tensor $role.parallelism.data $shares $needed }}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}


{{/*
Engines that span several pods. Prefill's engines could have pipeline parallelism, but vLLM's decode engines refuse it, and the KV caches of
both are to fit. The StatefulSet of a group's workers has the name of the set with the group's number, and its pods a label with that name
and a digest of ten characters.
*/}}
{{- define "tandem.check.groups" -}}
{{- $type := .Values.engine.type -}}
{{- $connector := include "tandem.connector" . -}}
{{- range $name := include "tandem.roles" . | fromJsonArray -}}
  {{- $role := index $.Values $name -}}
  {{- $size := int $role.group.size -}}
  {{- $tensor := int $role.parallelism.tensor -}}
  {{- $data := int $role.parallelism.data -}}
  {{- if not (include "tandem.grouped" $role) -}}
    {{- if and (gt $data 8) (eq $type "vllm") }}
{{ printf (print "%s.parallelism.data is %d, but a pod has 8 ranks at most, each with a port: lower it, or set %s.group.size for "
     "ranks on several nodes")
     $name $data $name }}
    {{- end -}}
    {{- if $role.group.topology }}
{{ printf "%s.group.topology is %s, but each pod is an engine: remove it, or set %s.group.size" $name $role.group.topology $name }}
    {{- end -}}
  {{- else if eq $name "encode" }}
{{ printf "encode.group.size is %d, but encoders run on one accelerator: set it to 1, and encode.replicas instead" $size }}
  {{- else if eq $type "sim" }}
{{ printf "%s.group.size is %d, but a simulated engine runs in one pod: set it to 1" $name $size }}
  {{- else if eq $type "trtllm" }}
{{ printf (print "%s.group.size is %d, but MPI starts the parts of TensorRT-LLM's engines on several nodes, and this chart does not run it: "
     "set it to 1, and %s.parallelism.tensor to the accelerators of one node at most")
     $name $size $name }}
  {{- else -}}
    {{- if not (has $connector (list "nixlv2" "nixl-push" "sglang")) }}
{{ printf (print "%s.group.size is %d, but the chart has engines of sidecar.connector %s in one pod only: set it to 1, or "
     "sidecar.connector to nixlv2 or nixl-push")
     $name $size $connector }}
    {{- end -}}
    {{- if or (mod (mul $tensor $data) $size) (and (mod $data $size) (mod $size $data)) }}
{{ printf (print "%s.group.size is %d, but tensor %d * data %d accelerators, of which a rank has %d, cannot be shared alike between so many "
     "pods: make one of data and group.size a multiple of the other, and the product a multiple of group.size")
     $name $size $tensor $data $tensor }}
    {{- end -}}
    {{- if contains "%" (toString $role.maxUnavailable) }}
{{ printf (print "%s.maxUnavailable is %s of all pods, with one of which a group of %d ends: give the number of groups that may end "
     "at once")
     $name $role.maxUnavailable $size }}
    {{- end -}}
    {{- $surges := not (has (toString $role.rollout.maxSurge) (list "0" "0%")) -}}
    {{- if and (contains "%" (toString $role.rollout.maxUnavailable)) (not $surges) }}
{{ printf (print "%s.rollout.maxUnavailable is %s of the groups, rounded down, which is none of few, and maxSurge adds none, so that the controller "
     "would refuse them: give the number of groups in one of them")
     $name $role.rollout.maxUnavailable }}
    {{- end -}}
    {{- $set := include "tandem.component.name" (dict "root" $ "component" $name) -}}
    {{- if gt (len $set) 48 }}
{{ printf (print "the LeaderWorkerSet %s has a name of %d characters, with which its workers could not be made: set fullnameOverride to "
     "one of %d at most")
     $set (len $set) (sub 47 (len $name)) }}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}


{{/* vLLM's processes of one engine talk over ring buffers of 160 MiB in /dev/shm, and NCCL keeps its own there. */}}
{{- define "tandem.check.memory" -}}
{{- range $name := include "tandem.roles" . | fromJsonArray -}}
  {{- $role := index $.Values $name -}}
  {{- $size := include "tandem.mebibytes" $role.shmSize | float64 -}}
  {{- if and (gt (int $role.parallelism.tensor) 1) (lt $size 1024.0) }}
{{ printf (print "%s.shmSize is %s, but tensor parallelism %d shares memory in /dev/shm, and the engine dies when it "
     "is full: give it 1Gi or more")
     $name $role.shmSize (int $role.parallelism.tensor) }}
  {{- end -}}
  {{- if eq (include "tandem.connector" $) "offloading" -}}
    {{- $tier := include "tandem.mebibytes" $.Values.engine.offloadSize | float64 -}}
    {{- $ranks := int $role.parallelism.data -}}
    {{- $needs := add (mulf $tier (float64 $ranks) | ceil | int) 1024 -}}
    {{- if lt $size (float64 $needs) }}
{{ printf (print "%s.shmSize is %s, but each of %d engines of the pod has engine.offloadSize %s for blocks there, and processes share "
     "1Gi: give it %dMi or more")
     $name $role.shmSize $ranks $.Values.engine.offloadSize $needs }}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}


{{/* The file of an engine of TensorRT-LLM: what the chart makes in it, and what both engines of a pair must have. */}}
{{- define "tandem.check.options" -}}
{{- $made := dict "cache_transceiver_config" "it follows from sidecar.connector, engine.leaseSeconds and sidecar.prefillTimeoutSeconds"
      "return_perf_metrics" "the chart sets it" "enable_iter_perf_stats" "the chart sets it" "model" "set model.name"
      "max_seq_len" "set engine.maxModelLen" "tensor_parallel_size" "set parallelism.tensor of the role"
      "pipeline_parallel_size" "pipeline parallelism is not served, so set parallelism.tensor"
      "context_parallel_size" "context parallelism is not served, so set parallelism.tensor"
      "otlp_traces_endpoint" "set tracing.endpoint and tracing.engines" -}}
{{- $cache := dict "tokens_per_block" "set engine.blockSize" "dtype" "set engine.kvCacheDtype" -}}
{{- $shared := list "attn_backend" "custom_tokenizer" "dtype" "lora_config" "quant_config" "reasoning_parser" "revision" "sparse_attention_config"
      "speculative_config" "tokenizer" "tokenizer_mode" "tokenizer_revision" "trust_remote_code" -}}
{{- range $place := list "engine" "prefill" "decode" "encode" -}}
  {{- $options := (index $.Values $place).options -}}
  {{- if and $options (or (ne $.Values.engine.type "trtllm") (eq $place "encode")) }}
{{ printf "%s.options is set, but only prefill and decode engines of engine.type trtllm read it: remove it" $place }}
  {{- else -}}
    {{- range $key, $value := $options -}}
      {{- if hasKey $made $key }}
{{ printf "%s.options: %s is the chart's to make: %s" $place $key (get $made $key) }}
      {{- else if and (eq $key "disable_overlap_scheduler") (ne $place "decode") }}
{{ printf "%s.options: %s is the chart's to make in prefill, whose engines need it: set it in decode.options" $place $key }}
      {{- else if and (ne $place "engine") (has $key $shared) }}
{{ printf (print "%s.options: %s must be the same in both roles, or they do not read prompts and each other's KV caches alike: "
     "move it to engine.options") $place $key }}
      {{- else if eq $key "kv_cache_config" -}}
        {{- if not (kindIs "map" $value) }}
{{ printf "%s.options: kv_cache_config is not a mapping: correct it" $place }}
        {{- else -}}
          {{- range $member, $use := $cache -}}
            {{- if hasKey $value $member }}
{{ printf "%s.options: kv_cache_config.%s is the chart's to make: %s" $place $member $use }}
            {{- end -}}
          {{- end -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}


{{/* A prompt leaves one token for its answer at least. SGLang's decode engines compute no prompts, however short. */}}
{{- define "tandem.check.length" -}}
{{- $longest := int64 .Values.engine.maxModelLen -}}
{{- $threshold := int64 .Values.epp.threshold -}}
{{- $decided := or .Values.epp.config (include "tandem.byCost" .) -}}
{{- if and $longest (le $longest $threshold) (not $decided) (ne .Values.engine.type "sglang") }}
{{ printf (print "engine.maxModelLen is %d, but only prompts of epp.threshold %d or more tokens are prefilled remotely, so none "
     "would be: lower the second, raise the first, or set epp.threshold to 0 (all local)")
     $longest $threshold }}
{{- end -}}
{{- end -}}


{{/* Whether requests wait in the picker while the pool is full: "true" or nothing. */}}
{{- define "tandem.queues" -}}
{{- $gates := .Values.epp.config.featureGates | default list -}}
{{- if or (has "flowControl" $gates) (has "flowControl=true" $gates) (include "tandem.slots" .) }}true{{ end -}}
{{- end -}}


{{/* A duration of epp.config in whole seconds: 90 for 1m30s. */}}
{{- define "tandem.seconds" -}}
{{- $text := . -}}
{{- $seconds := 0 -}}
{{- range $unit, $each := dict "h" 3600 "m" 60 "s" 1 -}}
  {{- $part := regexFind (print "(^|[a-z])[0-9]+" $unit "($|[0-9])") $text -}}
  {{- $seconds = regexFind "[0-9]+" $part | int | mul $each | add $seconds -}}
{{- end -}}
{{ $seconds }}
{{- end -}}


{{/* A component that waits for another one must have the longer time-out. */}}
{{- define "tandem.check.timeouts" -}}
{{- $prefill := int .Values.sidecar.prefillTimeoutSeconds -}}
{{- $first := int .Values.sidecar.firstEventTimeoutSeconds -}}
{{- $request := int .Values.gateway.requestTimeoutSeconds -}}
{{- $lease := int .Values.engine.leaseSeconds -}}
{{- if and (eq .Values.mode "gateway") $request (le $request (add $prefill $first | int)) }}
{{ printf (print "gateway.requestTimeoutSeconds is %d, but a prefill may take sidecar.prefillTimeoutSeconds %d, and the first "
     "token after it sidecar.firstEventTimeoutSeconds %d: the gateway would end requests that sidecars can still save, so set "
     "it to more than %d, or to 0 (no limit)")
     $request $prefill $first (add $prefill $first) }}
{{- else if and (eq .Values.mode "gateway") $request (include "tandem.queues" .) -}}
  {{- $spec := .Values.epp.config.flowControl | default dict -}}
  {{- $usual := get $spec "defaultRequestTTL" | default "60s" -}}
  {{- $empty := get $spec "noEndpointRequestTTL" | default $usual -}}
  {{- $wait := max (include "tandem.seconds" $usual | int) (include "tandem.seconds" $empty | int) -}}
  {{- range concat (list $spec.defaultPriorityBand $spec.defaultNegativePriorityBand) ($spec.priorityBands | default list) -}}
    {{- $wait = max $wait (include "tandem.seconds" (get (. | default dict) "defaultRequestTTL" | default "0s") | int) -}}
  {{- end -}}
  {{- if le $request (add $wait $prefill $first | int) }}
{{ printf (print "gateway.requestTimeoutSeconds is %d, but a request may wait for capacity for %d seconds (flow control, by "
     "epp.config or batch.slots) before its prefill, which may take sidecar.prefillTimeoutSeconds %d, and its first token, "
     "sidecar.firstEventTimeoutSeconds %d: set it to more than %d, or to 0 (no limit)")
     $request $wait $prefill $first (add $wait $prefill $first) }}
  {{- end -}}
{{- end -}}
{{- if and (gt $first $lease) (not .Values.sidecar.keeper.enabled) (include "tandem.leased" .) }}
{{ printf (print "sidecar.firstEventTimeoutSeconds is %d, but prefill engines drop a KV cache that was not read after "
     "engine.leaseSeconds %d, so the sidecar would wait in vain: lower the first, raise the second, or set "
     "sidecar.keeper.enabled, which holds KV caches for longer")
     $first $lease }}
{{- end -}}
{{- if and (gt $first $lease) (eq (include "tandem.connector" .) "trtllm") }}
{{ printf (print "sidecar.firstEventTimeoutSeconds is %d, but prefill engines drop a KV cache that was not read after "
     "engine.leaseSeconds %d, so the sidecar would wait in vain: lower the first, or raise the second")
     $first $lease }}
{{- end -}}
{{- if and (lt $prefill 10) (eq .Values.engine.type "sglang") }}
{{ printf (print "sidecar.prefillTimeoutSeconds is %d, but SGLang's engines wait for each other for whole seconds, 5 less than that, "
     "and at least 5: set it to 10 or more") $prefill }}
{{- end -}}
{{- end -}}


{{/* Engines hand over by one protocol, and some settings are for one of them alone. */}}
{{- define "tandem.check.connector" -}}
{{- $type := .Values.engine.type -}}
{{- $connector := include "tandem.connector" . -}}
{{- $own := include "tandem.connectors" . | fromJsonArray -}}
{{- $storage := .Values.engine.sharedStorage -}}
{{- $shared := or $storage.claimName $storage.hostPath -}}
{{- if not (has $connector $own) }}
  {{- $advice := ternary "leave it empty" (printf "name one of these, or leave it empty for %s" (first $own)) (eq (len $own) 1) }}
{{ printf "sidecar.connector is %s, but engine.type %s hands over by %s: %s" $connector $type (join ", " $own) $advice }}
{{- end -}}
{{- if and .Values.sidecar.keeper.enabled (not (include "tandem.leased" .)) }}
{{ printf "sidecar.keeper.enabled is true, but hand-offs of the protocol %s have no lease that a keeper could renew: set it to false"
     $connector }}
{{- end -}}
{{- if and .Values.sidecar.readBack (ne $connector "nixlv2") }}
{{ printf "sidecar.readBack is true, but only prefill engines of the protocol nixlv2 read back, and yours is %s: set it to false" $connector }}
{{- end }}
{{- if and .Values.sidecar.warmUp (ne $connector "nixlv2") }}
{{ printf "sidecar.warmUp is true, but only pairs of the protocol nixlv2 are warmed up, and yours is %s: set it to false" $connector }}
{{- end -}}
{{- if and $storage.claimName $storage.hostPath }}
engine.sharedStorage has a claim and a folder of the node: remove claimName or hostPath
{{- end -}}
{{- if and (eq $connector "shared-storage") (not $shared) }}
{{ print "sidecar.connector is shared-storage, but the engines share no folder: name a claim with the access mode ReadWriteMany in "
     "engine.sharedStorage.claimName, or a folder that is mounted on all nodes in engine.sharedStorage.hostPath" }}
{{- else if and $shared (or (ne $type "vllm") (not (has $connector (list "shared-storage" "nixlv2")))) }}
{{ printf (print "engine.sharedStorage is set, but engines of type %s and the protocol %s store no files: remove it, or set "
     "sidecar.connector to shared-storage or nixlv2 with engine.type vllm") $type $connector }}
{{- else if and $shared (eq (int64 .Values.engine.maxModelLen) 0) }}
{{ print "engine.maxModelLen is 0, but engines that store KV caches in engine.sharedStorage end with prompts that are longer than what "
     "they compute in one step: set it, and the chart makes the step as long" }}
{{- end -}}
{{- if and (eq $type "trtllm") .Values.engine.apiKeySecret }}
{{ print "engine.apiKeySecret is set, but engines of TensorRT-LLM ask clients for no key: remove it, and have the proxy check keys "
     "(proxy.httpFilters)" }}
{{- end -}}
{{- if eq $connector "sglang" -}}
  {{- if .Values.engine.apiKeySecret }}
{{ print "engine.apiKeySecret is set, but pickers and sidecars ask SGLang's engines for their load and mode, and have no key: remove "
     "it, and have the proxy check keys (proxy.httpFilters)" }}
  {{- end -}}
  {{- if and (eq (int .Values.prefill.replicas) 0) (not .Values.prefill.autoscaling.enabled) }}
prefill.replicas is 0, but SGLang's decode engines compute no prompts: take 1 or more
  {{- end -}}
{{- end -}}
{{- end -}}


{{/* Encoders exchange encodings as files, which was measured with vLLM alone. */}}
{{- define "tandem.check.encoder" -}}
{{- $encoder := .Values.encoder -}}
{{- $storage := $encoder.sharedStorage -}}
{{- if $encoder.connector -}}
  {{- if ne .Values.engine.type "vllm" }}
{{ printf "encoder.connector is %s, but engines of type %s have no encoders in this chart: leave it empty, or set engine.type to vllm"
     $encoder.connector .Values.engine.type }}
  {{- end -}}
  {{- if and $storage.claimName $storage.hostPath }}
encoder.sharedStorage has a claim and a folder of the node: remove claimName or hostPath
  {{- else if not (or $storage.claimName $storage.hostPath) }}
{{ print "encoder.connector is ec-example, but engines share no folder for encodings: name a claim with the access mode ReadWriteMany in "
     "encoder.sharedStorage.claimName, or a folder that is mounted on all nodes in encoder.sharedStorage.hostPath" }}
  {{- end -}}
  {{- range $kind := list "tensor" "data" -}}
    {{- if gt (index $.Values.encode.parallelism $kind | int) 1 }}
{{ printf "encode.parallelism.%s is %v, but encoders run on one accelerator: set it to 1, and encode.replicas instead"
     $kind (index $.Values.encode.parallelism $kind) }}
    {{- end -}}
  {{- end -}}
  {{- if .Values.encode.rdma.resource }}
{{ printf "encode.rdma.resource is %s, but encodings are files: remove it" .Values.encode.rdma.resource }}
  {{- end -}}
  {{- if and (eq (int .Values.encode.replicas) 0) (not .Values.encode.autoscaling.enabled) }}
encode.replicas is 0, but requests with images are to be encoded there: take 1 or more, or leave encoder.connector empty
  {{- end -}}
{{- else if or $storage.claimName $storage.hostPath $encoder.references }}
encoder.connector is empty, so encoder.sharedStorage and encoder.references have no effect: set it to ec-example, or remove them
{{- end -}}
{{- end -}}


{{/* The programs do not start unless --buffer-limit is at least twice the body limit. These are its defaults, in MiB. */}}
{{- define "tandem.check.bodies" -}}
{{- $twice := include "tandem.bytes" .Values.epp.bodyLimit | int64 | mul 2 -}}
{{- range $name, $limit := dict "epp" 1024 "sidecar" 512 -}}
  {{- $default := not (regexMatch "(^| )--buffer-limit=" (join " " (index $.Values $name).extraArgs)) -}}
  {{- if and $default (gt $twice (mul $limit 1048576)) }}
{{ printf (print "epp.bodyLimit is %s, but %s buffers %dMiB of bodies at most, which must be twice as much: set --buffer-limit "
     "in %s.extraArgs, and %s.resources.limits.memory to three times that")
     $.Values.epp.bodyLimit $name $limit $name $name }}
  {{- end -}}
{{- end -}}
{{- end -}}


{{- define "tandem.check.network" -}}
{{- $last := add 7999 (include "tandem.ports" .Values.prefill | int) | int -}}
{{- range .Values.sidecar.prefillAllow -}}
  {{- $port := regexFind "/[0-9]+\\]?:[0-9]+$" . | splitList ":" | last -}}
  {{- if and $port (or (lt (int $port) 8000) (gt (int $port) $last)) }}
{{ printf "sidecar.prefillAllow has %s, but prefill pods listen on port 8000: correct the port or leave it out" . }}
  {{- end -}}
{{- end -}}
{{- $taken := list (include "tandem.engine.supervisorPort" . | int) -}}
{{- $ranks := include "tandem.ranks" . | int -}}
{{- range $rank := until $ranks -}}
  {{- $metrics := add 9095 (mul 2 $rank) -}}
  {{- $taken = concat $taken (list (add 8000 $rank | int) (add 8200 $rank | int) (int $metrics) (add1 $metrics | int)) -}}
{{- end -}}
{{- range $rank := until $ranks -}}
  {{- if and (has (add $.Values.engine.sideChannelPort $rank | int) $taken) (include "tandem.leased" $) }}
{{ printf "engine.sideChannelPort is %v, but something else in the pod listens on %d: take another one"
     $.Values.engine.sideChannelPort (add $.Values.engine.sideChannelPort $rank) }}
  {{- end -}}
  {{- if and (has (add $.Values.engine.peerPort $rank | int) $taken) (eq (include "tandem.connector" $) "offloading") }}
{{ printf "engine.peerPort is %v, but something else in the pod listens on %d: take another one"
     $.Values.engine.peerPort (add $.Values.engine.peerPort $rank) }}
  {{- end -}}
{{- end -}}
{{- if and (has (int .Values.engine.bootstrapPort) $taken) (has (include "tandem.connector" .) (list "sglang" "mooncake")) }}
{{ printf "engine.bootstrapPort is %v, but something else in the pod listens there: take another one" .Values.engine.bootstrapPort }}
{{- end -}}
{{- $prefill := .Values.prefill.rdma.resource -}}
{{- $decode := .Values.decode.rdma.resource -}}
{{- if and (or $prefill $decode) (not (and $prefill $decode)) }}
{{ printf "%s.rdma.resource is set, but %s's is not, so KV caches would not go over RDMA: set it in both roles"
     (ternary "prefill" "decode" (ne $prefill "")) (ternary "decode" "prefill" (ne $prefill "")) }}
{{- end -}}
{{- $ucx := .Values.engine.ucxTLS -}}
{{- if and $prefill $decode $ucx (not (regexMatch "(^|,)(all|ib|srd|(rc|ud|dc)(_[a-z0-9]+)?|\\^.*)(,|$)" $ucx)) }}
{{ printf (print "engine.ucxTLS is %s, which leaves the RDMA devices of rdma.resource unused: add rc to it, or leave "
     "it empty") $ucx }}
{{- end -}}
{{- end -}}


{{/* What would have a keeper run that cannot do its work, or none where one is meant to. */}}
{{- define "tandem.check.keeper" -}}
{{- $sidecar := .Values.sidecar -}}
{{- $keeper := $sidecar.keeper -}}
{{- if and $sidecar.warmUp .Values.engine.apiKeySecret }}
sidecar.warmUp is true, but sidecars do not have the key of engine.apiKeySecret to send requests with: remove one of them
{{- end -}}
{{- if not $keeper.enabled -}}
  {{- range $key := list "library" "env" -}}
    {{- if index $keeper $key }}
{{ printf "sidecar.keeper.%s is set, but sidecar.keeper.enabled is false: set it to true, or remove it" $key }}
    {{- end -}}
  {{- end -}}
{{- else -}}
  {{- $own := or $keeper.image.tag $keeper.image.digest -}}
  {{- $plain := include "tandem.image" (dict "root" . "image" $sidecar.image "name" "sidecar") -}}
  {{- if eq $plain (include "tandem.image" (dict "root" . "image" $keeper.image "name" "sidecar-nixl")) }}
{{ printf (print "sidecar.keeper.image is %s, the image of a sidecar without a keeper: name one that is built from the "
     "target sidecar-nixl") $plain }}
  {{- else if and (or $sidecar.image.tag $sidecar.image.digest) (not $own) }}
{{ printf (print "sidecar.image is %s, but with sidecar.keeper.enabled pods have sidecar.keeper.image, which has neither tag "
     "nor digest: name the version there, too") $plain }}
  {{- end -}}
  {{- $ucx := .Values.engine.ucxTLS -}}
  {{- if eq .Values.engine.type "sim" -}}
    {{- if $keeper.library }}
{{ printf "sidecar.keeper.library is %s, but keepers tell simulated engines without it: remove it" $keeper.library }}
    {{- end -}}
  {{- else if and $ucx (eq (hasPrefix "^" $ucx) (regexMatch "(^|[,^])(tcp|all)(,|$)" $ucx)) }}
{{ printf (print "engine.ucxTLS is %s, which leaves out tcp, over which the keepers of sidecar.keeper.enabled tell the prefill "
     "engines: add it, or leave ucxTLS empty") $ucx }}
  {{- end -}}
{{- end -}}
{{- end -}}


{{/* A proxy that keeps a connection longer than the engine sends requests into a closed one. */}}
{{- define "tandem.check.keepAlive" -}}
{{- if and (eq .Values.mode "standalone") (le (int .Values.engine.keepAliveSeconds) (int .Values.proxy.idleSeconds)) }}
{{ printf (print "engine.keepAliveSeconds is %v, but Envoy keeps idle connections for proxy.idleSeconds %v and would "
     "meet closed ones (502): make the first the longer")
     .Values.engine.keepAliveSeconds .Values.proxy.idleSeconds }}
{{- end -}}
{{- end -}}


{{/* A finished prefill is read within the lease, or never. */}}
{{- define "tandem.check.drain" -}}
{{- $waits := sub (include "tandem.drain.hook" . | int) (include "tandem.drain.settle" . | int) -}}
{{- $lease := int .Values.engine.leaseSeconds -}}
{{- if and (lt (int $waits) $lease) (or (include "tandem.leased" .) (eq (include "tandem.connector" .) "trtllm")) }}
{{ printf (print "drainSeconds is %v, which leaves a prefill pod %d s to wait for unread hand-offs, but they may come "
     "for engine.leaseSeconds %d: set drainSeconds to %d or more")
     .Values.drainSeconds $waits $lease (add (int .Values.drainSeconds) (sub $lease $waits)) }}
{{- end -}}
{{- end -}}


{{/* Streams that could go on nowhere. */}}
{{- define "tandem.check.continuation" -}}
{{- $continuation := .Values.sidecar.continuation -}}
{{- if $continuation.times -}}
  {{- if not (has (include "tandem.connector" .) (list "nixlv2" "nixl-push" "mooncake" "offloading" "shared-storage" "sglang")) }}
{{ printf "sidecar.continuation.times is %v, but streams of the hand-off protocol %s cannot go on elsewhere: set it to 0"
     $continuation.times (include "tandem.connector" .) }}
  {{- else if and $continuation.onPrefill (eq (include "tandem.connector" .) "sglang") }}
sidecar.continuation.onPrefill is true, but prefill engines of SGLang answer no requests: set it to false
  {{- end }}
{{- else if $continuation.onPrefill }}
sidecar.continuation.onPrefill has no effect while sidecar.continuation.times is 0: set that, or leave it out
{{- end -}}
{{- end -}}


{{- define "tandem.check.picker" -}}
{{- range $kind := list "objectives" "rewrites" -}}
  {{- $seen := dict -}}
  {{- range index $.Values.epp $kind -}}
    {{- if hasKey $seen .name }}
{{ printf "epp.%s has two of the name %s: rename one" $kind .name }}
    {{- end -}}
    {{- $_ := set $seen .name true -}}
  {{- end -}}
{{- end -}}
{{- end -}}


{{/* What a picker's configuration of one's own says again that the chart knows. The picker checks the rest itself, before it
serves. */}}
{{- define "tandem.check.config" -}}
{{- $config := .Values.epp.config -}}
{{- $block := int .Values.engine.blockSize -}}
{{- range $i, $plugin := dig "plugins" list $config -}}
  {{- $where := printf "epp.config.plugins[%d] (%s)" $i (default "no type" $plugin.type) -}}
  {{- $parameters := default dict $plugin.parameters -}}
  {{- range $key := list "blockSizeTokens" "blockSize" "hashBlockSize" -}}
    {{- with index $parameters $key -}}
      {{- if ne (int .) $block }}
{{ printf "%s: %s is %v, but engines have blocks of engine.blockSize %d tokens, so prefixes would not match: make them equal"
     $where $key . $block }}
      {{- end -}}
    {{- end -}}
  {{- end -}}
  {{- with index $parameters "modelName" -}}
    {{- if ne . $.Values.model.name }}
{{ printf (print "%s: modelName is %s, but the engines serve %s, so prefixes would not match: make it "
     "model.name") $where . $.Values.model.name }}
    {{- end -}}
  {{- end -}}
  {{- with index $parameters "primaryPort" -}}
    {{- if ne (int .) 8000 }}
{{ printf "%s: primaryPort is %v, but engines are reached on 8000: remove it" $where . }}
    {{- end -}}
  {{- end -}}
  {{- if eq (toString $plugin.type) "file-discovery" }}
{{ printf "%s: endpoints are found as epp.discovery says: remove it" $where }}
  {{- end -}}
{{- end -}}
{{- if $config -}}
  {{- $profiles := list -}}
  {{- range dig "schedulingProfiles" list $config }}{{ $profiles = append $profiles .name }}{{ end -}}
  {{- $wanted := "" -}}
  {{- $handler := "" -}}
  {{- range dig "plugins" list $config -}}
    {{- if has .type (list "disagg-profile-handler" "pd-profile-handler") -}}
      {{- $handler = .type -}}
      {{- $parameters := default dict .parameters -}}
      {{- $wanted = coalesce (dig "profiles" "prefill" "" $parameters) $parameters.prefillProfile "prefill" -}}
    {{- end -}}
  {{- end -}}
  {{- if not $handler }}
epp.config has no disagg-profile-handler, so nothing would go to the prefill pods: add one
  {{- else if not (has $wanted $profiles) }}
{{ printf "epp.config has no scheduling profile %s, so nothing would go to the prefill pods: add it" $wanted }}
  {{- end -}}
{{- end -}}
{{- end -}}


{{- define "tandem.check.replicas" -}}
{{- $prefill := .Values.prefill -}}
{{- if and (eq (int .Values.decode.replicas) 0) (not .Values.decode.autoscaling.enabled) }}
decode.replicas is 0: without decode pods nothing is served, so take 1 or more
{{- end -}}
{{- $byCost := include "tandem.byCost" . -}}
{{- $remote := and (or $byCost (gt (int .Values.epp.threshold) 0)) (not .Values.epp.config) (ne .Values.engine.type "sglang") -}}
{{- if and (eq (int $prefill.replicas) 0) (not $prefill.autoscaling.enabled) $remote }}
{{ printf "prefill.replicas is 0, but prompts %s are to be prefilled remotely: take 1 or more, or set epp.threshold to 0 (all local)"
     (ternary "that cost less so" (printf "from epp.threshold %v tokens on" .Values.epp.threshold) (eq $byCost "true")) }}
{{- end -}}
{{- range $role := include "tandem.roles" . | fromJsonArray -}}
  {{- $rollout := (index $.Values $role).rollout -}}
  {{- if and (has (toString $rollout.maxSurge) (list "0" "0%")) (has (toString $rollout.maxUnavailable) (list "0" "0%")) }}
{{ printf (print "%s.rollout has neither a pod more nor one less, so that none could ever be replaced: set maxSurge or "
     "maxUnavailable to 1") $role }}
  {{- end -}}
{{- end -}}
{{- end -}}


{{/* A batch server that runs alone may keep its node: until it is there again, no batch goes on. */}}
{{- define "tandem.check.disruptions" -}}
{{- $components := concat (include "tandem.roles" . | fromJsonArray) (list "epp" "proxy") -}}
{{- if gt (int .Values.batch.replicas) 1 }}{{ $components = append $components "batch" }}{{ end -}}
{{- range $component := $components -}}
  {{- $most := toString (index $.Values $component).maxUnavailable -}}
  {{- if has $most (list "0" "0%") }}
{{ printf "%s.maxUnavailable is %s, so that no node with such a pod could ever be drained: take 1, or \"\" for no PodDisruptionBudget" $component $most }}
  {{- end -}}
{{- end -}}
{{- end -}}


{{- define "tandem.check.batch" -}}
{{- if and .Values.batch.enabled (ne .Values.mode "standalone") (not .Values.batch.upstream) }}
batch.upstream is empty, and a release of mode gateway has no Envoy of its own: give the URL of the gateway
{{- end -}}
{{- $shared := .Values.batch.shared -}}
{{- if and (gt (int .Values.batch.replicas) 1) (not $shared.databaseSecret) }}
{{ printf "batch.replicas is %v, but a claim is for one pod: set batch.shared.databaseSecret and batch.shared.bucket, or 1" .Values.batch.replicas }}
{{- end -}}
{{- if ne (empty $shared.databaseSecret) (empty $shared.bucket) }}
batch.shared needs both databaseSecret and bucket: set the other one, or none
{{- end -}}
{{- $batch := .Values.batch -}}
{{- range $name, $value := dict "slots.perEngine" $batch.slots.perEngine "goals.ttftMs" $batch.goals.ttftMs "goals.tpotMs" $batch.goals.tpotMs }}
  {{- if and $batch.enabled $.Values.epp.config $value }}
{{ printf "batch.%s is %v, but epp.config takes the place of the configuration that it is for: say it there (docs/batch.md), and set this to 0"
     $name $value }}
  {{- end -}}
{{- end -}}
{{- $queues := .Values.batch.queues -}}
{{- if and $queues.secret $queues.configMap }}
batch.queues has both secret and configMap: set one
{{- end -}}
{{- $webhook := .Values.batch.webhook -}}
{{- if ne (empty $webhook.url) (empty $webhook.secret) }}
batch.webhook needs both url and secret: set the other one, or none
{{- end -}}
{{- range .Values.epp.objectives -}}
  {{- if and $.Values.batch.enabled (eq .name $.Values.batch.objective) (ge (int .priority) 0) }}
{{ printf (print "epp.objectives gives %s the priority %v, and batch.objective names it: batches must have one below 0, or they do "
     "not yield to other requests") .name .priority }}
  {{- end -}}
{{- end -}}
{{- end -}}


{{/* The parameters of the picker's replica-sizer, as JSON; empty without it. */}}
{{- define "tandem.sizer" -}}
{{- range dig "plugins" list .Values.epp.config -}}
  {{- if eq (toString .type) "replica-sizer" }}{{ default dict .parameters | toJson }}{{ end -}}
{{- else -}}
  {{- include "tandem.sizer.made" . -}}
{{- end -}}
{{- end -}}


{{- define "tandem.check.autoscaling" -}}
{{- $sizer := include "tandem.sizer" . -}}
{{- if and .Values.epp.markPodsToGo (not $sizer) }}
{{ print "epp.markPodsToGo is true, but nothing says how many pods there should be: scale a role by tandem_desired_replicas, or add the "
     "plugin replica-sizer to epp.config.plugins" }}
{{- else if and .Values.epp.markPodsToGo (include "tandem.grouped" .Values.prefill) (include "tandem.grouped" .Values.decode) }}
{{ print "epp.markPodsToGo is true, but of groups (group.size) the one with the highest number goes, whatever its pods are marked with: set it "
     "to false" }}
{{- end -}}
{{- range $role := include "tandem.roles" . | fromJsonArray -}}
  {{- $scaling := (index $.Values $role).autoscaling -}}
  {{- if $scaling.enabled -}}
    {{- $where := print $role ".autoscaling" -}}
    {{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) }}
{{ printf "%s.minReplicas is %v and maxReplicas %v: raise the second" $where $scaling.minReplicas $scaling.maxReplicas }}
    {{- end -}}
    {{- if and (eq $scaling.scaler "keda") (not $scaling.prometheus) (ne $scaling.metric "tandem_desired_replicas") }}
{{ printf (print "%s.scaler is keda, which asks Prometheus for %s: give its URL in %s.prometheus, or take "
     "tandem_desired_replicas, which the picker tells KEDA itself") $where $scaling.metric $where }}
    {{- else if and (include "tandem.asksPicker" $scaling) $scaling.selector }}
{{ printf "%s.selector has labels, but KEDA asks the picker, which has no series: remove it, or give %s.prometheus" $where $where }}
    {{- end -}}
    {{- range $key := list "namespace" "service" "role" "stage" -}}
      {{- with index $scaling.selector $key }}
{{ printf (print "%s.selector sets %s to %s, but the chart sets it: the autoscaler would read another picker's "
     "series, or none, so remove it")
     $where $key . }}
      {{- end -}}
    {{- end -}}
    {{- $sized := regexMatch "^tandem_(desired|needed)_replicas$" $scaling.metric -}}
    {{- if regexMatch "^(wva|inferno)_" $scaling.metric }}
{{ printf "%s.metric is %s, whose series have no role to select: take tandem_desired_replicas" $where $scaling.metric }}
    {{- else if and $sized (not $sizer) }}
{{ printf (print "%s.metric is %s, which the picker has only with the plugin replica-sizer: add it to epp.config.plugins, "
     "or take tandem_inflight") $where $scaling.metric }}
    {{- else if $sized -}}
      {{- if ne (float64 $scaling.target) 1.0 }}
{{ printf "%s.target is %s, but %s is the number of pods: set it to 1" $where $scaling.target $scaling.metric }}
      {{- end -}}
      {{- range $variant := include "tandem.variants" (dict "root" $ "component" $role) | fromJsonArray -}}
        {{- $at := dict "root" $ "component" $role "variant" $variant -}}
        {{- include "tandem.variant" $at -}}
        {{- $limits := dig $role dict (fromJson $sizer) -}}
        {{- $usual := dict "minReplicas" 1 "maxReplicas" 4 -}}
        {{- $of := $role -}}
        {{- $place := $where -}}
        {{- if $variant -}}
          {{- $of = printf "%s-%s" $role $variant -}}
          {{- $place = printf "%s.variants.%s.autoscaling" $role $variant -}}
          {{- $limits = dict -}}
          {{- $usual = dict "minReplicas" 0 "maxReplicas" 0 -}}
          {{- range dig "variants" list (fromJson $sizer) }}{{ if eq (toString .variant) $of }}{{ $limits = . }}{{ end }}{{ end -}}
        {{- end -}}
        {{- range $key, $unsaid := $usual -}}
          {{- $theirs := dig $key $unsaid $limits -}}
          {{- $ours := index $at.values.autoscaling $key -}}
          {{- if ne (int $theirs) (int $ours) }}
{{ printf (print "%s.%s is %d, but replica-sizer in epp.config has %d for %s, and sizes the other role for that: make them "
     "equal") $place $key (int $ours) (int $theirs) $of }}
          {{- end -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
    {{- $queues := include "tandem.queues" $ -}}
    {{- $theirs := print "^llm_d_epp_(request_running|flow_control_(pool_saturation|queue_(size|bytes)|requests_total|"
          "(global_)?capacity_utilization_(requests|bytes)))$" -}}
    {{- if and (not $queues) (regexMatch "^(llm_d_epp_flow_control|tandem_queue|tandem_pool_saturation)" $scaling.metric) }}
{{ printf (print "%s.metric is %s, which the picker has only with flow control: add flowControl to epp.config.featureGates, "
     "or take tandem_inflight")
     $where $scaling.metric }}
    {{- else if and (not (regexMatch $theirs $scaling.metric))
          (regexMatch "^(llm_d_(epp|router)|inference_(extension|pool|model|objective))_" $scaling.metric) }}
{{ printf "%s.metric is %s, which another picker exports: take tandem_inflight" $where $scaling.metric }}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}


{{/* Variants of a role: what the picker could not tell apart, and what no pod would serve. */}}
{{- define "tandem.check.variants" -}}
{{- if .Values.encode.variants }}
encode.variants is set, but encoders have no sizes and costs that the picker goes by: remove it
{{- end -}}
{{- range $role := list "prefill" "decode" -}}
  {{- $values := index $.Values $role -}}
  {{- $scaling := $values.autoscaling -}}
  {{- if $values.variants -}}
    {{- if and $scaling.enabled (not (regexMatch "^tandem_(desired|needed)_replicas$" $scaling.metric)) }}
{{ printf (print "%s.variants are scaled apart, but %s.autoscaling.metric is %s, which is of the whole role: take tandem_desired_replicas, with "
     "the target 1") $role $role $scaling.metric }}
    {{- end -}}
    {{- if and (eq $role "decode") (eq (include "tandem.least" (dict "root" $ "component" $role) | int) 0) }}
{{ printf "%s.variants have no pod at least, so that nothing is served: raise %s of one of them" $role
     (ternary "autoscaling.minReplicas" "replicas" $scaling.enabled) }}
    {{- end -}}
    {{- if hasKey $values.podLabels "llm-d.ai/variant" }}
{{ printf "%s.podLabels sets llm-d.ai/variant, but the chart sets it to each of %s.variants: remove it" $role $role }}
    {{- end -}}
    {{- range $variant := include "tandem.variants" (dict "root" $ "component" $role) | fromJsonArray -}}
      {{- $where := printf "%s.variants.%s" $role $variant -}}
      {{- $at := dict "root" $ "component" $role "variant" $variant -}}
      {{- include "tandem.variant" $at -}}
      {{- $own := $at.values.autoscaling -}}
      {{- if and $scaling.enabled (gt (int $own.minReplicas) (int $own.maxReplicas)) }}
{{ printf "%s.autoscaling.minReplicas is %v and maxReplicas %v: raise the second" $where $own.minReplicas $own.maxReplicas }}
      {{- end -}}
      {{- if and $scaling.enabled (eq $scaling.scaler "hpa") (eq (int $own.minReplicas) 0) }}
{{ printf "%s.autoscaling.minReplicas is 0, from which a HorizontalPodAutoscaler does not scale: take 1, or %s.autoscaling.scaler keda" $where $role }}
      {{- end -}}
      {{- if and (has (dig "image" "tag" "" $at.values) (list "latest" "nightly" "main" "master" "dev" "edge")) (not (dig "image" "digest" "" $at.values)) }}
{{ printf "%s.image.tag is %s, which moves: pods that start on different days would differ, so name a version or a digest" $where $at.values.image.tag }}
      {{- end -}}
      {{- if and (eq $role "prefill") (dig "goals" "tpotMs" 0 $at.values) }}
{{ printf "%s.goals.tpotMs is set, but prefill pods generate no further tokens: remove it" $where }}
      {{- end -}}
      {{- if and (hasKey (index $values.variants $variant) "parallelism") (eq (include "tandem.connector" $) "moriio") }}
{{ printf "%s.parallelism is set, but sidecars know one tensor parallelism of all prefill engines with sidecar.connector moriio: set %s.parallelism" $where $role }}
      {{- end -}}
      {{- $name := include "tandem.component.name" $at -}}
      {{- $longest := ternary 48 63 (eq (include "tandem.grouped" $values) "true") -}}
      {{- if gt (len $name) $longest }}
{{ printf "the pods of %s would have names that begin with %s, of %d characters: set fullnameOverride to one of %d at most, or shorten the variant's"
     $where $name (len $name) (sub $longest (add 2 (len $role) (len $variant))) }}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}


{{/* What the checks of a role say of each pair of variants of both roles, with the variants before it. */}}
{{- define "tandem.check.eachVariant" -}}
{{- $root := . -}}
{{- range $prefill := include "tandem.variants" (dict "root" $root "component" "prefill") | fromJsonArray -}}
  {{- range $decode := include "tandem.variants" (dict "root" $root "component" "decode") | fromJsonArray -}}
    {{- if or $prefill $decode -}}
      {{- $pair := dict -}}
      {{- range $key, $value := $root }}{{ $_ := set $pair $key $value }}{{ end -}}
      {{- $values := dict -}}
      {{- range $key, $value := $root.Values }}{{ $_ := set $values $key $value }}{{ end -}}
      {{- $names := list -}}
      {{- range $role, $variant := dict "prefill" $prefill "decode" $decode -}}
        {{- $at := dict "root" $root "component" $role "variant" $variant -}}
        {{- include "tandem.variant" $at -}}
        {{- $_ := set $values $role $at.values -}}
        {{- with $variant }}{{ $names = append $names (printf "%s.variants.%s" $role .) }}{{ end -}}
      {{- end -}}
      {{- $_ := set $pair "Values" $values -}}
      {{- range $check := list "labels" "arguments" "environment" "parallelism" "memory" "options" -}}
        {{- range $line := include (print "tandem.check." $check) $pair | splitList "\n" -}}
          {{- with trim $line }}
{{ printf "%s: %s" (join " and " $names) . }}
          {{- end -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}


{{- define "tandem.check.mode" -}}
{{- $gateway := .Values.gateway -}}
{{- $canary := .Values.canary -}}
{{- if and $canary.percent (not $canary.release) }}
{{ printf "canary.percent is %v, but there is no other release to send requests to: name it in canary.release" $canary.percent }}
{{- end -}}
{{- if eq $canary.release (include "tandem.fullname" .) }}
{{ printf "canary.release is %s, which is this release: name the other one" $canary.release }}
{{- end -}}
{{- if and $canary.release (eq .Values.mode "gateway") (not $gateway.route) }}
canary.release is set, but gateway.route is false, so this release has no route to share: set it in the release that has the route
{{- end -}}
{{- if and (eq .Values.mode "gateway") $gateway.route (not $gateway.className) (not $gateway.name) }}
mode is gateway: name the Gateway that the route attaches to in gateway.name, or have one made by gateway.className
{{- end -}}
{{- if and (eq .Values.mode "standalone") (or $gateway.className $gateway.name) }}
{{ printf "gateway.%s is set, but mode is standalone, which has an Envoy of its own: set mode to gateway, or remove it"
     (ternary "className" "name" (ne $gateway.className "")) }}
{{- end -}}
{{- if and .Values.ingress.enabled (eq .Values.mode "gateway") }}
ingress.enabled is true, but mode gateway has no Envoy that it could lead to: remove it, or set mode to standalone
{{- else if and .Values.ingress.enabled (not .Values.ingress.hosts) }}
ingress.enabled is true, but for no host: name them in ingress.hosts
{{- end -}}
{{- if and (eq .Values.mode "gateway") .Values.proxy.httpFilters }}
proxy.httpFilters is set, but mode gateway has no Envoy to use it: have the Gateway do what they do
{{- end -}}
{{- if and (eq .Values.mode "gateway") $gateway.className $gateway.namespace (ne $gateway.namespace .Release.Namespace) }}
{{ printf (print "gateway.namespace is %s, but gateway.className has a Gateway made in the release's, so the route would not "
     "find it: remove one of them") $gateway.namespace }}
{{- end -}}
{{- end -}}


{{/* vLLM in one role and a sidecar in the other serve the metrics that the picker reads. */}}
{{- define "tandem.check.tls" -}}
{{- $tls := .Values.tls -}}
{{- if and (eq .Values.mode "gateway") $tls.proxySecret }}
tls.proxySecret is set, but mode gateway has no Envoy to use it: give the certificate to the Gateway
{{- end -}}
{{- if ne (empty $tls.prefill.secret) (empty $tls.sidecarSecret) }}
{{ printf (print "%s is set, but %s is not: the picker reads the metrics of all endpoints in one way, "
     "so set both or neither") (ternary "tls.sidecarSecret" "tls.prefill.secret" (empty $tls.prefill.secret))
     (ternary "tls.prefill.secret" "tls.sidecarSecret" (empty $tls.prefill.secret)) }}
{{- end -}}
{{- if and $tls.prefill.caConfigMap (not $tls.prefill.secret) }}
tls.prefill.caConfigMap is set, but the prefill engines have no certificate: name their Secret in tls.prefill.secret
{{- end -}}
{{- if and (eq .Values.engine.type "sim") $tls.prefill.secret }}
tls.prefill.secret is set, but the simulated engine does not speak TLS: remove it
{{- else if and (eq .Values.engine.type "trtllm") (or $tls.prefill.secret $tls.sidecarSecret) }}
{{ printf (print "tls.%s is set, but engines of TensorRT-LLM do not speak TLS, and the picker reads the metrics of all endpoints in one way: "
     "remove it") (ternary "prefill.secret" "sidecarSecret" (ne $tls.prefill.secret "")) }}
{{- end -}}
{{- include "tandem.check.clients" . -}}
{{- end -}}


{{/* Mutual TLS: all clients of pickers and sidecars must have a certificate. */}}
{{- define "tandem.check.clients" -}}
{{- $tls := .Values.tls -}}
{{- $needed := list "caConfigMap" "proxySecret" "eppSecret" "sidecarSecret" -}}
{{- $set := list -}}
{{- range $key := append $needed "monitoringSecret" }}{{ if index $tls.clients $key }}{{ $set = append $set $key }}{{ end }}{{ end -}}
{{- if $set -}}
{{- if eq .Values.mode "gateway" }}
tls.clients is set, but in mode gateway your Gateway calls pickers and sidecars, and this chart cannot give it a certificate: leave tls.clients empty
{{- else -}}
{{- range $key := $needed -}}
{{- if not (has $key $set) }}
{{ printf "tls.clients.%s is empty, but tls.clients.%s is set: set all of them, or none" $key (first $set) }}
{{- end -}}
{{- end -}}
{{- range $key := list "eppSecret" "sidecarSecret" -}}
{{- if not (index $tls $key) }}
{{ printf "tls.clients.%s is set, but tls.%s is not: Envoy shows its certificate over TLS, to servers whose certificates it verifies" (first $set) $key }}
{{- end -}}
{{- end -}}
{{- if and .Values.epp.config (not (contains "clientCertPath" (toJson .Values.epp.config))) }}
{{ print "tls.clients is set, but epp.config has no clientCertPath, without which the picker cannot read the metrics of decode pods: give its "
     "metrics-data-source clientCertPath: /etc/tandem/client/tls.crt and clientKeyPath: /etc/tandem/client/tls.key" }}
{{- end -}}
{{- $monitored := include "tandem.monitoring.makes" (dict "root" . "kind" "PodMonitor" "wanted" .Values.monitoring.podMonitor) -}}
{{- if and $monitored (not $tls.clients.monitoringSecret) }}
{{ print "tls.clients.monitoringSecret is empty, but Prometheus reads the metrics of decode engines through their sidecars, which demand a "
     "certificate: name the Secret of Prometheus, or set monitoring.podMonitor to false" }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}


{{- define "tandem.check.monitoring" -}}
{{- $kinds := dict "podMonitor" "PodMonitor" "prometheusRule" "PrometheusRule" -}}
{{- range $key := keys $kinds | sortAlpha -}}
  {{- $kind := index $kinds $key -}}
  {{- if and (eq (toString (index $.Values.monitoring $key)) "true")
        (not ($.Capabilities.APIVersions.Has (print "monitoring.coreos.com/v1/" $kind))) }}
{{ printf "monitoring.%s is true, but the cluster has no kind %s: install the Prometheus operator first, or set it to auto"
     $key $kind }}
  {{- end -}}
{{- end -}}
{{- end -}}
