{{/*
What templates share: names, labels, images, ports, and the one place where time-outs come from. Helpers of one component
take (dict "root" $ "component" "prefill"); the components are prefill, decode, epp and proxy.
*/}}

{{- define "tandem.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/*
First part of every object's name. It leaves 16 characters to suffixes, since Services end at 63. What is cut is told apart
by a digest: two long release names that begin alike must not share objects.
*/}}
{{- define "tandem.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $chart := include "tandem.name" . -}}
{{- $name = ternary .Release.Name (printf "%s-%s" .Release.Name $chart) (contains $chart .Release.Name) -}}
{{- end -}}
{{- if gt (len $name) 47 -}}
{{- $name = printf "%s-%s" (trunc 40 $name | trimSuffix "-") (sha256sum $name | trunc 6) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "tandem.component.name" -}}
{{ include "tandem.fullname" .root }}-{{ .component }}{{ with .variant }}-{{ . }}{{ end }}
{{- end -}}

{{/* The names of the variants of a component, of (dict "root" $ "component" "decode"), as a JSON list: one empty name if it has none. */}}
{{- define "tandem.variants" -}}
{{- dig "variants" dict (index .root.Values .component) | keys | sortAlpha | default (list "") | toJson -}}
{{- end -}}

{{/* Sets "values" of (dict "root" $ "component" "decode" "variant" "h100") to the values of that variant: those of the role, but for what the variant
has itself. Lists and mappings of the variant take the place of the role's; of autoscaling and parallelism each member does. Without variant,
they are those of the component. It prints nothing. */}}
{{- define "tandem.variant" -}}
{{- $values := deepCopy (index .root.Values .component) -}}
{{- range $key, $value := dig "variants" .variant dict $values -}}
  {{- if has $key (list "autoscaling" "parallelism") -}}
    {{- range $member, $own := $value }}{{ $_ := set (index $values $key) $member $own }}{{ end -}}
  {{- else -}}
    {{- $_ := set $values $key $value -}}
  {{- end -}}
{{- end -}}
{{- $_ := set . "values" $values -}}
{{- end -}}

{{/* How many pods a component has at least, over all of its variants: (dict "root" $ "component" "decode"). */}}
{{- define "tandem.least" -}}
{{- $sum := 0 -}}
{{- $component := . -}}
{{- range $variant := include "tandem.variants" . | fromJsonArray -}}
  {{- $at := dict "root" $component.root "component" $component.component "variant" $variant -}}
  {{- include "tandem.variant" $at -}}
  {{- $sum = add $sum (ternary (dig "autoscaling" "minReplicas" 0 $at.values) $at.values.replicas (dig "autoscaling" "enabled" false $at.values) | int) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* Labels of an object of a component. The chart's win over commonLabels. */}}
{{- define "tandem.labels" -}}
{{- $own := include "tandem.ownLabels" . | fromYaml -}}
{{- merge $own .root.Values.commonLabels | toYaml -}}
{{- end -}}

{{- define "tandem.ownLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{ include "tandem.selectorLabels" . }}
{{- end -}}

{{/*
Labels of a component's pods, of which (dict "root" $ "component" "epp" "values" .Values.epp) names the values. The chart's
version is not among them: an upgrade that changes nothing else should not restart engines that load for an hour. Workers of a group
serve nothing, so they are no endpoints.
*/}}
{{- define "tandem.podLabels" -}}
{{- $own := include "tandem.selectorLabels" . | fromYaml -}}
{{- if and (has .component (include "tandem.roles" .root | fromJsonArray)) (not .worker) -}}
{{- $own = merge $own (dict "llm-d.ai/role" .component "llm-d.ai/engine-type" (include "tandem.engineName" .root) "llm-d.ai/inference-serving" "true") -}}
{{- if .variant }}{{ $_ := set $own "llm-d.ai/variant-cost" (toString .values.cost) }}{{ end -}}
{{- end -}}
{{- merge $own .values.podLabels .root.Values.commonLabels | toYaml -}}
{{- end -}}

{{/* The hand-off protocols that engines of engine.type have, as the sidecar's --kv-connector names them: a JSON list. The first is the
chart's choice. */}}
{{- define "tandem.connectors" -}}
{{- dict "vllm" (list "nixlv2" "nixl-push" "mooncake" "moriio" "offloading" "shared-storage") "sglang" (list "sglang")
      "trtllm" (list "trtllm" "trtllm-generation-first") "sim" (list "nixlv2" "nixl-push") | dig .Values.engine.type list | toJson -}}
{{- end -}}

{{/* The roles of the release's engines: a JSON list. */}}
{{- define "tandem.roles" -}}
{{- $roles := list "prefill" "decode" -}}
{{- if .Values.encoder.connector }}{{ $roles = append $roles "encode" }}{{ end -}}
{{- toJson $roles -}}
{{- end -}}

{{/* The hand-off protocol of the sidecars. */}}
{{- define "tandem.connector" -}}
{{- default (include "tandem.connectors" . | fromJsonArray | first) .Values.sidecar.connector -}}
{{- end -}}

{{/* Whether engines keep hand-offs for engine.leaseSeconds, and have a NIXL side channel: "true" or nothing. */}}
{{- define "tandem.leased" -}}
{{- if has (include "tandem.connector" .) (list "nixlv2" "nixl-push") }}true{{ end -}}
{{- end -}}

{{/* Whether engines store KV caches as files in engine.sharedStorage: "true" or nothing. */}}
{{- define "tandem.files" -}}
{{- $storage := .Values.engine.sharedStorage -}}
{{- if or $storage.claimName $storage.hostPath (eq (include "tandem.connector" .) "shared-storage") }}true{{ end -}}
{{- end -}}

{{/* The engine whose API and metrics the engines have, as their label names it: the simulated one has vLLM's. */}}
{{- define "tandem.engineName" -}}
{{- get (dict "vllm" "vllm" "sim" "vllm" "sglang" "sglang" "trtllm" "trtllm-serve") .Values.engine.type -}}
{{- end -}}

{{/* Where engines have their metrics page. TensorRT-LLM has its iterations at /metrics, as JSON. */}}
{{- define "tandem.engine.metricsPath" -}}
{{- ternary "/prometheus/metrics" "/metrics" (eq .Values.engine.type "trtllm") -}}
{{- end -}}

{{- define "tandem.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tandem.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .variant }}
llm-d.ai/variant: {{ $.component }}-{{ . }}
{{- end }}
{{- end -}}

{{/* Labels that make a pod an endpoint of this release: the InferencePool's selector. Pods of both roles have them. */}}
{{- define "tandem.poolSelector" -}}
app.kubernetes.io/name: {{ include "tandem.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
llm-d.ai/inference-serving: "true"
{{- end -}}

{{/* The same as the picker's flag takes it. */}}
{{- define "tandem.poolSelectorText" -}}
{{- $labels := include "tandem.poolSelector" . | fromYaml -}}
{{- $terms := list -}}
{{- range $key, $value := $labels }}{{ $terms = append $terms (printf "%s=%s" $key $value) }}{{ end -}}
{{- join "," $terms -}}
{{- end -}}

{{/*
Image of (dict "root" $ "image" .Values.epp.image "name" "epp"). Images of other projects have no name. A digest wins over a
tag.
*/}}
{{- define "tandem.image" -}}
{{- $images := .root.Values.images -}}
{{- $repository := .image.repository -}}
{{- if not $repository -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" $images.registry) .name -}}
{{- else if and $images.mirror (not .name) (not (regexMatch "^([^/]+[.:][^/]*|localhost)/" $repository)) -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" $images.mirror) $repository -}}
{{- end -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ if .name }}{{ coalesce .image.tag $images.tag .root.Chart.AppVersion }}{{ else }}{{ .image.tag }}{{ end }}
{{- end -}}
{{- end -}}

{{/* image and imagePullPolicy of a container. */}}
{{- define "tandem.container.image" -}}
image: {{ include "tandem.image" . }}
imagePullPolicy: {{ .image.pullPolicy }}
{{- end -}}

{{/*
Target ports of the pool as a YAML list: one for each data-parallel rank of the role that has more of them. Pods of the other
role say with the annotation llm-d.ai/active-ports which of them they serve.
*/}}
{{- define "tandem.targetPorts" -}}
{{- range $rank := until (int (include "tandem.ranks" .)) }}
- {{ add 8000 $rank }}
{{- end }}
{{- end -}}

{{/* The same with commas, as the picker's flag and the annotation take it. */}}
{{- define "tandem.targetPortsText" -}}
{{- include "tandem.portsText" (int (include "tandem.ranks" .)) -}}
{{- end -}}

{{- define "tandem.portsText" -}}
{{- $ports := list -}}
{{- range $rank := until . }}{{ $ports = append $ports (toString (add 8000 $rank)) }}{{ end -}}
{{- join "," $ports -}}
{{- end -}}

{{- define "tandem.ranks" -}}
{{- max (include "tandem.ports" .Values.prefill | int) (include "tandem.ports" .Values.decode | int) -}}
{{- end -}}

{{/* How many ports a pod of a role serves at, from the role's values: one for each of its ranks. All ranks of a group have the leader's. */}}
{{- define "tandem.ports" -}}
{{- if include "tandem.grouped" . }}1{{ else }}{{ int .parallelism.data }}{{ end -}}
{{- end -}}

{{/* Whether an engine of a role spans several pods, from the role's values: "true" or nothing. */}}
{{- define "tandem.grouped" -}}
{{- if gt (int .group.size) 1 }}true{{ end -}}
{{- end -}}

{{/* Where Envoy says whether it is ready and what it counts; clients have 8080. */}}
{{- define "tandem.proxy.operationsPort" -}}9902{{- end -}}

{{/*
Seconds until everything that a pod has begun must have ended. All of them follow from drainSeconds, so that none can end
before the one it waits for:

  drain.settle   3                  pickers and proxies see the pod leave; what they had sent by then still comes in
  drain.hook     drainSeconds - 10  preStop of engines, settling included: waits for requests and unread hand-offs
  drain.engine   5                  --shutdown-timeout: what the hook's bound cut off, or no hook ran
  drain.sidecar  5                  --drain-timeout: a native sidecar is told to stop after the engine has ended, so nothing
                                    of worth can be running; it tells late callers to try another pod. Streams that have left
                                    for other engines (sidecar.continuation) it passes on for drain.full after the hook began
  drain.full     drainSeconds       picker's --drain-timeout and the bound of Envoy's preStop: no other part waits for them
  drain.grace    drainSeconds + 10  terminationGracePeriodSeconds of all pods: the above, and time to exit

The schema keeps drainSeconds at 20 or more, so that the hook is longer than the settling.
*/}}
{{- define "tandem.drain.settle" -}}3{{- end -}}
{{- define "tandem.drain.hook" -}}{{ sub (int .Values.drainSeconds) 10 }}{{- end -}}
{{- define "tandem.drain.engine" -}}5{{- end -}}
{{- define "tandem.drain.sidecar" -}}5{{- end -}}
{{- define "tandem.drain.full" -}}{{ int .Values.drainSeconds }}{{- end -}}
{{- define "tandem.drain.grace" -}}{{ add (int .Values.drainSeconds) 10 }}{{- end -}}

{{/*
What every pod of the release says of itself: the level `restricted` of pod security. The images of this project run as
65532, engines as engine.runAsUser; (dict "user" 65532).
*/}}
{{- define "tandem.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ int .user }}
runAsGroup: {{ int .user }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "tandem.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/*
Where pods of a component run, from its values: (dict "root" $ "component" "epp" "values" .Values.epp). Keys of a pod's spec.
*/}}
{{- define "tandem.placement" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "tandem.spread" . | trim }}
topologySpreadConstraints:
  {{- . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
How pods are spread: as spreadBy says, and as further constraints do. Pods of an older revision do not count: else a rollout ends
where the old pods were not, and is skewed.
*/}}
{{- define "tandem.spread" -}}
{{- $groups := gt (dig "group" "size" 1 .values | int) 1 -}}
{{- $own := dict "matchLabelKeys" (list (ternary "leaderworkerset.sigs.k8s.io/template-revision-hash" "pod-template-hash" $groups))
      "labelSelector" (dict "matchLabels" (include "tandem.selectorLabels" . | fromYaml)) -}}
{{- $constraints := list -}}
{{- $keys := list -}}
{{- range .values.topologySpreadConstraints -}}
{{- $keys = append $keys .topologyKey -}}
{{- $constraints = append $constraints (ternary . (merge (deepCopy .) $own) (hasKey . "labelSelector")) -}}
{{- end -}}
{{- with .values.spreadBy -}}
{{- if not (has . $keys) -}}
{{- $constraint := merge (dict "topologyKey" . "maxSkew" 1 "whenUnsatisfiable" "ScheduleAnyway") $own -}}
{{- $constraints = prepend $constraints $constraint -}}
{{- end -}}
{{- end -}}
{{- with $constraints }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* The collector's URL, from HOST, HOST:PORT or a URL: nothing if there is none. */}}
{{- define "tandem.tracing.url" -}}
{{- with .Values.tracing.endpoint | trimSuffix "/" -}}
{{- $scheme := default "http://" (regexFind "^https?://" .) -}}
{{- $address := trimPrefix $scheme . -}}
{{ $scheme }}{{ $address }}{{ if not (regexMatch ":[0-9]+$" $address) }}:4317{{ end }}
{{- end -}}
{{- end -}}

{{/* Environment that makes a program of this project trace: list items, or nothing. Resource attributes name the pod. */}}
{{- define "tandem.otelEnv" -}}
{{- with .Values.tracing }}{{ if .endpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ include "tandem.tracing.url" $ | quote }}}
- {name: OTEL_TRACES_SAMPLER, value: parentbased_traceidratio}
- {name: OTEL_TRACES_SAMPLER_ARG, value: {{ quote .ratio }}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.pod.name=$(POD_NAME),k8s.namespace.name=$(POD_NAMESPACE),service.namespace={{ $.Release.Name }}
{{- end }}{{ end }}
{{- end -}}

{{/* A quantity of bytes as Kubernetes writes it, in MiB. */}}
{{- define "tandem.mebibytes" -}}
{{- $factors := dict "" 9.5367431640625e-7 "k" 9.5367431640625e-4 "M" 0.95367431640625 "G" 953.67431640625 "T" 953674.31640625
      "Ki" 0.0009765625 "Mi" 1.0 "Gi" 1024.0 "Ti" 1048576.0 -}}
{{- $number := regexFind "^[0-9.]+" (toString .) -}}
{{- mulf (float64 $number) (index $factors (trimPrefix $number (toString .)) | default 0.0) -}}
{{- end -}}
