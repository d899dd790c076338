{{- /* The ports of the servers that other machines can reach, by name. */ -}}
{{- define "ports" -}}
{{- $settings := fromToml .Values.settings -}}
{{- with $settings.Error }}{{ fail (printf "settings: invalid TOML: %s" .) }}{{ end -}}
{{- $broker := $settings.broker | default dict -}}
{{- if and .Values.standby (not $broker.url) }}{{ fail "standby: expected settings with broker.url" }}{{ end -}}
{{- if has $broker.listen (list "0.0.0.0" "::") }}
{{- if not $broker.url }}
broker: {{ $broker.port | default (ternary 8883 1883 ($broker.tls | default false)) }}
{{- end }}
{{- if $broker.tls }}
enrolment: {{ $broker.enrol | default 8884 }}
{{- end }}
{{- end }}
{{- range $name := list "http" "metrics" "phones" }}
{{- $listen := dig $name "listen" "" $settings }}
{{- if regexMatch "^(0\\.0\\.0\\.0|\\[::\\]):" $listen }}
{{ $name }}: {{ splitList ":" $listen | last }}
{{- end }}
{{- end }}
{{- end -}}
