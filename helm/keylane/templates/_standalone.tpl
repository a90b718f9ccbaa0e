{{/*
Start of range k of n in the hash space: k * (2^63 - 1) / n, rounded down, as keylane cuts it.
2^63 - 1 = q * n + r, so that no product passes 64 bits.
*/}}
{{- define "keylane.rangeStart" -}}
{{- $n := int64 .n -}}
{{- $k := int64 .k -}}
{{- $q := div 9223372036854775807 $n -}}
{{- $r := mod 9223372036854775807 $n -}}
{{- add (mul $k $q) (div (mul $k $r) $n) -}}
{{- end -}}

{{/* One entry of an assignment: range k of the n of a partition; the whole of it when n is 1. */}}
{{- define "keylane.entry" -}}
{{- $ranges := "" -}}
{{- if gt (int64 .n) 1 -}}
{{- $hi := "9223372036854775807" -}}
{{- if lt (add 1 .k) (int64 .n) -}}
{{- $hi = sub (include "keylane.rangeStart" (dict "k" (add 1 .k) "n" .n) | int64) 1 | toString -}}
{{- end -}}
{{- $ranges = printf "[\"%s\",\"%s\"]" (include "keylane.rangeStart" .) $hi -}}
{{- end -}}
{"topic":"{{ .topic }}","partition":{{ .partition }},"ranges":[{{ $ranges }}]}
{{- end -}}

{{/*
What member m of M gets, as lines of "topic:partition entry". A topic with fewer partitions than
members deals out members to partitions, any other one partitions to members.
*/}}
{{- define "keylane.memberParts" -}}
{{- $m := int64 .member -}}
{{- $count := int64 .root.Values.standalone.members -}}
{{- $isRange := eq .root.Values.standalone.strategy "range" -}}
{{- $partitionsOf := dict -}}
{{- range .root.Values.standalone.topics -}}
{{- $_ := set $partitionsOf .name .partitions -}}
{{- end -}}
{{- $turn := int64 0 -}}
{{- range $topic := keys $partitionsOf | sortAlpha -}}
{{- $p := int64 (get $partitionsOf $topic) -}}
{{- if lt $p $count -}}
{{- $partition := mod $m $p -}}
{{- $k := div $m $p -}}
{{- $n := div (sub (add $count $p -1) $partition) $p -}}
{{- if $isRange -}}
{{- range $block := until (int $p) -}}
{{- $start := add (mul $block (div $count $p)) (min $block (mod $count $p)) -}}
{{- $size := add (div $count $p) (ternary 1 0 (lt (int64 $block) (mod $count $p))) -}}
{{- if and (ge $m $start) (lt $m (add $start $size)) -}}
{{- $partition = $block -}}
{{- $k = sub $m $start -}}
{{- $n = $size -}}
{{- end -}}
{{- end -}}
{{- end }}
{{ $topic }}:{{ $partition }} {{ include "keylane.entry" (dict "topic" $topic "partition" $partition "k" $k "n" $n) }}
{{- else if $isRange -}}
{{- $start := add (mul $m (div $p $count)) (min $m (mod $p $count)) -}}
{{- $size := add (div $p $count) (ternary 1 0 (lt $m (mod $p $count))) -}}
{{- range $step := until (int $size) }}
{{ $topic }}:{{ add $start $step }} {{ include "keylane.entry" (dict "topic" $topic "partition" (add $start $step) "k" 0 "n" 1) }}
{{- end -}}
{{- else -}}
{{- range $partition := until (int $p) -}}
{{- if eq $m (mod (add $turn $partition) $count) }}
{{ $topic }}:{{ $partition }} {{ include "keylane.entry" (dict "topic" $topic "partition" $partition "k" 0 "n" 1) }}
{{- end -}}
{{- end -}}
{{- $turn = add $turn $p -}}
{{- end -}}
{{- end -}}
{{- end -}}
