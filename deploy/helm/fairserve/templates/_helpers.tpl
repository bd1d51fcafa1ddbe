{{- define "fairserve.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "fairserve.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "fairserve.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "fairserve.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "fairserve.selector" -}}
app.kubernetes.io/name: {{ include "fairserve.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "fairserve.labels" -}}
{{ include "fairserve.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "fairserve.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "fairserve.poolName" -}}
{{ default (include "fairserve.fullname" .) .Values.picker.pool.name }}
{{- end -}}

{{/* A probe of the API at a path. */}}
{{- define "fairserve.probe" -}}
httpGet: {path: {{ .path }}, port: http}
{{- end -}}

{{/* Settings of all processes, as environment variables. */}}
{{- define "fairserve.environment" -}}
{{- $settings := dict
    "host" "0.0.0.0"
    "port" "8000"
    "data_dir" "/data"
    "drain_timeout_s" .Values.drainSeconds -}}
{{- if not .Values.jobs.enabled -}}
{{- /* The server runs the jobs itself, also if the Secret has the URL of a Redis. */ -}}
{{- $_ := set $settings "redis_url" "" -}}
{{- end -}}
{{- if .Values.metrics.enabled -}}
{{- $_ := set $settings "metrics_host" "0.0.0.0" -}}
{{- $_ := set $settings "metrics_port" .Values.metrics.port -}}
{{- end -}}
{{- if eq .Values.mode "gateway" -}}
{{- $_ := set $settings "fleet_file" "/etc/fairserve/fleet.json" -}}
{{- else -}}
{{- $_ := set $settings "picker_port" .Values.picker.port -}}
{{- $_ := set $settings "picker_app" .Values.picker.app -}}
{{- $_ := set $settings "pool_name" (printf "%s/%s" .Release.Namespace (include "fairserve.poolName" .)) -}}
{{- $ports := compact (list .Values.picker.pool.kvEventsPort .Values.picker.pool.kvReplayPort) -}}
{{- $_ := set $settings "pool_kv_ports" (join "," $ports) -}}
{{- if .Values.picker.tlsSecret -}}
{{- $_ := set $settings "picker_tls" "/etc/fairserve-tls" -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := merge (deepCopy .Values.settings) $settings }}
- name: FAIRSERVE_{{ upper $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end -}}

{{/* What all pods have. */}}
{{- define "fairserve.pod" -}}
serviceAccountName: {{ include "fairserve.fullname" . }}
# A Service named fairserve would set FAIRSERVE_PORT in all pods.
enableServiceLinks: false
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What all containers have. */}}
{{- define "fairserve.container" -}}
image: {{ include "fairserve.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
env: {{- include "fairserve.environment" . | trim | nindent 2 }}
  {{- if .Values.scaling.enabled }}
  # A pod does not start if the Secret lacks one of them.
  {{- range $key := list "DATABASE_URL" "FAIRSERVE_SECRET_KEY" "REDIS_URL" }}
  - name: {{ $key }}
    valueFrom:
      secretKeyRef: {name: {{ $.Values.existingSecret }}, key: {{ $key }}}
  {{- end }}
  {{- end }}
envFrom:
  - secretRef:
      name: {{ .Values.existingSecret }}
{{- end -}}

{{/* Folders of the server. */}}
{{- define "fairserve.mounts" -}}
- name: data
  mountPath: /data
- name: tmp
  mountPath: /tmp
{{- if eq .Values.mode "gateway" }}
- name: fleet
  mountPath: /etc/fairserve
  readOnly: true
{{- end }}
{{- if and (eq .Values.mode "picker") .Values.picker.tlsSecret }}
# The whole folder: kubelet renews no file that is mounted by subPath.
- name: tls
  mountPath: /etc/fairserve-tls
  readOnly: true
{{- end }}
{{- end -}}

{{/* The container of a server: "root", "args", and "resources". */}}
{{- define "fairserve.server" -}}
name: server
args: {{- toYaml .args | nindent 2 }}
{{ include "fairserve.container" .root }}
ports:
  - name: http
    containerPort: 8000
  {{- if .root.Values.metrics.enabled }}
  - name: metrics
    containerPort: {{ .root.Values.metrics.port }}
  {{- end }}
  {{- if eq .root.Values.mode "picker" }}
  - name: picker
    containerPort: {{ .root.Values.picker.port }}
  {{- end }}
startupProbe:
  {{- include "fairserve.probe" (dict "path" "/health") | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div .root.Values.startupSeconds 5 }}
livenessProbe:
  {{- include "fairserve.probe" (dict "path" "/health") | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
# A standby is ready, too.
readinessProbe:
  {{- include "fairserve.probe" (dict "path" "/health/readiness") | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- if has "api" .args }}
# Until no balancer sends calls to it.
lifecycle:
  preStop:
    exec: {command: [sleep, "5"]}
{{- end }}
resources: {{- toYaml .resources | nindent 2 }}
volumeMounts: {{- include "fairserve.mounts" .root | nindent 2 }}
{{- end -}}

{{/* Volumes of a server, beside its data. */}}
{{- define "fairserve.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if eq .Values.mode "gateway" }}
- name: fleet
  configMap:
    name: {{ include "fairserve.fullname" . }}
{{- end }}
{{- if and (eq .Values.mode "picker") .Values.picker.tlsSecret }}
- name: tls
  secret:
    secretName: {{ .Values.picker.tlsSecret }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* Prefer a node of its own for each server of a component: "root" and "component". */}}
{{- define "fairserve.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "fairserve.selector" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* The component that clients reach. */}}
{{- define "fairserve.serving" -}}
{{ ternary "api" "server" .Values.scaling.enabled }}
{{- end -}}
