package fromnginx

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
	"github.com/weir-proxy/weir/shared/quota"
)

// group is the uses of a zone that count alike: together they are a policy.
type group struct {
	zone *zone
	uses []*use
	// levels are those at which the limit is in force, without those below another of them.
	levels []*level
	// everywhere are all levels at which it is in force.
	everywhere []*level
	status     int64
	shadow     bool
}

// addPolicies makes the policies.
func (r *reader) addPolicies() {
	for _, kind := range []string{"req", "conn"} {
		groups := r.findGroups(kind)
		for _, g := range groups {
			r.addGroup(g, groups)
		}
	}
}

// inForce returns the limits of a kind at a level: its own limits, or the limits of the nearest
// level above with limits.
func (l *level) inForce(kind string) []*use {
	for at := l; at != nil; at = at.parent {
		if len(at.own[kind]) > 0 {
			return at.own[kind]
		}
	}
	return nil
}

// settingOf returns the last argument of a directive in force at a level.
func (l *level) settingOf(name string) string {
	for at := l; at != nil; at = at.parent {
		if p, is := at.set[name]; is {
			words := strings.Fields(p.text)
			return words[len(words)-1]
		}
	}
	return ""
}

// findGroups finds which limits are in force where.
func (r *reader) findGroups(kind string) (all []*group) {
	byKey := map[string]*group{}
	for _, l := range r.levels {
		status, err := strconv.ParseInt(l.settingOf("limit_"+kind+"_status"), 10, 64)
		if err != nil {
			status = 503 // nginx's default.
		}
		shadow := l.settingOf("limit_"+kind+"_dry_run") == "on"
		for _, u := range l.inForce(kind) {
			key := fmt.Sprint(strings.Join(u.args, " "), status, shadow)
			g := byKey[key]
			if g == nil {
				g = &group{zone: r.zones[kind+" "+u.zoneName()], status: status, shadow: shadow}
				byKey[key] = g
				all = append(all, g)
			}
			if !slices.Contains(g.uses, u) {
				g.uses = append(g.uses, u)
			}
			g.levels = append(g.levels, l)
		}
	}
	for _, g := range all {
		g.everywhere = slices.Clone(g.levels)
		g.levels = slices.DeleteFunc(g.levels, func(l *level) bool { return r.isShared(l, g.everywhere) })
		whole := slices.Clone(g.levels)
		g.levels = slices.DeleteFunc(g.levels, func(l *level) bool { return isBelow(l, whole) })
	}
	return all
}

// isShared reports whether each request to a level goes to a level below it, and not all of these
// levels are in the group. Then the levels in the group replace the level.
func (r *reader) isShared(l *level, group []*level) bool {
	covered, all := false, true
	for _, other := range r.levels {
		if !isBelow(other, []*level{l}) {
			continue
		}
		all = all && slices.Contains(group, other)
		around := l.kind == "http" || l.kind == "main"
		covered = covered || around && other.kind == "server" ||
			l.kind == "server" && other.parent == l && other.modifier == "" && other.path == "/"
	}
	return covered && !all
}

func isBelow(l *level, levels []*level) bool {
	for at := l.parent; at != nil; at = at.parent {
		if slices.Contains(levels, at) {
			return true
		}
	}
	return false
}

// zoneName returns the zone that a use names, as in limit_req zone=api or limit_conn api 5.
func (u *use) zoneName() string {
	for i, arg := range u.args {
		if name, found := strings.CutPrefix(arg, "zone="); found {
			return name
		}
		if u.kind == "conn" && i == 0 {
			return arg
		}
	}
	return ""
}

// addGroup makes the policies of one group and notes the verdict of its directives.
func (r *reader) addGroup(g *group, all []*group) {
	// Give all uses of the group the same verdict, except for uses that no match can express.
	say := func(v importer.Verdict, reason string, policies ...string) {
		for _, u := range g.uses {
			if problem := u.whyImpossible(g); problem != "" && v != importer.NotPossible {
				r.b.Say(u.item(importer.NotPossible, problem))
				continue
			}
			if v != importer.NotPossible {
				u.written = append(u.written, g.everywhere...)
			}
			r.b.Say(u.item(v, reason, policies...))
		}
	}
	// Find the limit, the key and the requests.
	if g.zone == nil {
		say(importer.NotPossible, "there is no zone "+g.uses[0].zoneName())
		return
	}
	g.zone.used = true
	limit, remarks, err := g.requestLimit()
	if err != nil {
		say(importer.NotPossible, err.Error())
		return
	}
	c, err := r.expandKey(g.zone.key)
	if err != nil {
		say(importer.NotPossible, err.Error())
		return
	}
	matches, others, err := r.scopeOf(g)
	if err != nil {
		say(importer.NotPossible, err.Error())
		return
	}
	// Note how the counters differ.
	remarks = append(remarks, others...)
	if slices.ContainsFunc(all, func(other *group) bool { return other != g && other.zone == g.zone }) {
		remarks = append(remarks, "nginx has one counter for all limits with this zone, Weir has one counter for each "+
			"policy")
	} else if len(matches) > 1 {
		remarks = append(remarks, "nginx has one counter in the zone, Weir has one counter for each policy")
	}
	// Add the policies, and give the verdict.
	names, remark, refused := r.addForMatches(g, limit, c, matches)
	remarks = append(remarks, remark)
	g.zone.policies = append(g.zone.policies, names...)
	switch reason := importer.Join("; ", remarks...); {
	case refused != "":
		say(importer.NotPossible, importer.Join("; ", refused, reason))
	case reason != "":
		say(importer.Approximate, reason, names...)
	default:
		say(importer.Exact, "", names...)
	}
}

// whyImpossible returns the reason why no match can express any level of a use; empty if a match
// can.
func (u *use) whyImpossible(g *group) (reason string) {
	for _, l := range g.levels {
		if !slices.Contains(l.inForce(u.kind), u) {
			continue
		}
		_, _, err := l.matches()
		if err == nil {
			return ""
		}
		reason = err.Error()
	}
	return reason
}

// addForMatches makes a policy for each match of the levels.
func (r *reader) addForMatches(
	g *group, limit importer.Policy, c counted, matches []importer.Match,
) (names []string, remark, refused string) {
	// Complete the policy: its answer, its enforcement, its source and its partition.
	if c.key == "" {
		return nil, "", "its key is always empty, so nginx counts no request"
	}
	limit.Mode, limit.Response.Status = "local", g.status
	if g.status == 429 {
		limit.Response.Status = 0
	}
	if g.shadow {
		limit.Enforcement = "shadow"
	}
	limit.From = []string{g.zone.String()}
	for _, u := range g.uses {
		limit.From = append(limit.From, u.String())
	}
	parts, remark, err := r.readPartition(c.key)
	if err != nil {
		return nil, "", err.Error()
	}
	limit.Name, limit.Partition = "nginx-"+g.zone.name, parts
	// Add a policy for each match.
	exempted := r.areExempt(g, c)
	for _, m := range matches {
		limit.Match = m
		limit.Match.Methods = c.methods
		if !exempted {
			limit.Match.ClientIPs = importer.Networks(c.networks)
		}
		name, problem := r.b.Add(limit)
		if problem != "" {
			return names, remark, problem
		}
		names = append(names, name)
	}
	return names, remark, ""
}

// areExempt reports whether the addresses that a zone leaves out are written as exempt: that is
// shorter than all others as a match. It is so if all zones leave out the same.
func (r *reader) areExempt(g *group, c counted) bool {
	for _, z := range r.zones {
		if z.key != g.zone.key {
			return false
		}
	}
	out := importer.Networks(importer.Outside(c.networks))
	if c.networks == nil || len(out) == 0 || len(out) >= len(c.networks) {
		return false
	}
	r.b.Set.Exempt.ClientIPs = out
	return true
}

// requestLimit returns the limit of a use. nginx's limit_req is a leaky bucket. As a meter
// (nodelay) it is a token bucket of burst + 1. As a queue it lets the first request through and
// holds up to burst more requests.
func (g *group) requestLimit() (p importer.Policy, remarks []string, err error) {
	if g.zone.kind == "conn" {
		return g.connectionLimit()
	}
	rate, remark, err := parseRate(g.zone.rate)
	if err != nil {
		return p, nil, err
	}
	remarks = []string{remark}
	burst, delay, queue := int64(0), int64(0), true
	for _, arg := range g.uses[0].args {
		name, value, given := strings.Cut(arg, "=")
		n, err := strconv.ParseInt(value, 10, 32)
		switch {
		case arg == "nodelay":
			queue = false
		case name == "zone" && given:
		case err != nil || n < 0:
			return p, nil, fmt.Errorf("%s is not read", arg)
		case name == "burst":
			burst = n
		case name == "delay":
			delay = n
		default:
			return p, nil, fmt.Errorf("%s is not read", arg)
		}
	}
	if queue && delay > 0 && delay < burst {
		remarks = append(remarks, fmt.Sprintf("nginx holds back the requests after the first %d of a burst, "+
			"Weir lets them through at once; which it refuses is the same", delay))
	}
	queue = queue && delay == 0 && burst > 0
	rate.Burst = burst + 1
	if queue {
		p.Algorithm, rate.Burst = "leaky_bucket", burst
		// The last place of the queue waits burst / rate.
		wait := quota.Span((int64(rate.Window)*burst + rate.Quota - 1) / rate.Quota)
		p.MaxWait = importer.Span((wait + quota.Millisecond - 1) / quota.Millisecond * quota.Millisecond)
	}
	p.Limits = []importer.Limit{rate}
	return p, remarks, nil
}

// connectionLimit returns a limit of requests in flight. nginx counts a connection from the moment
// at which it has read a request to the end of the answer. It counts each request of HTTP/2 by
// itself.
func (g *group) connectionLimit() (p importer.Policy, remarks []string, err error) {
	args := g.uses[0].args
	n, err := strconv.ParseInt(args[len(args)-1], 10, 32)
	if err != nil || n < 1 || len(args) != 2 {
		return p, nil, errors.New("the number of connections is not read")
	}
	p.Limits, p.MaxHold = []importer.Limit{{InFlight: n}}, "forever" // nginx counts none out.
	return p, nil, nil
}

// parseRate reads 10r/s or 30r/m. nginx keeps thousandths of a request a second and drops the rest.
func parseRate(text string) (l importer.Limit, remark string, err error) {
	number, unit, _ := strings.Cut(text, "r/")
	n, err := strconv.ParseInt(number, 10, 32)
	switch {
	case err != nil || n < 1 || unit != "s" && unit != "m":
		return l, "", fmt.Errorf("the rate %q of its zone is not read", text)
	case unit == "s":
		return importer.Limit{Quota: n, Window: quota.Second}, "", nil
	}
	if n*1000%60 != 0 {
		remark = fmt.Sprintf("nginx rounds %s down to %d thousandths of a request a second", text, n*1000/60)
	}
	return importer.Limit{Quota: n, Window: quota.Minute}, remark, nil
}
