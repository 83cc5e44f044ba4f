{{/* What the proxy's objects share. */}}

{{- define "tandem.proxy.name" -}}
{{ include "tandem.fullname" . }}-proxy
{{- end -}}

{{/* Bytes of a size such as 64MiB. */}}
{{- define "tandem.bytes" -}}
{{- $digits := regexFind "^[0-9]+" (toString .) -}}
{{- mul (int64 $digits) (index (dict "" 1 "KiB" 1024 "MiB" 1048576 "GiB" 1073741824) (trimPrefix $digits (toString .))) -}}
{{- end -}}

{{/* Envoy's workers: as many as it has CPUs, of which it would otherwise take all of the node's. */}}
{{- define "tandem.proxy.workers" -}}
{{- $cpu := coalesce (dig "limits" "cpu" "" .) (dig "requests" "cpu" "" .) "1" | toString -}}
{{- if hasSuffix "m" $cpu -}}
{{- divf (trimSuffix "m" $cpu | float64) 1000.0 | ceil | int | max 1 -}}
{{- else -}}
{{- float64 $cpu | ceil | int | max 1 -}}
{{- end -}}
{{- end -}}

{{/*
Most bytes of Envoy's heap: 85 % of the container's memory, the rest of which stacks, sockets and code need. 0 without a limit, and with one
in peta-, exa- or milli-bytes.
*/}}
{{- define "tandem.proxy.heap" -}}
{{- $memory := dig "limits" "memory" "" . -}}
{{- if not (kindIs "string" $memory) -}}
{{- $memory = int64 $memory | toString -}}
{{- end -}}
{{- $number := regexFind "^[0-9.]+" $memory -}}
{{- $unit := get (dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776)
      (trimPrefix $number $memory) -}}
{{- if and $number $unit -}}
{{- mulf (float64 $number) $unit 0.85 | floor | int64 -}}
{{- else -}}
0
{{- end -}}
{{- end -}}

{{/* HOST:PORT of a collector that is spoken to in plaintext. Envoy itself does not speak TLS to one here. */}}
{{- define "tandem.proxy.collector" -}}
{{- $url := include "tandem.tracing.url" . -}}
{{- if hasPrefix "http://" $url }}{{ trimPrefix "http://" $url }}{{ end -}}
{{- end -}}

{{/* Of 10,000 requests, how many go to the canary. */}}
{{- define "tandem.canary.parts" -}}
{{- round (mulf 100 .Values.canary.percent) 0 | int -}}
{{- end -}}

{{/*
Envoy's bootstrap. Text and reasons are those of tandem envoy-config, whose template envoy.yaml.tmpl is; this is what its
flags would be:

  --listen=0.0.0.0:8080 --operations-address=0.0.0.0:9902 --epp=<release>-epp-replicas.<namespace>.svc:9002
  --cert-path=/etc/envoy-tls --cert-file=/etc/envoy/certificate.yaml        with tls.proxySecret
  --epp-ca=/etc/envoy-epp/ca.crt --epp-server-name=<release>-epp.<namespace>.svc   with tls.eppSecret
  --pool-tls --pool-ca=/etc/envoy-pool/ca.crt                               with tls.sidecarSecret
  --client-cert-path=/etc/envoy-client --client-cert-file=/etc/envoy/client-certificate.yaml   with tls.clients.proxySecret
  --max-heap=BYTES                                                          85 % of proxy.resources.limits.memory
  --fail-open                                                               with gateway.failureMode FailOpen
  --http-filters=FILE                                                       with proxy.httpFilters in it
  --canary=<canary.release>-proxy.<namespace>.svc:<canary.port> --canary-percent=<canary.percent> --canary-tls=<canary.tls>
  --idle-timeout=<proxy.idleSeconds>s --body-limit=<epp.bodyLimit> --otlp=<tracing.endpoint> --trace-ratio=<tracing.ratio>
*/}}
{{- define "tandem.proxy.bootstrap" -}}
{{- $tls := .Values.tls -}}
{{- $picker := dict "Plaintext" false "CAFile" "" "Name" "" -}}
{{- if $tls.eppSecret -}}
{{- $picker = dict "Plaintext" false "CAFile" "/etc/envoy-epp/ca.crt" "Name" (include "tandem.epp.host" .) -}}
{{- end -}}
{{- $pool := dict "Plaintext" true "CAFile" "" "Name" "" -}}
{{- if $tls.sidecarSecret -}}
{{- $pool = dict "Plaintext" false "CAFile" "/etc/envoy-pool/ca.crt" "Name" "" -}}
{{- end -}}
{{- $client := dict "Dir" "" "File" "" -}}
{{- if $tls.clients.proxySecret -}}
{{- $client = dict "Dir" "/etc/envoy-client" "File" "/etc/envoy/client-certificate.yaml" -}}
{{- end -}}
{{- $traces := false -}}
{{- with include "tandem.proxy.collector" . -}}
{{- $traces = dict "Host" (regexReplaceAll ":[0-9]+$" . "" | trimAll "[]") "Port" (regexFind "[0-9]+$" . | int) -}}
{{- end -}}
{{- $other := false -}}
{{- with .Values.canary -}}
{{- if .release -}}
{{- $other = dict "Host" (printf "%s-proxy.%s.svc" .release $.Release.Namespace) "Port" (int .port) "TLS" .tls
      "Parts" (include "tandem.canary.parts" $ | int) -}}
{{- end -}}
{{- end -}}
{{- $page := dict
      "CanaryName" "canary" "Other" $other
      "Listener" "tandem" "PoolName" "pool" "PickerName" "epp"
      "LargeName" "large" "OpenName" "open" "PickLost" "x-tandem-pick-lost"
      "LargeFrom" (ternary 1 32769 (eq .Values.gateway.failureMode "FailOpen"))
      "Destination" "x-gateway-destination-endpoint" "Served" "x-gateway-destination-endpoint-served"
      "ListenOn" (dict "Host" "0.0.0.0" "Port" 8080)
      "AdminPage" (dict "Host" "127.0.0.1" "Port" 9901)
      "OperationsPage" (dict "Host" "0.0.0.0" "Port" (include "tandem.proxy.operationsPort" .))
      "Cert" (dict "Dir" (ternary "/etc/envoy-tls" "" (ne $tls.proxySecret "")) "File" "/etc/envoy/certificate.yaml")
      "ClientCA" "" "Client" $client
      "HTTPFilters" (ternary (toYaml .Values.proxy.httpFilters) "" (not (empty .Values.proxy.httpFilters)))
      "Peers" (list (dict "Host" (printf "%s.%s.svc" (include "tandem.epp.replicasName" .) .Release.Namespace) "Port" 9002))
      "Named" true "PickerTLS" $picker "PoolTLS" $pool "Pool" "eds"
      "ExtProc" (list
        (dict "Mark" "picker" "Picks" true "Accounts" false)
        (dict "Mark" "acct" "Picks" false "Accounts" true))
      "Internal" (list "prefix: x-prefiller-" "prefix: x-encoder-" "prefix: x-kv-cache-" "prefix: x-data-parallel-"
        "prefix: x-gateway-destination-" "prefix: x-llm-d-prefiller-" "prefix: x-llm-d-encoder-" "prefix: x-llm-d-kv-cache-" "exact: x-llm-d-model-name-rewrite" "exact: x-gateway-model-name-rewrite"
        `safe_regex: { regex: "x-tandem-([^p].*|p|p[^d].*|pd.+)?" }`)
      "IdleSeconds" (int .Values.proxy.idleSeconds) "BodyLimit" (include "tandem.bytes" .Values.epp.bodyLimit | int64)
      "MaxHeap" (include "tandem.proxy.heap" .Values.proxy.resources | int64)
      "FailOpen" (eq .Values.gateway.failureMode "FailOpen") "PoolHTTP2" false
      "AccessLog" false "Traces" $traces "SampledPercent" (mulf 100 .Values.tracing.ratio | float64)
-}}
{{- tpl (.Files.Get "envoy.yaml.tmpl") $page -}}
{{- end -}}
