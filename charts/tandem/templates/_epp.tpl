{{/* What the picker's objects share. */}}

{{- define "tandem.epp.name" -}}
{{ include "tandem.fullname" . }}-epp
{{- end -}}

{{/* DNS name of the picker's Service, which its certificate must be for if tls.eppSecret has one. */}}
{{- define "tandem.epp.host" -}}
{{ include "tandem.epp.name" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* Service that resolves to all replicas, over which Envoy spreads streams. */}}
{{- define "tandem.epp.replicasName" -}}
{{ include "tandem.epp.name" . }}-replicas
{{- end -}}

{{- define "tandem.epp.serviceAccountName" -}}
{{ default (include "tandem.epp.name" .) .Values.serviceAccount.name }}
{{- end -}}

{{/* pool or selector: gateways need an InferencePool, the chart's Envoy does not. */}}
{{- define "tandem.discovery" -}}
{{ default (ternary "pool" "selector" (eq .Values.mode "gateway")) .Values.epp.discovery }}
{{- end -}}

{{/*
Environment of a program in Go with these resources. The garbage collector works harder before the limit is reached, instead
of the kernel killing the process; GOMAXPROCS follows the CPU limit by itself.
*/}}
{{- define "tandem.goEnv" -}}
{{- with dig "limits" "memory" "" . }}
- {name: GOMEMLIMIT, value: {{ printf "%dMiB" (include "tandem.mebibytes" . | float64 | mulf 0.9 | floor | int) }}}
{{- end }}
{{- end -}}

{{/*
Labels of an object that other programs select by labels which the user sets: (dict "root" $ "component" "epp" "more"
.Values.…). Where both set a label, the chart's value wins.
*/}}
{{- define "tandem.labelsAnd" -}}
{{- merge (include "tandem.ownLabels" . | fromYaml) .more .root.Values.commonLabels | toYaml -}}
{{- end -}}

{{/* Whether to make an object of a kind: (dict "root" $ "kind" "PodMonitor" "wanted" "auto"). */}}
{{- define "tandem.monitoring.makes" -}}
{{- $known := .root.Capabilities.APIVersions.Has (print "monitoring.coreos.com/v1/" .kind) -}}
{{- if or (eq (toString .wanted) "true") (and (eq (toString .wanted) "auto") $known) -}}true{{- end -}}
{{- end -}}

{{/* Whether it is decided by cost where a prompt is computed: "true" or nothing. */}}
{{- define "tandem.byCost" -}}
{{- if and (not .Values.epp.config) (kindIs "invalid" .Values.epp.threshold) }}true{{ end -}}
{{- end -}}

{{/* The slots of an engine, of which batches leave some free, or nothing. */}}
{{- define "tandem.slots" -}}
{{- if and .Values.batch.enabled .Values.batch.slots.perEngine (not .Values.epp.config) }}{{ int .Values.batch.slots.perEngine }}{{ end -}}
{{- end -}}

{{/* Whether KEDA asks the picker how many pods there should be, by the values of a role's autoscaling: "true" or nothing. */}}
{{- define "tandem.asksPicker" -}}
{{- if and .enabled (eq .scaler "keda") (eq .metric "tandem_desired_replicas") (not .prometheus) }}true{{ end -}}
{{- end -}}

{{/* Whether KEDA asks the picker about any role: "true" or nothing. */}}
{{- define "tandem.scaler" -}}
{{- $asks := "" -}}
{{- range include "tandem.roles" . | fromJsonArray }}{{ $asks = print $asks (include "tandem.asksPicker" (index $.Values .).autoscaling) }}{{ end -}}
{{- if $asks }}true{{ end -}}
{{- end -}}

{{/* The parameters of the replica-sizer of the chart's own configuration, as JSON; empty if no role is scaled by it. */}}
{{- define "tandem.sizer.made" -}}
{{- $made := dict "ttftMs" .Values.epp.goals.ttftMs "tpotMs" .Values.epp.goals.tpotMs -}}
{{- $sized := false -}}
{{- $variants := list -}}
{{- range $role := list "prefill" "decode" -}}
  {{- range $variant := include "tandem.variants" (dict "root" $ "component" $role) | fromJsonArray -}}
    {{- $at := dict "root" $ "component" $role "variant" $variant -}}
    {{- include "tandem.variant" $at -}}
    {{- $scaling := $at.values.autoscaling -}}
    {{- $limits := dict "minReplicas" (int $at.values.replicas) "maxReplicas" (int $at.values.replicas) -}}
    {{- if $scaling.enabled -}}
      {{- $limits = dict "minReplicas" (int $scaling.minReplicas) "maxReplicas" (int $scaling.maxReplicas) -}}
      {{- $sized = or $sized (regexMatch "^tandem_(desired|needed)_replicas$" $scaling.metric) -}}
    {{- end -}}
    {{- if not $variant -}}
      {{- $_ := set $made $role $limits -}}
    {{- else if $limits.maxReplicas -}}
      {{- $one := dict "variant" (printf "%s-%s" $role $variant) "role" $role "variantCost" $at.values.cost -}}
      {{- range $goal, $ms := dig "goals" dict $at.values }}{{ $_ := set $one $goal $ms }}{{ end -}}
      {{- $variants = append $variants (merge $one $limits) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- with $variants }}{{ $_ := set $made "variants" . }}{{ end -}}
{{- if and $sized (not .Values.epp.config) }}{{ toJson $made }}{{ end -}}
{{- end -}}

{{/* The EndpointPickerConfig. */}}
{{- define "tandem.epp.config" -}}
{{- with .Values.epp.config -}}
{{ merge (deepCopy .) (dict "apiVersion" "llm-d.ai/v1alpha1" "kind" "EndpointPickerConfig") | toYaml }}
{{- else -}}
{{- $lists := not (and (eq .Values.mode "gateway") .Values.gateway.singleEndpoint) -}}
{{- $decider := ternary "cost-pd-decider" "prefix-based-pd-decider" (eq (include "tandem.byCost" .) "true") -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
{{- if include "tandem.slots" . }}
featureGates: [flowControl]
{{- end }}
plugins:
  - type: disagg-profile-handler
    parameters:
      deciders: {prefill: {{ $decider }}{{ if .Values.encoder.connector }}, encode: always-disagg-multimodal-decider{{ end }}}
      onNoPrefill: {{ .Values.epp.onNoPrefill }}   # epp.onNoPrefill
  - type: {{ $decider }}
    {{- if include "tandem.byCost" . }}
    parameters: {ttftMs: {{ .Values.epp.goals.ttftMs }}, tpotMs: {{ .Values.epp.goals.tpotMs }}}   # epp.goals
    {{- else }}
    parameters:
      nonCachedTokens: {{ .Values.epp.threshold }}   # epp.threshold
    {{- end }}
  - type: approx-prefix-cache-producer
    parameters:
      blockSizeTokens: {{ .Values.engine.blockSize }}   # engine.blockSize: engines reuse whole blocks only
  - type: inflight-load-producer
  - type: decode-filter
  - type: prefill-filter
  {{- if .Values.encoder.connector }}
  - type: encode-filter
  - type: always-disagg-multimodal-decider
  - type: mm-embeddings-cache-scorer
  - type: max-score-picker
    name: encoders
    parameters:
      maxNumOfEndpoints: {{ int .Values.encoder.perRequest }}   # encoder.perRequest
  {{- end }}
  - type: queue-scorer
  - type: kv-cache-utilization-scorer
  - type: active-request-scorer
  - type: prefix-cache-scorer
  - type: token-load-scorer
  - type: max-score-picker
    {{- if $lists }}
    parameters:
      maxNumOfEndpoints: 2   # the proxy tries the second where the first does not answer
    {{- end }}
  - type: utilization-detector   # 429 instead of a place behind 32 requests, or as many as the engine runs if that is more
    parameters:
      queueDepthThreshold: 8   # a quarter of that refuses requests of negative priority
      queueDepthPerRunning: 0.25
      headroom: 3
      onAllFull: refuse
  {{- if .Values.batch.enabled }}
  - type: slo-headroom-reporter   # by which the batch server paces its requests
    {{- with .Values.batch.goals }}
    {{- if or .ttftMs .tpotMs }}
    parameters: {ttftMs: {{ .ttftMs }}, tpotMs: {{ .tpotMs }}}   # batch.goals
    {{- end }}
    {{- end }}
  {{- end }}
  {{- if or .Values.prefill.variants .Values.decode.variants }}
  - type: cheapest-variant-filter   # by the costs of the variants, and epp.goals; decode pods compute short prompts only
    parameters: {ttftMs: {{ .Values.epp.goals.ttftMs }}, tpotMs: {{ .Values.epp.goals.tpotMs }}, predictions: [tpot]}
  {{- end }}
  {{- with include "tandem.sizer.made" . }}
  - type: replica-sizer   # epp.goals, and the limits of the autoscalers
    parameters: {{ . }}
  {{- end }}
  {{- with include "tandem.slots" . }}
  - type: concurrency-detector
    parameters: {maxConcurrency: {{ . }}}   # batch.slots.perEngine
  - type: priority-holdback-policy
    parameters: {minCeiling: {{ subf 1 $.Values.batch.slots.kept }}}   # batch.slots.kept
  {{- end }}
  {{- if eq (include "tandem.engineName" .) "sglang" }}
  # Without a list the picker reads all calls but SGLang's own, /generate, since other engines have another one there.
  - type: openai-parser
  - type: anthropic-parser
  - type: sglanghttp-parser
  {{- end }}
  {{- if .Values.tls.sidecarSecret }}
  - type: metrics-data-source
    parameters:
      scheme: https
      insecureSkipVerify: true   # pods are asked by their addresses, which no certificate names
      {{- if .Values.tls.clients.eppSecret }}
      clientCertPath: /etc/tandem/client/tls.crt
      clientKeyPath: /etc/tandem/client/tls.key
      {{- end }}
  - type: core-metrics-extractor
  {{- end }}
{{- if eq (include "tandem.engineName" .) "sglang" }}
requestHandler:
  parsers:
    - pluginRef: openai-parser
    - pluginRef: anthropic-parser
    - pluginRef: sglanghttp-parser
{{- end }}
{{- if include "tandem.slots" . }}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  usageLimitPolicyPluginRef: priority-holdback-policy
  enableEviction: true
{{- else }}
saturationDetector:
  pluginRef: utilization-detector
{{- end }}
schedulingProfiles:
  - name: decode
    plugins:
      - pluginRef: decode-filter
      - pluginRef: utilization-detector
      {{- if .Values.decode.variants }}
      - pluginRef: cheapest-variant-filter
      {{- end }}
      - {pluginRef: queue-scorer, weight: 2}
      - {pluginRef: kv-cache-utilization-scorer, weight: 2}
      - {pluginRef: active-request-scorer, weight: 2}
      - {pluginRef: prefix-cache-scorer, weight: 3}
      - pluginRef: max-score-picker
  - name: prefill
    plugins:
      - pluginRef: prefill-filter
      - pluginRef: utilization-detector
      {{- if .Values.prefill.variants }}
      - pluginRef: cheapest-variant-filter
      {{- end }}
      - pluginRef: token-load-scorer
      - pluginRef: max-score-picker
{{- if .Values.encoder.connector }}
  - name: encode
    plugins:
      - pluginRef: encode-filter
      - {pluginRef: mm-embeddings-cache-scorer, weight: 2}
      - pluginRef: queue-scorer
      - pluginRef: encoders
{{- end }}
{{- if .Values.tls.sidecarSecret }}
dataLayer:
  sources:
    - pluginRef: metrics-data-source
      extractors:
        - pluginRef: core-metrics-extractor
{{- end }}
{{- end -}}
{{- end -}}

{{/* The objectives of the values, and that of the batch server, as a YAML list. */}}
{{- define "tandem.epp.objectives" -}}
{{- $all := .Values.epp.objectives -}}
{{- $names := list -}}
{{- range $all }}{{ $names = append $names .name }}{{ end -}}
{{- if and .Values.batch.enabled (not (has .Values.batch.objective $names)) -}}
{{- $all = append $all (dict "name" .Values.batch.objective "priority" (int .Values.batch.priority)) -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* Objectives and rewrites as Kubernetes objects, for the cluster or for the picker's file. */}}
{{- define "tandem.epp.policy" -}}
{{- $root := . -}}
{{- $labels := include "tandem.labels" (dict "root" . "component" "epp") -}}
{{- range include "tandem.epp.objectives" . | fromYamlArray }}
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- $labels | nindent 4 }}
spec:
  priority: {{ .priority }}
  poolRef:
    {{- include "tandem.poolRef" $root | nindent 4 }}
{{- end }}
{{- range .Values.epp.rewrites }}
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- $labels | nindent 4 }}
spec:
  poolRef:
    {{- include "tandem.poolRef" $root | nindent 4 }}
  rules:
    {{- range .rules }}
    - targets:
        {{- range .targets }}
        - modelRewrite: {{ quote .model }}
          weight: {{ default 1 .weight }}
        {{- end }}
      {{- with .matches }}
      matches:
        {{- range . }}
        - model: {type: Exact, value: {{ quote . }}}
        {{- end }}
      {{- end }}
    {{- end }}
{{- end }}
{{- end -}}

{{- define "tandem.poolRef" -}}
group: inference.networking.k8s.io
kind: InferencePool
name: {{ include "tandem.fullname" . }}
{{- end -}}

{{/* The policy is a file if the picker does not read it from the cluster. */}}
{{- define "tandem.epp.policyFile" -}}
{{- if and (eq (include "tandem.discovery" .) "selector") (or (ne "[]" (include "tandem.epp.objectives" .)) .Values.epp.rewrites) }}true{{ end -}}
{{- end -}}

{{- define "tandem.epp.args" -}}
{{- if eq (include "tandem.discovery" .) "pool" }}
- --pool-name={{ include "tandem.fullname" . }}
{{- else }}
- --endpoint-selector={{ include "tandem.poolSelectorText" . }}
- --endpoint-target-ports={{ include "tandem.targetPortsText" . }}
{{- end }}
- --pool-namespace={{ .Release.Namespace }}
- --config-file=/etc/tandem/config/config.yaml
{{- if include "tandem.epp.policyFile" . }}
- --policy-file=/etc/tandem/policy/policy.yaml
{{- end }}
{{- if .Values.tls.eppSecret }}
- --cert-path=/etc/tandem/tls
{{- end }}
{{- if .Values.tls.clients.caConfigMap }}
- --client-ca=/etc/tandem/clients-ca/ca.crt
{{- end }}
{{- if .Values.epp.authSecret }}
- --auth-file=/etc/tandem/auth/secret
{{- end }}
{{- if and (eq .Values.mode "gateway") .Values.gateway.singleEndpoint }}
- --single-endpoint
{{- end }}
{{- if include "tandem.scaler" . }}
- --scaler-address=:9006
{{- end }}
{{- if .Values.epp.markPodsToGo }}
- --mark-pods-to-go
{{- end }}
{{- if gt (int .Values.epp.replicas) 1 }}
- --share-address=:9004
- --share-with={{ include "tandem.epp.replicasName" . }}.{{ .Release.Namespace }}.svc:9004
{{- if .Values.epp.shareKeySecret }}
- --share-key-file=/etc/tandem/share/key
{{- end }}
{{- end }}
- --tandem-headers=always
- --pd-header={{ ternary "on" "off" .Values.epp.pdHeader }}
- --body-limit={{ .Values.epp.bodyLimit }}
- --drain-timeout={{ include "tandem.drain.full" . }}s
- --log-format=json
- --log-level={{ .Values.epp.logLevel }}
{{- range .Values.epp.extraArgs }}
- {{ quote . }}
{{- end }}
{{- end -}}
