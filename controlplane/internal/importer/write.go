package importer

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/shared/policy"
)

// document is the policy set in YAML.
func (s Set) document(policies []Policy) []byte {
	var w writer
	if s.Source != "" {
		w.comment("", "From "+s.Source+", by weir import. Try it in shadow before it refuses anything.")
	}
	for _, note := range s.Notes {
		w.comment("", note)
	}
	w.line("version: " + policy.Version)
	if !slices.ContainsFunc(policies, byConsumer) {
		s.Consumer = nil // Nothing asks for it.
	}
	w.identity(s)
	if len(s.Tiers) > 0 {
		w.line("tiers: " + flow(s.Tiers))
	}
	if s.Standard != "" || s.Legacy != "" {
		var fields []string
		fields = appendField(fields, "standard", s.Standard)
		fields = appendField(fields, "legacy", s.Legacy)
		w.line("headers: {" + strings.Join(fields, ", ") + "}")
	}
	if len(s.ExemptIPs)+len(s.ExemptPaths) > 0 {
		w.line("exempt:")
		w.list("  client_ips", s.ExemptIPs)
		w.list("  paths", s.ExemptPaths)
	}
	if len(policies) == 0 {
		w.line("policies: []")
		return []byte(w.String())
	}
	w.line("policies:")
	for _, p := range policies {
		w.policy(p)
	}
	return []byte(w.String())
}

func byConsumer(p Policy) bool { return slices.Contains(p.Partition, "consumer") }

type writer struct{ strings.Builder }

func (w *writer) line(text string) {
	w.WriteString(text)
	w.WriteByte('\n')
}

// comment writes a comment of one line.
func (w *writer) comment(indent, text string) {
	w.line(indent + "# " + strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 || r == 0xfeff || r == 0xfffd {
			return ' '
		}
		return r
	}, text))
}

func (w *writer) identity(s Set) {
	if s.TrustedHops == 0 && s.IPv6Prefix == 0 && len(s.Consumer) == 0 {
		return
	}
	w.line("identity:")
	var fields []string
	if s.TrustedHops > 0 {
		fields = append(fields, fmt.Sprintf("trusted_hops: %d", s.TrustedHops))
	}
	if s.IPv6Prefix > 0 {
		fields = append(fields, fmt.Sprintf("ipv6_prefix: %d", s.IPv6Prefix))
	}
	if len(fields) > 0 {
		w.line("  client_ip: {" + strings.Join(fields, ", ") + "}")
	}
	if len(s.Consumer) > 0 {
		w.line("  consumer: [" + strings.Join(s.Consumer, ", ") + "]")
	}
}

// list writes a list in one line, or in several if it is long.
func (w *writer) list(name string, values []string) {
	if len(values) == 0 {
		return
	}
	if text := name + ": " + flow(values); len(text) <= 100 {
		w.line(text)
		return
	}
	w.line(name + ":")
	indent := strings.Repeat(" ", len(name)-len(strings.TrimLeft(name, " ")))
	for _, v := range values {
		w.line(indent + "  - " + quoted(v))
	}
}

func (w *writer) policy(p Policy) {
	for _, from := range p.From {
		w.comment("  ", from)
	}
	w.line("  - name: " + quoted(p.Name))
	w.match(p.Match)
	w.line("    partition: " + flow(p.Partition))
	w.field("if_absent", p.IfAbsent)
	w.field("algorithm", p.Algorithm)
	w.field("align", p.Align)
	if p.MaxWait > 0 {
		w.field("max_wait", policy.FormatSpan(p.MaxWait))
	}
	w.limits(p.Limits)
	w.field("max_hold", p.MaxHold)
	if p.Commit != "" {
		w.line(fmt.Sprintf("    cost: {reserve: %d, commit: {metadata: %s}, missing: 0}", max(p.Cost, 1),
			quoted(p.Commit)))
	} else if p.Cost > 0 {
		w.line(fmt.Sprintf("    cost: %d", p.Cost))
	}
	w.field("mode", p.Mode)
	if p.OnFailure != "" {
		w.line("    on_failure: [" + p.OnFailure + "]")
	}
	if p.Enforcement != "" {
		w.line("    enforcement: " + p.Enforcement) // Made here, also the mapping.
	}
	w.response(p.Response)
}

func (w *writer) field(name, value string) {
	if value != "" {
		w.line("    " + name + ": " + quoted(value))
	}
}

func (w *writer) match(m Match) {
	if m.Everywhere() {
		return
	}
	w.line("    match:")
	if m.Domain != "" {
		w.line("      domain: " + quoted(m.Domain))
	}
	if len(m.Descriptors) > 0 {
		w.line("      descriptors:")
	}
	for _, e := range m.Descriptors {
		w.line("        - " + e.String())
	}
	w.list("      hosts", m.Hosts)
	w.list("      methods", m.Methods)
	w.list("      paths", m.Paths)
	if len(m.Headers) > 0 {
		w.line("      headers:")
	}
	for _, h := range m.Headers {
		value := quoted(h.Value)
		if h.Op == "present" || h.Op == "absent" {
			value = "true"
		}
		w.line(fmt.Sprintf("        - {name: %s, %s: %s}", quoted(h.Name), h.Op, value))
	}
	w.list("      client_ips", m.ClientIPs)
}

// String is the condition in the policy language.
func (e Entry) String() string {
	text := "{name: " + quoted(e.Name) + ", " + e.Value.String()
	if len(e.Except) > 0 {
		var values []string
		for _, v := range e.Except {
			values = append(values, "{"+v.String()+"}")
		}
		text += ", except: [" + strings.Join(values, ", ") + "]"
	}
	return text + "}"
}

// String is the condition in the policy language.
func (v Value) String() string {
	if v.Op == "present" {
		return "present: true"
	}
	return v.Op + ": " + quoted(v.Text)
}

func (w *writer) limits(limits []Limit) {
	var texts []string
	for _, l := range limits {
		if l.InFlight > 0 {
			texts = append(texts, fmt.Sprintf("{in_flight: %d}", l.InFlight))
			continue
		}
		text := fmt.Sprintf("{quota: %d, window: %s", l.Quota, policy.FormatSpan(l.Window))
		if l.Burst > 0 {
			text += fmt.Sprintf(", burst: %d", l.Burst)
		}
		texts = append(texts, text+"}")
	}
	switch len(texts) {
	case 0:
	case 1:
		w.line("    limit: " + texts[0])
	default:
		w.line("    limit:")
		for _, text := range texts {
			w.line("      - " + text)
		}
	}
}

func (w *writer) response(r Response) {
	if r == (Response{}) {
		return
	}
	w.line("    response:")
	if r.Status > 0 {
		w.line(fmt.Sprintf("      status: %d", r.Status))
	}
	if r.Body != "" {
		w.line("      body: " + quoted(r.Body))
	}
	if r.ContentType != "" {
		w.line("      content_type: " + quoted(r.ContentType))
	}
}

func appendField(fields []string, name, value string) []string {
	if value == "" {
		return fields
	}
	return append(fields, name+": "+quoted(value))
}

func flow(values []string) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, quoted(v))
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// Plain texts need no quotes, in any place, and no reader takes one for a number or a boolean.
var (
	plain    = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9/._-]*(:[A-Za-z0-9/._-]+)*$`)
	number   = regexp.MustCompile(`^(\d+(ms|s|m|h|d)|\d+\.\d+\.\d+\.\d+(/\d+)?)$`) // With a unit, or an address.
	reserved = regexp.MustCompile(`(?i)^(true|false|yes|no|on|off|y|n|null)$`)
)

// Quoted is a text as YAML has it in a list or mapping of one line.
func Quoted(text string) string { return quoted(text) }

// JSON is a text as JSON has it.
func JSON(text string) string {
	b, _ := json.Marshal(text) // A string always marshals.
	return string(b)
}

// quoted is a text as YAML has it in a list or mapping of one line.
func quoted(text string) string {
	if plain.MatchString(text) && !reserved.MatchString(text) || number.MatchString(text) {
		return text
	}
	return strconv.Quote(text) // YAML reads all of its escapes alike.
}
