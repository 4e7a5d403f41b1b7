package policydoc

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/shared/policy"
)

// These are here and not with the decoder of policy sets because they would need room in the
// filter, for which no person writes policies.
var (
	oneOf    = regexp.MustCompile(`^must be one of (?:the (?:tiers|classes) )?([^,]+(?:, [^,]+)*), not (\S+)$`)
	variable = regexp.MustCompile(`\$\{[^}]*\}|^\$[A-Za-z_][A-Za-z_0-9]*$`)
	noBlank  = regexp.MustCompile(`^[a-z_]+:\S`)
	aField   = regexp.MustCompile(`^has the field (\S+): there are (.+) and (\S+)$`)
)

// aSpan and aRate match a length of time and a limit in the form of other programs.
var (
	aSpan = regexp.MustCompile(`(?i)^(\d+) *(ms|millis\w*|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)$`)
	weeks = regexp.MustCompile(`(?i)^(\d{1,3}) *(w|weeks?)$`)
	aRate = regexp.MustCompile(`(?i)^(\d+) */ *(\d*)(s|sec|second|m|min|minute|h|hour|d|day)$`)
)

// shortUnit returns a unit of time in the form of the policy language.
func shortUnit(unit string) string {
	unit = strings.ToLower(unit)
	if unit == "ms" || strings.HasPrefix(unit, "milli") {
		return "ms"
	}
	return unit[:1]
}

const unknownField = "unknown field"

// explainProblem returns the reason of a problem, with a guess and with a hint from the value.
// value is nil if there is none.
func explainProblem(p policy.Problem, value *yaml.Node) string {
	if guess, ok := strings.CutPrefix(p.Reason, unknownField); ok {
		return explainUnknown(p, guess)
	}
	if m := aField.FindStringSubmatch(p.Reason); m != nil {
		if guess := policy.Guess(m[1], append(strings.Split(m[2], ", "), m[3])); guess != "" {
			return p.Reason + ": did you mean " + guess + "?"
		}
	}
	// The value may come from a template, or be a word of another program.
	if value == nil {
		return p.Reason
	}
	text := value.Value
	if value.Kind == yaml.ScalarNode && variable.MatchString(text) {
		return p.Reason + "; " + text + " stays as it is written: put the value there before, as with envsubst"
	}
	if m := oneOf.FindStringSubmatch(p.Reason); m != nil {
		if word := meantWord(p.Path, strings.ToLower(m[2])); word != "" {
			return p.Reason + ": did you mean " + word + "?"
		}
		spelled := strings.ToLower(strings.ReplaceAll(m[2], "-", "_"))
		if guess := policy.Guess(spelled, strings.Split(m[1], ", ")); guess != "" {
			return p.Reason + ": did you mean " + guess + "?"
		}
		if header := headerFor(p.Path, strings.ToLower(m[2])); header != "" {
			return p.Reason + ": did you mean " + header + "?"
		}
	}
	if strings.Contains(text, "/*") && strings.HasPrefix(p.Reason, "{name} and a final ** must be") &&
		slices.Contains(strings.Split(text, "/"), "*") {
		return "has * as a segment: write {name} for one segment, or /** for all below, not " + text
	}
	// The value may be a number or a span in another form.
	number := isJSONNumber.MatchString(text)
	switch span, limit := aSpan.FindStringSubmatch(text), aRate.FindStringSubmatch(text); {
	case p.Path == "version" && !strings.Contains(p.Reason, policy.Version):
		return p.Reason + ": write version: " + policy.Version
	case strings.HasPrefix(p.Reason, "needs identity.consumer"):
		return p.Reason + ", as in identity: {consumer: [{header: x-api-key}]}"
	case span != nil && strings.Contains(p.Reason, "with a unit") && text != span[1]+shortUnit(span[2]):
		return p.Reason + ": did you mean " + span[1] + shortUnit(span[2]) + "?"
	case weeks.MatchString(text) && strings.Contains(p.Reason, "with a unit"):
		n, _ := strconv.Atoi(weeks.FindStringSubmatch(text)[1])
		return p.Reason + ": did you mean " + strconv.Itoa(7*n) + "d?"
	case limit != nil && strings.HasPrefix(p.Reason, "must be a mapping like {quota"):
		return p.Reason + ": did you mean {quota: " + limit[1] + ", window: " + cmp.Or(limit[2], "1") +
			shortUnit(limit[3]) + "}?"
	case number && strings.HasSuffix(p.Reason, ", not a string"):
		return p.Reason + ": take the quotes away"
	case number && strings.HasPrefix(p.Reason, "must be a length of time"),
		number && strings.HasPrefix(p.Reason, "must be a whole number with a unit"):
		return p.Reason + ": did you mean " + text + "s?"
	}
	return p.Reason
}

// explainUnknown returns the reason of an unknown field, with its right place or a similar field.
// guess is the guess that the decoder has added to the reason.
func explainUnknown(p policy.Problem, guess string) string {
	if better := guessPlace(p.Path); better != "" && (guess == "" || strings.HasPrefix(guess, ": did you mean ")) {
		return unknownField + better // A field with this very name is likelier than a similar name.
	}
	if better := sameAs(p.Path); better != "" && guess == "" {
		return unknownField + better
	}
	return p.Reason
}

// guessPlace guesses the right place of an unknown field.
func guessPlace(path string) string {
	if better := ofResponses(path); better != "" {
		return better
	}
	key := path
	if quoted := strings.LastIndexByte(path, '"'); quoted < 0 {
		key = path[strings.LastIndexByte(path, '.')+1:]
	}
	if name, value, _ := strings.Cut(key, ":"); noBlank.MatchString(key) {
		return ": a blank is missing after the colon, as in " + name + ": " + value
	}
	if at := places[key]; at != "" {
		return ": it stands " + at
	}
	return ""
}

// ofResponses guesses the meaning of an unknown field of a response, or of the set's responses.
func ofResponses(path string) string {
	if strings.HasPrefix(path, "policies[") && strings.HasSuffix(path, "].response.headers") {
		return ": a policy's own response has no headers; a response in responses, beside policies, may have headers"
	}
	word, ok := strings.CutPrefix(path, "responses.")
	if why := slices.Index(policy.Reasons[:], word); ok && why >= 0 {
		return ": refusals for this reason are answered by " + policy.Answers[policy.Reason(why).Answer()]
	}
	if ok && word == "banned" {
		return ": did you mean " + policy.Answers[policy.AnswerBan] + "?"
	}
	return ""
}

// places has for each field the place where it is allowed, for fields that are often written
// elsewhere.
var places = func() map[string]string {
	at := map[string]string{}
	for where, fields := range map[string]string{
		"in the match beside policies, for the whole set": "path_case path_parameters trailing_slash",
		"beside policies, for the whole set": "identity headers exempt banned show tiers priorities " +
			"responses",
		"in match": "hosts descriptors domain",
		"in match, and in exempt beside policies":            "methods paths",
		"in match, and in exempt and banned beside policies": "client_ips",
		"in limit":              "quota window burst in_flight",
		"in identity":           "if_several default_tier client_ip",
		"in identity.client_ip": "trusted_hops ipv6_prefix appended",
	} {
		for _, name := range strings.Fields(fields) {
			at[name] = where
		}
	}
	return at
}()

// kinds are other kinds of text, by their first bytes.
var kinds = []struct{ begin, is string }{
	{"\x1f\x8b", "is compressed with gzip: unpack it first"},
	{"PK\x03\x04", "is an archive of zip: unpack it first"},
	{"\x00asm", "is a WebAssembly module"},
	{"\x7fELF", "is a program"},
	{"\xff\xfe", "is in UTF-16: save it as UTF-8"},
	{"\xfe\xff", "is in UTF-16: save it as UTF-8"},
	{"-----BEGIN ", "is a certificate or a key"},
	{"<!", "is a page of HTML or XML, as a server answers in place of a file"},
	{"<?", "is a page of HTML or XML, as a server answers in place of a file"},
	{"<html", "is a page of HTML, as a server answers in place of a file"},
}

// aPolicySet says how to recognise a policy set.
const aPolicySet = "; a policy set begins with version: " + policy.Version

// somethingElse returns the kind of a text that is not a policy set; empty if the kind is not
// known.
func somethingElse(doc []byte) string {
	text := strings.TrimSpace(string(doc))
	for _, k := range kinds {
		if strings.HasPrefix(text, k.begin) {
			return k.is + aPolicySet
		}
	}
	if strings.ContainsRune(text[:min(len(text), 8000)], 0) {
		return "is a binary file, not a text" + aPolicySet
	}
	return ""
}

// origins are documents of other programs, by fields that identify them, with the command of weir
// import.
var origins = []struct {
	fields []string
	is     string
}{
	{[]string{"_format_version"}, "is a configuration of Kong: weir import kong reads its limits"},
	{[]string{"static_resources"}, "is a configuration of Envoy: weir import envoy reads its limits"},
	{[]string{"configs"}, "is a dump of Envoy's configuration: weir import envoy reads its limits"},
	{[]string{"domain", "descriptors"}, "is a configuration of envoyproxy/ratelimit: " +
		"weir import envoyproxy-ratelimit reads it"},
	{[]string{"services"}, "is a file of Docker Compose or of Kong" + aPolicySet},
	{[]string{"openapi"}, "describes an interface (OpenAPI)" + aPolicySet},
	{[]string{"name", "partition"}, "is one policy: put it into the list policies of a policy set" + aPolicySet},
	{[]string{"name", "limit"}, "is one policy: put it into the list policies of a policy set" + aPolicySet},
	{[]string{"control_plane"}, "is the configuration of the filter (its plugin)" + aPolicySet},
	{[]string{"tokens"}, "is a file of tokens" + aPolicySet},
}

// anotherDocument returns the kind of a document that is not a policy set; empty if it may be a
// policy set with mistakes.
func anotherDocument(node policy.Node) string {
	switch node.Kind {
	case policy.Map:
	case policy.List:
		return "is a list: a policy set is a mapping, with version: " + policy.Version + " and the list policies"
	default:
		return "is a single text: a policy set is a mapping, with version: " + policy.Version +
			" and the list policies"
	}
	if hasField(node, "version") && hasField(node, "policies") {
		return ""
	}
	if kind := textOf(node, "kind"); hasField(node, "apiVersion") && kind != "" {
		return manifestAdvice(kind)
	}
	for _, o := range origins {
		all := true
		for _, name := range o.fields {
			all = all && hasField(node, name)
		}
		if all {
			return o.is
		}
	}
	return ""
}

// manifestAdvice returns the advice for a manifest of Kubernetes.
func manifestAdvice(kind string) string {
	is := "is a manifest of Kubernetes (" + kind + ")"
	switch kind {
	case "ConfigMap":
		return is + ": give the text below its data, as it is mounted" + aPolicySet
	case "Ingress":
		return is + ": weir import ingress-nginx reads its limits"
	case "BackendTrafficPolicy":
		return is + ": weir import envoy-gateway reads its limits"
	case "EnvoyFilter":
		return is + ": weir import istio reads its limits"
	}
	return is + aPolicySet
}

func hasField(node policy.Node, key string) bool {
	for _, k := range node.Keys {
		if k == key {
			return true
		}
	}
	return false
}

// textOf returns the text of a field; empty if there is none.
func textOf(node policy.Node, key string) string {
	if value := valueOf(node, key); value.Kind == policy.String {
		return value.Text
	}
	return ""
}

// spellNumber returns a number of another form in the form of the policy language; empty if that is
// not possible.
func spellNumber(text string) string {
	if plain := strings.ReplaceAll(text, "_", ""); isJSONNumber.MatchString(plain) {
		return plain
	}
	if n, err := strconv.ParseInt(text, 0, 64); err == nil {
		return strconv.FormatInt(n, 10)
	}
	return ""
}
