{{/* Name of the chart, for labels. */}}
{{- define "keylane.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of all objects. 40 characters leave room for what is added to it, in DNS labels of 63. */}}
{{- define "keylane.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "keylane.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "keylane.selector" -}}
app.kubernetes.io/name: {{ include "keylane.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: node
{{- end -}}

{{- define "keylane.labels" -}}
app.kubernetes.io/name: {{ include "keylane.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: keylane
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "keylane.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "keylane.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "keylane.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* Address of the bootstrap Service, as clients inside the cluster write it. */}}
{{- define "keylane.bootstrap" -}}
{{ include "keylane.fullname" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:{{ .Values.ports.kafka }}
{{- end -}}

{{/* Whether each node has a Service of its own beside the headless one. */}}
{{- define "keylane.hasNodeServices" -}}
{{- if ne .Values.nodes.serviceType "Headless" -}}true{{- end -}}
{{- end -}}

{{/* Host that clients are told; the kubelet replaces $(...). */}}
{{- define "keylane.advertise" -}}
{{- $full := include "keylane.fullname" . -}}
{{- $type := .Values.nodes.serviceType -}}
{{- $inside := printf "%s.svc.%s" .Release.Namespace .Values.clusterDomain -}}
{{- if .Values.nodes.advertise -}}
{{- .Values.nodes.advertise -}}
{{- else if eq $type "Headless" -}}
$(POD_NAME).{{ $full }}-headless.{{ $inside }}
{{- else if eq $type "ClusterIP" -}}
{{ $full }}-node-$(POD_INDEX).{{ $inside }}
{{- else if eq $type "NodePort" -}}
$(HOST_IP)
{{- else -}}
{{- fail "nodes.advertise: needed with nodes.serviceType LoadBalancer: the host name that leads to it, such as keylane-$(POD_INDEX).example.com" -}}
{{- end -}}
{{- end -}}

{{/* Ports of one node as a Service lists them; `nodePort` as well when clients come by it. */}}
{{- define "keylane.kafkaPorts" -}}
{{- $base := int .Values.ports.kafka -}}
{{- $fixed := .fixed -}}
- name: kafka
  port: {{ $base }}
  targetPort: kafka
  protocol: TCP
  {{- if $fixed }}
  nodePort: {{ $base }}
  {{- end }}
{{- range .Values.brokers.ids }}
- name: broker-{{ int . }}
  port: {{ add $base 1 (int .) }}
  targetPort: broker-{{ int . }}
  protocol: TCP
  {{- if $fixed }}
  nodePort: {{ add $base 1 (int .) }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* What no schema can say, since it looks at several values. */}}
{{- define "keylane.check" -}}
{{- $base := int .Values.ports.kafka -}}
{{- $last := $base -}}
{{- range .Values.brokers.ids -}}
{{- $last = max $last (add $base 1 (int .)) -}}
{{- end -}}
{{- if gt (int $last) 65535 -}}
{{- fail (printf "brokers.ids: the highest needs port %d; lower ports.kafka" $last) -}}
{{- end -}}
{{- if eq .Values.nodes.serviceType "NodePort" -}}
{{- if or (lt $base 30000) (gt (int $last) 32767) -}}
{{- fail (printf "ports.kafka: %d to %d must lie in 30000-32767 with nodes.serviceType NodePort, since clients are told the ports that keylane listens on" $base $last) -}}
{{- end -}}
{{- end -}}
{{- $control := int .Values.ports.control -}}
{{- if and (ge $control $base) (le $control (int $last)) -}}
{{- fail (printf "ports.control: %d lies among the ports of clients, %d to %d" $control $base $last) -}}
{{- end -}}
{{- end -}}

{{/* keylane's configuration file: `config`, and what the chart decides. */}}
{{- define "keylane.config" -}}
{{- $bootstrap := required "config.bootstrap: your brokers, such as kafka-0.kafka:9092" .Values.config.bootstrap -}}
{{- $own := dict "bootstrap" $bootstrap "listen" (printf "0.0.0.0:%d" (int .Values.ports.kafka)) -}}
{{- $_ := set $own "control" (printf "0.0.0.0:%d" (int .Values.ports.control)) -}}
{{- $_ := set $own "control_token_file" "/etc/keylane-control/token" -}}
{{- $_ := set $own "control_read_token_file" "/etc/keylane-control/read-token" -}}
{{- $_ := set $own "connections_max" (include "keylane.connections" . | int) -}}
{{- toYaml (merge $own .Values.config) -}}
{{- end -}}

{{- define "keylane.connections" -}}
{{- default 2000 .Values.config.connections_max | int -}}
{{- end -}}

{{- define "keylane.tokenSecret" -}}
{{- default (printf "%s-control" (include "keylane.fullname" .)) .Values.control.tokenSecret -}}
{{- end -}}

{{- define "keylane.controlScheme" -}}
{{- ternary "https" "http" (default false .Values.config.control_tls) -}}
{{- end -}}

{{- define "keylane.probe" -}}
httpGet:
  path: {{ .path }}
  port: control
  scheme: {{ include "keylane.controlScheme" .root | upper }}
{{ toYaml .how }}
{{- end -}}

{{/*
Memory in MiB: the base; the two bounds of keylane with what an allocator adds; connections.
*/}}
{{- define "keylane.memoryMi" -}}
{{- $cache := int64 (default 209715200 .Values.config.cache_bytes_max) -}}
{{- if and (hasKey .Values.config "cache_bytes_max") (eq (int64 .Values.config.cache_bytes_max) 0) -}}
{{- $cache = int64 0 -}}
{{- end -}}
{{- $filtering := int64 (default 104857600 .Values.config.filtering_bytes_max) -}}
{{- $bounds := div (add $cache $filtering 1048575) 1048576 -}}
{{- $bounds = div (add (mul $bounds (add 100 .Values.memory.overheadPercent)) 99) 100 -}}
{{- add .Values.memory.baseMi $bounds (div (add (include "keylane.connections" . | int) 9) 10) -}}
{{- end -}}

{{- define "keylane.resources" -}}
{{- $memory := printf "%sMi" (include "keylane.memoryMi" .) -}}
{{- $computed := dict "requests" (dict "cpu" "1" "memory" $memory) "limits" (dict "memory" $memory) -}}
{{- toYaml (mustMergeOverwrite $computed (deepCopy .Values.resources)) -}}
{{- end -}}

{{/* Time to stop: the wait before, the drain, and the rest. */}}
{{- define "keylane.graceSeconds" -}}
{{- $drain := 10.0 -}}
{{- if hasKey .Values.config "drain_timeout_s" -}}
{{- $drain = float64 .Values.config.drain_timeout_s -}}
{{- end -}}
{{- add .Values.drain.preStopSeconds (ceil $drain) .Values.drain.graceSeconds -}}
{{- end -}}
