package policies

import (
	"bytes"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// fact is the value of one field of a document in the policy language. The order of its list has no
// meaning.
type fact struct {
	field, text string
	list        []string
}

// policyFacts returns the facts of a policy, in the order of the document. Two policies with the
// same facts and names may still differ in the order of a list.
func policyFacts(set *policy.Set, p *policy.Policy) []fact {
	facts := append(matchFacts(set, &p.Match),
		fact{field: "match.domain", text: p.Match.Domain},
		fact{field: "match.descriptors", text: descriptorsText(p.Match.Descriptors)},
		fact{field: "partition", text: PartitionText(p.Partition)},
		fact{field: "if_absent", text: p.IfAbsent.String()},
	)
	facts = append(append(facts, countingFacts(p.Counting)...), fact{field: "max_hold", text: holdText(p)})
	facts = append(facts, limitFacts(set, p)...)
	facts = append(facts,
		fact{field: "reserve", text: reserveText(set, p)},
		fact{field: "candidate.limit", text: limitsText(p, p.Named(p.Candidate))},
		fact{field: "cost", text: costText(p.Cost, p.Commit)},
		fact{field: "mode", text: p.Mode.String()},
		fact{field: "on_failure", text: p.OnFailure.String()},
		fact{field: "enforcement", text: p.Enforced.String()},
	)
	facts = append(facts, responseFacts("response.", p.Response)...)
	return append(facts, fact{field: "penalty", text: penaltyText(p.Penalty)})
}

// matchFacts returns the conditions on a request at an Envoy.
func matchFacts(set *policy.Set, m *policy.Match) []fact {
	var headers []string
	for _, h := range m.Headers {
		headers = append(headers, headerText(h))
	}
	return []fact{
		{field: "match.hosts", list: m.Hosts},
		{field: "match.methods", list: m.Methods},
		{field: "match.paths", list: m.Paths},
		{field: "match.headers", list: headers},
		{field: "match.client_ips", list: rangeTexts(m.ClientIPs)},
		{field: "match.tiers", list: tierNames(set, m.Tiers)},
	}
}

// penaltyText returns a penalty in words, like 5 refusals in 1m: 1m, × 2 up to 1d, forget 1h,
// jitter 10 %.
func penaltyText(r *penalty.Rule) string {
	if r == nil {
		return ""
	}
	text := fmt.Sprintf("%d refusals in %s: %s, × %d up to %s, forget %s, jitter %d %%", r.Refusals,
		policy.FormatSpan(r.Within), policy.FormatSpan(r.For), r.Factor, policy.FormatSpan(r.Max),
		policy.FormatSpan(r.Forget), r.Jitter)
	for _, more := range []struct {
		set  bool
		text string
	}{{r.All, ", scope all"}, {r.Extend, ", extend"}, {r.Shadow, ", shadow"}} {
		if more.set {
			text += more.text
		}
	}
	return text
}

// sketch describes a policy in a few words.
func sketch(set *policy.Set, p *policy.Policy) string {
	var said []string
	for _, f := range limitFacts(set, p) {
		said = append(said, strings.TrimPrefix(f.field+" ", "limit ")+f.text)
	}
	text := strings.Join(said, ", ") + "; " + p.Mode.String()
	if p.Counting.Algorithm != quota.DefaultAlgorithm {
		text += ", " + p.Counting.Algorithm.String()
	}
	if p.Enforced != policy.EnforcedAll {
		text += ", enforcement " + p.Enforced.String()
	}
	return text
}

// settingFacts returns the facts of the settings, by the names of the settings.
func settingFacts(set *policy.Set) map[string][]fact {
	id := set.Identity
	tier := ""
	if len(set.Tiers) > 0 {
		tier = set.Tiers[id.DefaultTier]
	}
	return map[string][]fact{
		// The reading of requests.
		"identity": {
			{field: "client_ip.trusted_hops", text: strconv.Itoa(id.TrustedHops)},
			{field: "client_ip.ipv6_prefix", text: strconv.Itoa(id.IPv6Prefix)},
			{field: "client_ip.appended", text: strconv.FormatBool(!id.NotAppended)},
			{field: "if_several", text: id.IfSeveral.String()},
			{field: "consumer", text: sourcesText(id.Consumer)},
			{field: "tier", text: sourcesText(id.Tier)},
			{field: "default_tier", text: tier},
		},
		"match": routingFacts(set),
		"tiers": {{field: "names", list: set.Tiers}},
		// The answers.
		"headers": {
			{field: "standard", text: set.Headers.Standard.String()},
			{field: "legacy", text: set.Headers.Legacy.String()},
			{field: "envoy_ratelimited", text: set.Headers.Marks()},
		},
		// Callers and requests with other rules.
		"exempt": {
			{field: "client_ips", list: rangeTexts(set.Exempt.ClientIPs)},
			{field: "paths", list: set.Exempt.Paths},
			{field: "methods", list: set.Exempt.Methods},
			{field: "consumers", list: set.Exempt.Consumers},
		},
		"banned":     {{field: "client_ips", list: rangeTexts(set.Banned)}},
		"priorities": {{field: "classes", text: classesText(set)}},
		"show":       {{field: "parts", list: partTexts(set.Show)}},
		"responses":  responsesFacts(set.Responses),
	}
}

// routingFacts returns the facts about the reading of paths.
func routingFacts(set *policy.Set) []fact {
	parameters, letters, slash := policy.RoutingWords(set.Routing)
	return []fact{
		{field: "path_parameters", text: parameters}, {field: "path_case", text: letters},
		{field: "trailing_slash", text: slash},
	}
}

func countingFacts(c policy.Counting) []fact {
	align := ""
	if c.Algorithm.Fixed() {
		align = c.Align()
	}
	wait := ""
	if c.MaxWait > 0 {
		wait = policy.FormatSpan(c.MaxWait)
	}
	return []fact{
		{field: "algorithm", text: c.Algorithm.String()}, {field: "subwindows", text: numberText(c.Subwindows)},
		{field: "align", text: align}, {field: "max_wait", text: wait},
	}
}

// holdText returns how long requests in flight count; empty if there is no such limit.
func holdText(p *policy.Policy) string {
	for _, limits := range [][]policy.Limit{p.Limits, p.Candidate} {
		for _, l := range limits {
			switch {
			case !l.InFlight, p.Adaptive.Max > 0:
			case l.Window == 0:
				return "forever"
			default:
				return policy.FormatSpan(l.Window)
			}
		}
	}
	return ""
}

// adaptiveFacts returns the range of an adaptive limit, and the measure that closes it.
func adaptiveFacts(a policy.Adaptive) []fact {
	text := fmt.Sprintf("%d to %d in flight by p%d", a.Min, a.Max, a.Percentile)
	return []fact{{field: "adaptive", text: text}, {field: "shed_by", text: a.ClosedBy()}}
}

// limitFacts returns the limits of a policy, for each tier if they differ by tier.
func limitFacts(set *policy.Set, p *policy.Policy) (facts []fact) {
	if p.Adaptive != (policy.Adaptive{}) {
		return adaptiveFacts(p.Adaptive)
	}
	if len(p.Tiers) == 0 {
		return []fact{{field: "limit", text: limitsText(p, p.Named(p.Limits))}}
	}
	for i, tier := range set.Tiers {
		text := "unlimited"
		if limits := p.Named(p.LimitsOf(i)); len(limits) > 0 {
			text = limitsText(p, limits)
		}
		facts = append(facts, fact{field: "limits." + tier, text: text})
	}
	return facts
}

func limitsText(p *policy.Policy, limits []policy.Limit) string {
	var texts []string
	for _, l := range limits {
		texts = append(texts, LimitText(l)+ownText(p, l))
	}
	return strings.Join(texts, " and ")
}

// ownText names the place of a limit's parameters in requests; the text of the limit itself has the
// maximum.
func ownText(p *policy.Policy, l policy.Limit) (text string) {
	if l.Own == 0 {
		return ""
	}
	own := p.Figures[l.Own-1]
	for _, f := range []struct {
		name   string
		figure policy.Figure
	}{{"quota", own.Quota}, {"burst", own.Burst}} {
		if f.figure.Source.Kind != 0 {
			text += fmt.Sprintf(", %s by %s else %d", f.name, f.figure, f.figure.Default)
		}
	}
	return text
}

// LimitText returns a limit in words, like 100 per 1m burst 10. If requests bring their own
// figures, the text has the largest ones allowed.
func LimitText(l policy.Limit) string {
	if l.InFlight {
		return fmt.Sprintf("%d in flight", l.Quota)
	}
	text := fmt.Sprintf("%d per %s", l.Quota, policy.FormatSpan(l.Window))
	if burst := l.Burst(); burst != l.Quota {
		text += fmt.Sprintf(" burst %d", burst)
	}
	if l.Own > 0 {
		text = "at most " + text
	}
	return text
}

func costText(c policy.Cost, commit policy.Commit) string {
	switch {
	case commit.By != policy.CommitNever:
		return SettlesOf(c, commit).String()
	case c.Source.Name == "":
		return strconv.FormatInt(c.Fixed, 10)
	case c.DenyInvalid:
		return fmt.Sprintf("%s up to %d, else deny", c.Source, c.Max)
	}
	var from []string
	for _, source := range c.Sources() {
		from = append(from, source.String())
	}
	return fmt.Sprintf("%s up to %d, else %d", strings.Join(from, " or "), c.Max, c.Invalid)
}

func headerText(h policy.HeaderMatch) string {
	text := h.Name + " " + h.Op.String()
	if h.Op == policy.HeaderEquals || h.Op == policy.HeaderPrefix {
		text += " " + strconv.Quote(h.Value)
	}
	return text
}

// descriptorsText returns in words the descriptors of a policy.
func descriptorsText(entries []policy.EntryMatch) string {
	var texts []string
	for _, e := range entries {
		text := headerText(policy.HeaderMatch{Name: e.Name, Op: e.Op, Value: e.Value})
		for _, x := range e.Except {
			op := policy.HeaderEquals
			if x.Prefix {
				op = policy.HeaderPrefix
			}
			text += fmt.Sprintf(" except %s %q", op, x.Value)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

func tierNames(set *policy.Set, tiers []int) (names []string) {
	for _, tier := range tiers {
		names = append(names, set.Tiers[tier])
	}
	return names
}

// PartitionText returns a partition in words.
func PartitionText(parts []policy.Part) string {
	if len(parts) == 0 {
		return "one bucket for all"
	}
	return strings.Join(partTexts(parts), ", ")
}

func partTexts(parts []policy.Part) (texts []string) {
	for _, p := range parts {
		texts = append(texts, p.String())
	}
	return texts
}

// NamesPart reports whether a text begins with the kind of a part and a colon, like
// client_ip:192.0.2.1.
func NamesPart(text string) bool {
	kind, _, found := strings.Cut(text, ":")
	_, known := policy.ParsePartKind(kind)
	return found && (known || kind == "descriptor")
}

// MisspeltPart reports whether a text looks like client_ip=192.0.2.1, in letters of any case, where
// PART:VALUE was meant. As a value the text would be the name of another caller.
func MisspeltPart(text string) (part, value string, is bool) {
	part, value, is = strings.Cut(text, "=")
	part = strings.ToLower(part)
	return part, value, is && NamesPart(part+":") && !NamesPart(text)
}

func sourcesText(sources []policy.Source) string {
	var texts []string
	for _, s := range sources {
		texts = append(texts, s.String())
	}
	return strings.Join(texts, ", ")
}

// rangeTexts returns the ranges as texts, as prefixes where possible.
func rangeTexts(ranges []policy.Range) (texts []string) {
	for _, r := range ranges {
		texts = append(texts, rangeText(r))
	}
	return texts
}

func rangeText(r policy.Range) string {
	first, last := netip.AddrFrom16(r.First), netip.AddrFrom16(r.Last)
	if first == last {
		return first.Unmap().String()
	}
	offset := 0
	if first.Is4In6() && last.Is4In6() {
		first = first.Unmap()
		last = last.Unmap()
		offset = 96
	}
	for bits := offset; bits < 128; bits++ {
		end := r.First
		for i := bits; i < 128; i++ {
			end[i/8] |= 0x80 >> (i % 8)
		}
		if prefix := netip.PrefixFrom(first, bits-offset); bytes.Equal(end[:], r.Last[:]) && prefix == prefix.Masked() {
			return prefix.String()
		}
	}
	return first.String() + "-" + last.String()
}

func numberText(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func quoteText(text string) string {
	if text == "" {
		return ""
	}
	return strconv.Quote(text)
}

// reserveText returns in words the reserves of a policy's limits, like critical 20 %.
func reserveText(set *policy.Set, p *policy.Policy) string {
	var texts []string
	for _, one := range p.Reserve {
		if one.Class < len(set.Priorities) {
			texts = append(texts, fmt.Sprintf("%s %d %%", set.Priorities[one.Class].Name, one.Percent))
		}
	}
	return strings.Join(texts, ", ")
}

// classesText lists the priority classes with their conditions, the most important class first.
func classesText(set *policy.Set) string {
	var texts []string
	for i := range set.Priorities {
		c := &set.Priorities[i]
		text := c.Name
		for _, f := range matchFacts(set, &c.Match) {
			if len(f.list) > 0 {
				text += " " + strings.TrimPrefix(f.field, "match.") + " " + strings.Join(f.list, "|")
			}
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}
