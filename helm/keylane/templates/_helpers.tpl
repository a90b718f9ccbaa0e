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

{{/* Whether each node has its own Service beside the headless one. */}}
{{- define "keylane.hasNodeServices" -}}
{{- if ne .Values.nodes.serviceType "Headless" -}}true{{- end -}}
{{- end -}}

{{/* Nodes for which there are addresses. */}}
{{- define "keylane.nodeCount" -}}
{{- ternary .Values.autoscaling.maxReplicas .Values.replicas .Values.autoscaling.enabled | int -}}
{{- end -}}

{{/* Nodes that there are at least. */}}
{{- define "keylane.nodeCountMin" -}}
{{- ternary .Values.autoscaling.minReplicas .Values.replicas .Values.autoscaling.enabled | int -}}
{{- end -}}

{{/* The first of the numbers that are not nodes' any more. */}}
{{- define "keylane.numbersEnd" -}}
{{- add .Values.nodes.firstNumber (include "keylane.nodeCount" . | int) -}}
{{- end -}}

{{- define "keylane.brokerIdMax" -}}
{{- $most := 0 -}}
{{- range .Values.brokers.ids -}}
{{- $most = max $most (int .) -}}
{{- end -}}
{{- $most -}}
{{- end -}}

{{/* The pod's own name in the cluster's DNS; the kubelet replaces $(...). */}}
{{- define "keylane.podName" -}}
$(POD_NAME).{{ include "keylane.fullname" . }}-headless.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{/* Host that clients get; the kubelet replaces $(...). */}}
{{- define "keylane.advertise" -}}
{{- $full := include "keylane.fullname" . -}}
{{- $type := .Values.nodes.serviceType -}}
{{- $inside := printf "%s.svc.%s" .Release.Namespace .Values.clusterDomain -}}
{{- if .Values.sni.kind -}}
{{- .Values.sni.bootstrap -}}
{{- else if .Values.nodes.advertise -}}
{{- .Values.nodes.advertise -}}
{{- else if eq $type "Headless" -}}
{{ include "keylane.podName" . }}
{{- else if eq $type "ClusterIP" -}}
{{ $full }}-node-$(POD_INDEX).{{ $inside }}
{{- else if eq $type "NodePort" -}}
$(HOST_IP)
{{- else -}}
{{- fail "nodes.advertise: needed with nodes.serviceType LoadBalancer: the host name that leads to it, such as keylane-$(POD_INDEX).example.com" -}}
{{- end -}}
{{- end -}}

{{/* Ports of one node as a Service lists them; from `nodePort` on, when clients come by these. */}}
{{- define "keylane.kafkaPorts" -}}
{{- $base := int .Values.ports.kafka -}}
{{- $fixed := int .nodePort -}}
- name: kafka
  port: {{ $base }}
  targetPort: kafka
  protocol: TCP
  {{- if $fixed }}
  nodePort: {{ $fixed }}
  {{- end }}
{{- range .Values.brokers.ids }}
- name: broker-{{ int . }}
  port: {{ add $base 1 (int .) }}
  targetPort: broker-{{ int . }}
  protocol: TCP
  {{- if $fixed }}
  nodePort: {{ add $fixed 1 (int .) }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "keylane.loadBalancer" -}}
{{- with .Values.nodes.loadBalancerClass }}
loadBalancerClass: {{ . }}
{{- end }}
{{- with .Values.nodes.loadBalancerSourceRanges }}
loadBalancerSourceRanges:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What no schema can say, since it looks at several values. */}}
{{- define "keylane.check" -}}
{{- $base := int .Values.ports.kafka -}}
{{- $id := include "keylane.brokerIdMax" . | int -}}
{{- $last := add $base 1 $id | int -}}
{{- if gt $last 65535 -}}
{{- fail (printf "brokers.ids: the highest needs port %d; lower ports.kafka" $last) -}}
{{- end -}}
{{- $control := int .Values.ports.control -}}
{{- if and (ge $control $base) (le $control $last) -}}
{{- fail (printf "ports.control: %d lies among the ports of clients, %d to %d" $control $base $last) -}}
{{- end -}}
{{- include "keylane.checkControl" . -}}
{{- include "keylane.checkNodes" . -}}
{{- if eq .Values.nodes.serviceType "NodePort" -}}
{{- include "keylane.checkNodePorts" . -}}
{{- end -}}
{{- if .Values.sni.kind -}}
{{- include "keylane.checkSni" . -}}
{{- end -}}
{{- end -}}

{{- define "keylane.checkControl" -}}
{{- $tls := .Values.control.tls -}}
{{- $names := or $tls.admins $tls.readers -}}
{{- if and $tls.clientCaSecret (not $names) -}}
{{- fail "control.tls.clientCaSecret: name the clients and their rights, in control.tls.admins and readers" -}}
{{- end -}}
{{- if and $names (not $tls.clientCaSecret) -}}
{{- fail "control.tls.admins, readers: no client can show a certificate, set control.tls.clientCaSecret" -}}
{{- end -}}
{{- if and $tls.clientCaSecret (ne (include "keylane.controlScheme" .) "https") -}}
{{- fail "control.tls.clientCaSecret: the control port has no TLS, set control.tls.secret" -}}
{{- end -}}
{{- end -}}

{{- define "keylane.checkNodes" -}}
{{- $count := include "keylane.nodeCount" . | int -}}
{{- $scaling := .Values.autoscaling -}}
{{- if and $scaling.enabled (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas: more than maxReplicas" -}}
{{- end -}}
{{- if and (not .Values.nodes.numbered) (or (gt $count 1) $scaling.enabled) -}}
{{- fail "nodes.numbered: more than one node needs numbers, by which they find each other" -}}
{{- end -}}
{{- if gt (include "keylane.numbersEnd" . | int) 1000 -}}
{{- fail "nodes.firstNumber: the last node's number is beyond 999" -}}
{{- end -}}
{{- end -}}

{{- define "keylane.nodePort" -}}
{{- add .Values.nodes.nodePorts.first (mul .Values.nodes.nodePorts.step .number) -}}
{{- end -}}

{{- define "keylane.checkNodePorts" -}}
{{- $id := include "keylane.brokerIdMax" . | int -}}
{{- $ports := .Values.nodes.nodePorts -}}
{{- if and (gt (include "keylane.nodeCount" . | int) 1) (lt (int $ports.step) (int (add 2 $id))) -}}
{{- fail (printf "nodes.nodePorts.step: with a broker %d nodes need %d ports each" $id (add 2 $id)) -}}
{{- end -}}
{{- $start := include "keylane.nodePort" (dict "Values" .Values "number" .Values.nodes.firstNumber) | int -}}
{{- $number := sub (include "keylane.numbersEnd" . | int) 1 | max 0 -}}
{{- $end := add (include "keylane.nodePort" (dict "Values" .Values "number" $number) | int) 1 $id | int -}}
{{- if or (lt $start 30000) (gt $end 32767) -}}
{{- fail (printf "nodes.nodePorts: %d to %d must lie in 30000-32767" $start $end) -}}
{{- end -}}
{{- $own := int .Values.bootstrapService.nodePort -}}
{{- if and (ge $own $start) (le $own $end) -}}
{{- fail (printf "bootstrapService.nodePort: lies among the ports of nodes, %d to %d" $start $end) -}}
{{- end -}}
{{- end -}}

{{- define "keylane.checkSni" -}}
{{- if ne .Values.nodes.serviceType "ClusterIP" -}}
{{- fail "sni.kind: routes lead to a Service per node, set nodes.serviceType to ClusterIP" -}}
{{- end -}}
{{- if .Values.nodes.advertise -}}
{{- fail "nodes.advertise: clients get sni.pattern, leave it empty" -}}
{{- end -}}
{{- if or (not .Values.sni.pattern) (not .Values.sni.bootstrap) -}}
{{- fail "sni.pattern, sni.bootstrap: needed with sni.kind, such as n{node}-b{broker}.kafka.example.com and bootstrap.kafka.example.com" -}}
{{- end -}}
{{- if and (gt (include "keylane.nodeCount" . | int) 1) (not (contains "{node}" .Values.sni.pattern)) -}}
{{- fail "sni.pattern: needs {node}, since there are several" -}}
{{- end -}}
{{- if not .Values.config.tls_certificate -}}
{{- fail "sni.kind: config.tls_certificate is needed, since TLS is passed through to keylane" -}}
{{- end -}}
{{- if and (eq .Values.sni.kind "TLSRoute") (not .Values.sni.parentRefs) -}}
{{- fail "sni.parentRefs: the gateway of the routes, such as {name: gateway, sectionName: kafka}" -}}
{{- end -}}
{{- end -}}

{{/* Name under which clients reach a broker at a node through a gateway. */}}
{{- define "keylane.sniHost" -}}
{{- .Values.sni.pattern | replace "{node}" (toString .number) | replace "{broker}" (toString .broker) -}}
{{- end -}}

{{/* keylane's configuration file: `config`, and what the chart decides. */}}
{{- define "keylane.config" -}}
{{- $bootstrap := required "config.bootstrap: your brokers, such as kafka-0.kafka:9092" .Values.config.bootstrap -}}
{{- $own := dict "bootstrap" $bootstrap "listen" (printf "0.0.0.0:%d" (int .Values.ports.kafka)) -}}
{{- $_ := set $own "control" (printf "0.0.0.0:%d" (int .Values.ports.control)) -}}
{{- $_ := set $own "control_token_file" "/etc/keylane-control/token" -}}
{{- $_ := set $own "control_read_token_file" "/etc/keylane-control/read-token" -}}
{{- if .Values.nodes.numbered -}}
{{- $_ := set $own "node_secret_file" "/etc/keylane-nodes/node-secret" -}}
{{- end -}}
{{- with .Values.control.tls -}}
{{- if .secret -}}
{{- $_ := set $own "control_tls" true -}}
{{- $_ := set $own "control_certificate" "/etc/keylane-control-tls/tls.crt" -}}
{{- $_ := set $own "control_key" "/etc/keylane-control-tls/tls.key" -}}
{{- end -}}
{{- if .clientCaSecret -}}
{{- $_ := set $own "control_client_ca" "/etc/keylane-control-clients/ca.crt" -}}
{{- $_ := set $own "control_admins" .admins -}}
{{- $_ := set $own "control_readers" .readers -}}
{{- end -}}
{{- end -}}
{{- if not (include "keylane.hasOwnLimit" .) -}}
{{- $_ := set $own "connections_max" (include "keylane.connections" . | int) -}}
{{- range $key, $value := include "keylane.bounds" . | fromYaml -}}
{{- $_ := set $own $key (int64 $value) -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.nodes.serviceType "NodePort" -}}
{{- $_ := set $own "advertise_port" (int .Values.nodes.nodePorts.first) -}}
{{- $_ := set $own "advertise_port_step" (int .Values.nodes.nodePorts.step) -}}
{{- end -}}
{{- if .Values.sni.kind -}}
{{- $_ := set $own "advertise_pattern" (printf "%s:%d" .Values.sni.pattern (int .Values.sni.port)) -}}
{{- end -}}
{{- toYaml (merge $own .Values.config) -}}
{{- end -}}

{{- define "keylane.connections" -}}
{{- default 2000 .Values.config.connections_max | int -}}
{{- end -}}

{{- define "keylane.tokenSecret" -}}
{{- default (printf "%s-control" (include "keylane.fullname" .)) .Values.control.tokenSecret -}}
{{- end -}}

{{- define "keylane.nodeSecret" -}}
{{- default (printf "%s-nodes" (include "keylane.fullname" .)) .Values.nodes.secret -}}
{{- end -}}

{{- define "keylane.controlScheme" -}}
{{- ternary "https" "http" (or (ne .Values.control.tls.secret "") (default false .Values.config.control_tls)) -}}
{{- end -}}

{{- define "keylane.probe" -}}
httpGet:
  path: {{ .path }}
  port: control
  scheme: {{ include "keylane.controlScheme" .root | upper }}
{{ toYaml .how }}
{{- end -}}

{{/* A bound in bytes: of `config` when it is there, also when it is 0; else `default`. */}}
{{- define "keylane.bound" -}}
{{- if hasKey .config .key -}}{{- int64 (get .config .key) -}}{{- else -}}{{- int64 .default -}}{{- end -}}
{{- end -}}

{{/* Bounds that the chart's limit is made of: keylane's defaults, but for those that are lower. */}}
{{- define "keylane.bounds" -}}
{{- $config := .Values.config -}}
cache_bytes_max: {{ include "keylane.bound" (dict "config" $config "key" "cache_bytes_max" "default" 209715200) }}
filtering_bytes_max: {{ include "keylane.bound" (dict "config" $config "key" "filtering_bytes_max" "default" 104857600) }}
batch_bytes_max: {{ include "keylane.bound" (dict "config" $config "key" "batch_bytes_max" "default" 67108864) }}
buffered_bytes_max: {{ include "keylane.buffered" . }}
lane_name_lanes_max: {{ include "keylane.bound" (dict "config" $config "key" "lane_name_lanes_max" "default" 32768) }}
{{- end -}}

{{/* Twice a batch, since one principal has half of it, and a batch has to fit in that. */}}
{{- define "keylane.buffered" -}}
{{- $batch := include "keylane.bound" (dict "config" .Values.config "key" "batch_bytes_max" "default" 67108864) | int64 -}}
{{- $principal := include "keylane.bound" (dict "config" .Values.config "key" "buffered_bytes_per_principal_max" "default" 0) | int64 -}}
{{- include "keylane.bound" (dict "config" .Values.config "key" "buffered_bytes_max" "default" (max 134217728 (mul 2 $batch) $principal)) -}}
{{- end -}}

{{/* Whether the limit is the user's own: bounds then follow from it. */}}
{{- define "keylane.hasOwnLimit" -}}
{{- if hasKey (default dict .Values.resources.limits) "memory" -}}true{{- end -}}
{{- end -}}

{{/* Threads that split: of `config`, else the requested CPUs, rounded up as the kubelet does. */}}
{{- define "keylane.threads" -}}
{{- $cpu := toString (default "1" (dig "requests" "cpu" "1" .Values.resources)) -}}
{{- if .Values.config.filter_threads -}}
{{- int .Values.config.filter_threads -}}
{{- else if hasSuffix "m" $cpu -}}
{{- div (add (trimSuffix "m" $cpu | int) 999) 1000 | max 1 -}}
{{- else -}}
{{- ceil (float64 $cpu) | int | max 1 -}}
{{- end -}}
{{- end -}}

{{/*
Memory in MiB: what the parts cost at most (proxy/memory_plan.py, docs/operations.md "Memory"), the
sixteenth that keylane leaves to the kernel, and what the user adds.
*/}}
{{- define "keylane.memoryMi" -}}
{{- $bounds := include "keylane.bounds" . | fromYaml -}}
{{- $cost := mul 320 1048576 -}}
{{- $cost = add $cost (mul (include "keylane.connections" . | int64) 102400) -}}
{{- $cost = add $cost (div (add (mul (int64 $bounds.cache_bytes_max) 5) 3) 4) -}}
{{- $cost = add $cost (div (add (mul (int64 $bounds.filtering_bytes_max) 5) 3) 4) -}}
{{- $cost = add $cost (mul (int64 $bounds.batch_bytes_max) 4) -}}
{{- $cost = add $cost (div (add (mul (int64 $bounds.buffered_bytes_max) 3) 1) 2) -}}
{{- $cost = add $cost (mul (int64 $bounds.lane_name_lanes_max) 2048) -}}
{{- $cost = add $cost (mul (include "keylane.threads" . | int64) 16777216) -}}
{{- $cost = add $cost (mul 80 1048576) -}}
{{- add .Values.memory.extraMi (div (add (div (add (mul $cost 16) 14) 15) 1048575) 1048576) -}}
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
