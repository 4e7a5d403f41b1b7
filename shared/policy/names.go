package policy

import (
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/spelling"
)

// choice is one value of an enumeration and its name in the policy language.
type choice struct {
	name  string
	value uint8
}

// The enumerations of the policy language. A problem lists the names in this order.
var (
	modes = []choice{
		{"local", uint8(ModeLocal)}, {"leased", uint8(ModeLeased)},
		{"strict", uint8(ModeStrict)}, {"optimistic", uint8(ModeOptimistic)},
	}
	ifAbsents = []choice{
		{"skip", uint8(AbsentSkip)}, {"deny", uint8(AbsentDeny)}, {"shared", uint8(AbsentShared)},
	}
	ifSeverals = []choice{
		{"deny", uint8(SeveralDeny)}, {"first", uint8(SeveralFirst)}, {"joined", uint8(SeveralJoined)},
	}
	enforcements = []choice{
		{"enforce", uint8(EnforcedAll)}, {"shadow", uint8(EnforcedShadow)}, {"off", uint8(EnforcedOff)},
	}
	standards      = dialectChoices(dialect.Standards[:])
	legacies       = dialectChoices(dialect.Legacies[:])
	switches       = []choice{{"on", 0}, {"off", 1}}
	pathParameters = []choice{{"keep", 0}, {"cut", uint8(spelling.CutParameters)}}
	pathCases      = []choice{{"keep", 0}, {"fold", uint8(spelling.FoldCase)}}
	trailingSlash  = []choice{{"keep", 0}, {"cut", uint8(spelling.CutSlash)}}
	algorithms     = algorithmChoices()
	// alignments are the starts of windows: at an offset that follows from the key, or with the UTC
	// clock.
	alignments = []choice{{"key", 0}, {"utc", 1}}
	// steps are the steps of a failure ladder; lastSteps are the steps of its older form.
	steps = []choice{
		{"share", uint8(StepShare)}, {"allow", uint8(StepAllow)}, {"deny", uint8(StepDeny)},
	}
	lastSteps = []choice{
		{"allow", uint8(StepAllow)}, {"deny", uint8(StepDeny)}, {"local", uint8(StepShare)},
	}
	// starts are the initial states of a share.
	starts = []choice{{"known", 0}, {"empty", 1}}
)

// The names of values that are not read as a choice.
var (
	stepNames = [Steps]string{
		StepGround: "normal", StepLeases: "leases", StepShare: "share", StepAllow: "allow", StepDeny: "deny",
	}
	headerOpNames = [...]string{
		HeaderEquals: "equals", HeaderPrefix: "prefix", HeaderPresent: "present", HeaderAbsent: "absent",
	}
	// partNames are the names of parts that are no sources.
	partNames = [...]string{
		PartClientIP: "client_ip", PartConsumer: "consumer", PartMethod: "method", PartHost: "host",
		PartPath: "path", PartPolicyPath: "policy_path", PartTier: "tier", PartUpstream: "upstream",
	}
)

func algorithmChoices() (choices [quota.AlgorithmCount]choice) {
	for i := range choices {
		choices[i] = choice{quota.Algorithm(i).String(), uint8(i)}
	}
	return choices
}

func dialectChoices(rows []dialect.Row) []choice {
	choices := make([]choice, len(rows))
	for i := range rows {
		choices[i] = choice{rows[i].Name, uint8(i)}
	}
	return choices
}

// algorithmsThat names the algorithms that have a property.
func algorithmsThat(has func(quota.Algorithm) bool) (names string) {
	for i := range quota.Algorithm(quota.AlgorithmCount) {
		if !has(i) {
			continue
		}
		if names != "" {
			names += " and "
		}
		names += i.String()
	}
	return names
}

// isBucket reports whether an algorithm has a burst beside its quota.
func isBucket(a quota.Algorithm) bool { return !a.Windowed() }

// String returns the mode's name in the policy language.
func (m Mode) String() string { return nameOf(modes, uint8(m)) }

// String returns the name in the policy language.
func (a IfAbsent) String() string { return nameOf(ifAbsents, uint8(a)) }

// Marks returns whether refusals have x-envoy-ratelimited, as policy sets write it.
func (h *Headers) Marks() string {
	if h.Unmarked {
		return "off"
	}
	return "on"
}

// String returns the name in the policy language.
func (s IfSeveral) String() string { return nameOf(ifSeverals, uint8(s)) }

// RoutingWords returns the words of a routing in the policy language.
func RoutingWords(r spelling.Routing) (parameters, letters, slash string) {
	return nameOf(pathParameters, uint8(r&spelling.CutParameters)), nameOf(pathCases, uint8(r&spelling.FoldCase)),
		nameOf(trailingSlash, uint8(r&spelling.CutSlash))
}

// String returns the name in the policy language, or for a share of the keys text like
// enforce 25 %.
func (e Enforced) String() string {
	if name := nameOf(enforcements, uint8(e)); name != "" {
		return name
	}
	return "enforce " + strconv.Itoa(int(e)) + " %"
}

// String returns the step's name in metrics, logs and the REST API.
func (s Step) String() string {
	if s >= Steps {
		return "unknown"
	}
	return stepNames[s]
}

// String returns the condition's name in the policy language.
func (o HeaderOp) String() string { return headerOpNames[o] }

// Align returns where a fixed window begins, in the policy language.
func (c Counting) Align() string {
	if c.Calendar {
		return alignments[1].name
	}
	return alignments[0].name
}

// String returns the kind's name in the policy language.
func (k PartKind) String() string {
	if source, is := k.Source(); is {
		return source.String()
	}
	return partNames[k]
}

// ParsePartKind finds a kind of part by its name in the policy language.
func ParsePartKind(name string) (PartKind, bool) {
	if source, is := ParseIdentity(name); is {
		return source.kindRow().part, true
	}
	for k, known := range partNames {
		if known != "" && known == name {
			return PartKind(k), true
		}
	}
	return 0, false
}

// isNamed reports whether a part of the kind has a name.
func (k PartKind) isNamed() bool {
	source, ok := k.Source()
	return ok && source.IsNamed()
}

// listParts returns all parts as policies write them.
func listParts() (list string) {
	for _, name := range partNames {
		if name != "" {
			list += name + ", "
		}
	}
	for i := range sources {
		if sources[i].part != 0 {
			list += SourceKind(i).Written() + ", "
		}
	}
	return list
}

// String returns a part as policies write it, like client_ip or header:x-tenant.
func (p Part) String() string {
	if _, is := p.Descriptor(); is {
		return p.Name
	}
	return withName(p.Kind.String(), p.Name)
}

// withName returns a kind and, if there is one, a name.
func withName(kind, name string) string {
	if name == "" {
		return kind
	}
	return kind + ":" + name
}

// nameOf returns the name of a value, empty if it has none.
func nameOf(choices []choice, value uint8) string {
	for _, c := range choices {
		if c.value == value {
			return c.name
		}
	}
	return ""
}

// readEnum reads one of the choices.
//
//go:noinline
func (r *reader) readEnum(path string, n Node, into *uint8, choices []choice) {
	text := n.Text
	switch { // YAML 1.1 reads an unquoted off as false, and an unquoted on as true.
	case n.Kind == Bool && text == "false" && hasChoice(choices, "off"):
		text = "off"
	case n.Kind == Bool && text == "true" && hasChoice(choices, "on"):
		text = "on"
	case n.Kind != String:
		r.wrongKind(path, n, "one of "+listNames(choices))
		return
	}
	for _, c := range choices {
		if c.name == text {
			*into = c.value
			return
		}
	}
	r.failAt(path, "must be one of "+listNames(choices)+", not "+shorten(text))
}

func hasChoice(choices []choice, name string) bool {
	for _, c := range choices {
		if c.name == name {
			return true
		}
	}
	return false
}

func listNames(choices []choice) string {
	var b strings.Builder
	for i, c := range choices {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(c.name)
	}
	return b.String()
}
