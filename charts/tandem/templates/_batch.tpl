{{/* What the batch server's objects share. */}}

{{- define "tandem.batch.name" -}}
{{ include "tandem.fullname" . }}-batch
{{- end -}}

{{/* The claim with the database and the files. */}}
{{- define "tandem.batch.claim" -}}
{{- default (include "tandem.batch.name" .) .Values.batch.storage.existingClaim -}}
{{- end -}}

{{/* Whether requests go to the release's own Envoy. */}}
{{- define "tandem.batch.own" -}}
{{- if not .Values.batch.upstream }}true{{ end -}}
{{- end -}}

{{- define "tandem.batch.upstream" -}}
{{- if include "tandem.batch.own" . -}}
{{- $scheme := ternary "https" "http" (ne .Values.tls.proxySecret "") -}}
{{ $scheme }}://{{ include "tandem.proxy.name" . }}.{{ .Release.Namespace }}.svc:{{ .Values.proxy.port }}
{{- else -}}
{{ .Values.batch.upstream }}
{{- end -}}
{{- end -}}

{{/* Secret with the API key for the upstream: that of the engines, if requests go to them. */}}
{{- define "tandem.batch.key" -}}
{{- if .Values.batch.upstreamKeySecret -}}
{{ .Values.batch.upstreamKeySecret }}
{{- else if include "tandem.batch.own" . -}}
{{ .Values.engine.apiKeySecret }}
{{- end -}}
{{- end -}}

{{/* Credentials of the bucket: list items, or nothing. */}}
{{- define "tandem.batch.credentials" -}}
{{- with .Values.batch.shared.credentialsSecret }}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ . }}, key: AWS_ACCESS_KEY_ID}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: AWS_SECRET_ACCESS_KEY}}
{{- end }}
{{- end -}}

{{- define "tandem.batch.args" -}}
- --host=
{{- if .Values.batch.shared.databaseSecret }}
- --database-file=/etc/tandem/database/address
- --bucket={{ .Values.batch.shared.bucket }}
{{- else }}
- --data=/data
{{- end }}
- --upstream={{ include "tandem.batch.upstream" . }}
{{- if include "tandem.batch.key" . }}
- --upstream-key-file=/etc/tandem/key/key
{{- end }}
{{- if and (include "tandem.batch.own" .) .Values.tls.proxySecret }}
- --upstream-ca-file=/etc/tandem/upstream/ca.crt
{{- end }}
- --objective={{ .Values.batch.objective }}
{{- with .Values.batch.tenantHeader }}
- --tenant-header={{ . }}
{{- end }}
{{- if .Values.batch.tlsSecret }}
- --secure-serving
- --cert-path=/etc/tandem/tls
{{- end }}
{{- if or .Values.batch.queues.secret .Values.batch.queues.configMap }}
- --queues-file=/etc/tandem/queues/queues.yaml
{{- end }}
{{- with .Values.batch.webhook.url }}
- --webhook-url={{ . }}
- --webhook-secret-file=/etc/tandem/webhook/secret
{{- end }}
- --drain-timeout={{ include "tandem.drain.full" . }}s
- --log-format=json
- --log-level={{ .Values.batch.logLevel }}
{{- range .Values.batch.extraArgs }}
- {{ quote . }}
{{- end }}
{{- end -}}
