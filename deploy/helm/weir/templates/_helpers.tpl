{{- define "weir.name" -}}
{{- if contains "weir" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-weir" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "weir.selector" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "weir.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* "yes" if all state is in a Redis. */}}
{{- define "weir.redis" -}}
{{- if or .Values.redis.existingSecret .Values.redis.url }}yes{{ end }}
{{- end }}

{{- define "weir.replicas" -}}
{{- $all := .Values.replicas | default (ternary 2 1 (eq (include "weir.redis" .) "yes")) | int }}
{{- if and (gt $all 1) (not (include "weir.redis" .)) }}
{{- fail "replicas: the embedded store serves one replica only; set redis.existingSecret or redis.url" }}
{{- end }}
{{- $all }}
{{- end }}

{{- define "weir.redisSecret" -}}{{ .Values.redis.existingSecret | default (printf "%s-redis" (include "weir.name" .)) }}{{- end }}
{{- define "weir.tokensSecret" -}}{{ .Values.tokens.existingSecret | default (printf "%s-tokens" (include "weir.name" .)) }}{{- end }}
{{- define "weir.tlsSecret" -}}{{ .Values.tls.existingSecret | default (printf "%s-tls" (include "weir.name" .)) }}{{- end }}
{{- define "weir.claim" -}}{{ .Values.persistence.existingClaim | default (include "weir.name" .) }}{{- end }}
{{- define "weir.policyset" -}}
{{- if .Values.policyset.existingConfigMap }}{{ .Values.policyset.existingConfigMap }}{{ else if .Values.policyset.files }}{{ include "weir.name" . }}-policyset{{ end }}
{{- end }}

{{- define "weir.host" -}}{{ include "weir.name" . }}.{{ .Release.Namespace }}.svc.cluster.local{{- end }}
{{- define "weir.filter" -}}{{ .Values.filter.image }}:{{ .Values.filter.tag | default .Chart.AppVersion }}{{- end }}
