{{/* Variables of a node, which its check before the start has as well. */}}
{{- define "keylane.environment" -}}
env:
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: POD_INDEX
    valueFrom:
      fieldRef:
        fieldPath: metadata.labels['apps.kubernetes.io/pod-index']
  {{- if .Values.nodes.numbered }}
  # Also with one node: those that come later then need no restart of it.
  - name: KEYLANE_NODE
    valueFrom:
      fieldRef:
        fieldPath: metadata.labels['apps.kubernetes.io/pod-index']
  {{- end }}
  - name: POD_IP
    valueFrom:
      fieldRef:
        fieldPath: status.podIP
  - name: HOST_IP
    valueFrom:
      fieldRef:
        fieldPath: status.hostIP
  - name: KEYLANE_ADVERTISE
    value: {{ include "keylane.advertise" . | quote }}
  # Where a node sends callers that ask it for a group of another node.
  - name: KEYLANE_CONTROL_ADVERTISE
    value: {{ include "keylane.podName" . | quote }}
  - name: KEYLANE_LOG
    value: {{ .Values.logLevel }}
  {{- if not .Values.config.filter_threads }}
  # Threads for what was asked for, not for all CPUs of the machine.
  - name: KEYLANE_FILTER_THREADS
    valueFrom:
      resourceFieldRef:
        containerName: keylane
        resource: requests.cpu
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Files of a node: its configuration, and what that names. */}}
{{- define "keylane.mounts" -}}
volumeMounts:
  - name: config
    mountPath: /etc/keylane
    readOnly: true
  - name: control
    mountPath: /etc/keylane-control
    readOnly: true
  {{- if .Values.nodes.numbered }}
  - name: nodes
    mountPath: /etc/keylane-nodes
    readOnly: true
  {{- end }}
  {{- if .Values.control.tls.secret }}
  - name: control-tls
    mountPath: /etc/keylane-control-tls
    readOnly: true
  {{- end }}
  {{- if .Values.control.tls.clientCaSecret }}
  - name: control-clients
    mountPath: /etc/keylane-control-clients
    readOnly: true
  {{- end }}
  - name: tmp
    mountPath: /tmp
  {{- range .Values.secretMounts }}
  - name: {{ .name }}
    mountPath: {{ .mountPath }}
    readOnly: true
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
