{{- define "helenus.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of one program: (dict "root" $ "program" "connector"). */}}
{{- define "helenus.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 40 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .program }}
{{- end -}}

{{- define "helenus.labels" -}}
{{ include "helenus.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Both programs run so, as a user of their own. */}}
{{- define "helenus.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/*
Fails for a secret that is written in a properties file: a ConfigMap shows it to all who may read the namespace.
(dict "text" … "where" "connector.properties"). Keys are those that Helenus itself shows as stars, but for record keys.
*/}}
{{- define "helenus.refuseSecrets" -}}
{{- $where := .where -}}
{{/* Lines of the format: without comments, and with those joined that go on after a backslash. */}}
{{- $text := regexReplaceAll "(?m)^[ \\t\\f]*[#!].*$" .text "" -}}
{{- $text = regexReplaceAll "((?:^|[^\\\\])(?:\\\\\\\\)*)\\\\\r?\n[ \\t\\f]*" $text "${1}" -}}
{{- range regexSplit "\r?\n" $text -1 -}}
  {{- $line := trim . -}}
  {{- if $line -}}
    {{- $key := regexFind "^[^=:\\s]+" $line -}}
    {{- $value := trim (regexReplaceAll "^[^=:\\s]+\\s*[=:]?" $line "") -}}
    {{- $secret := regexMatch "(?i)(pass|pwd|secret|jaas|token|credential|user\\.?info|key\\.pem|private\\.key)" $key -}}
    {{- $other := regexMatch "(?i)((location|file|path|dir|type|class|url|enable|enabled|(de)?serializer|converter)$|^(transforms|predicates)\\.)" $key -}}
    {{- if and $secret (not $other) (not (regexMatch "\\$\\{(file|env):[^}]+\\}" $value)) -}}
      {{- fail (printf "%s: %s has its value in clear, which a ConfigMap would show: put it into a Secret, and give ${file:/etc/helenus/secrets/NAME/FILE:KEY}" $where $key) -}}
    {{- end -}}
    {{- if regexMatch "://[^/@\\s]*:[^/@\\s]+@" (regexReplaceAll "\\$\\{(file|env):[^}]+\\}" $value "") -}}
      {{- fail (printf "%s: %s has a login in its address, which a ConfigMap would show: put the login into a Secret, and give ${file:/etc/helenus/secrets/NAME/FILE:KEY}" $where $key) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails for a variable that looks like a secret and has its value in clear: (dict "env" … "where" …). */}}
{{- define "helenus.refuseSecretVariables" -}}
{{- range .env -}}
  {{- if and .value (regexMatch "(?i)(pass|pwd|secret|jaas|token|credential|user_?info)" .name) (not (regexMatch "(?i)(location|file|path|dir|url)$" .name)) -}}
    {{- fail (printf "%s: %s has its value in clear: give valueFrom.secretKeyRef" $.where .name) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" if a properties file has the key: (dict "text" … "key" "a.b"). */}}
{{- define "helenus.hasKey" -}}
{{- if regexMatch (printf "(?m)^[ \\t\\f]*%s[ \\t\\f]*([=: \\t\\f]|$)" (regexQuoteMeta .key)) .text -}}true{{- end -}}
{{- end -}}

{{/* Fails for keys that the chart sets: (dict "text" … "where" … "keys" (list …)). */}}
{{- define "helenus.refuseOwnKeys" -}}
{{- range $key := .keys -}}
  {{- if include "helenus.hasKey" (dict "text" $.text "key" $key) -}}
    {{- fail (printf "%s: leave %s out, which the chart sets from its values" $.where $key) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Lines for the keys that the text does not have: (dict "text" … "defaults" (list (list KEY VALUE) …)). */}}
{{- define "helenus.defaults" -}}
{{- range .defaults }}
{{- if not (include "helenus.hasKey" (dict "text" $.text "key" (first .))) }}
{{ first . }}={{ last . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Where the workers of a group reach each other. */}}
{{- define "helenus.membersService" -}}
{{ include "helenus.fullname" . }}-members
{{- end -}}

{{- define "helenus.workerProperties" -}}
{{- $worker := .Values.connector -}}
{{- $rest := $worker.rest -}}
{{- $text := $worker.properties -}}
{{- include "helenus.refuseSecrets" (dict "text" $text "where" "connector.properties") -}}
{{- $own := list "checkpoint.dir" "group.id" "listeners" "listeners.https.ssl.certfile" "listeners.https.ssl.keyfile" "listeners.https.ssl.cafile" "rest.basic.auth.user.info" "rest.advertised.host.name" "standby.timeout.ms" "state.checkpoint.dir" -}}
{{- include "helenus.refuseOwnKeys" (dict "text" $text "where" "connector.properties" "keys" $own) -}}
# What the chart sets.
checkpoint.dir=/var/lib/helenus/connector
listeners={{ ternary "https" "http" (ne $rest.tlsSecret "") }}://0.0.0.0:{{ $rest.port }}
rest.advertised.host.name=${env:POD_NAME}.{{ include "helenus.membersService" . }}.{{ .Release.Namespace }}.svc
{{- if $rest.tlsSecret }}
listeners.https.ssl.certfile=/etc/helenus/rest-tls/tls.crt
listeners.https.ssl.keyfile=/etc/helenus/rest-tls/tls.key
{{- end }}
{{- if $rest.loginSecret }}
rest.basic.auth.user.info=${file:/etc/helenus/rest-login/login.properties:rest}
{{- end }}
{{- if $worker.groupId }}
group.id={{ $worker.groupId }}
{{- end }}
{{- if $worker.stateClaim }}
state.checkpoint.dir=/var/lib/helenus-state
{{- end }}
{{- if $worker.stateUrl }}
state.checkpoint.dir={{ $worker.stateUrl }}
{{- end }}
{{- include "helenus.defaults" (dict "text" $text "defaults" (list (list "startup.timeout.ms" "300000") (list "log.format" "json") (list "spark.master" "local[2,4]") (list "spark.driver.memory" "1g"))) }}

# connector.properties of the values.
{{ trim $text }}
{{- end -}}

{{- define "helenus.agentProperties" -}}
{{- $agent := .Values.agent -}}
{{- $text := $agent.properties -}}
{{- include "helenus.refuseSecrets" (dict "text" $text "where" "agent.properties") -}}
{{- $own := list "state.dir" "listeners" "http.host" "http.port" "cassandra.contact.points" "cassandra.config" "cdc.raw.dir" -}}
{{- include "helenus.refuseOwnKeys" (dict "text" $text "where" "agent.properties" "keys" $own) -}}
# What the chart sets.
listeners=http://0.0.0.0:{{ $agent.port }}
{{- if eq $agent.mode "sidecar" }}
cassandra.contact.points=${env:POD_IP}
cdc.raw.dir={{ $agent.sidecar.dataPath }}/cdc_raw
state.dir={{ $agent.sidecar.dataPath }}/helenus-agent
{{- if ne (int $agent.sidecar.cqlPort) 9042 }}
cassandra.port={{ $agent.sidecar.cqlPort }}
{{- end }}
{{- else }}
cassandra.contact.points={{ ternary "127.0.0.1" "${env:HOST_IP}" $agent.daemonset.hostNetwork }}
cassandra.config={{ $agent.daemonset.config }}/cassandra.yaml
cdc.raw.dir={{ $agent.daemonset.cdcRaw }}
state.dir={{ $agent.daemonset.state }}
{{- end }}
{{- include "helenus.defaults" (dict "text" $text "defaults" (list (list "startup.timeout.ms" "3600000") (list "log.format" "json"))) }}

# agent.properties of the values.
{{ trim $text }}
{{- end -}}
