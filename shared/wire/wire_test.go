package wire_test

import (
	"bytes"
	"encoding/hex"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/ipaddr"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

var request = wire.LeaseRequest{
	Node: "envoy-1", Boot: 0x0123456789abcdef, Seq: 42, Version: 7,
	Items: []wire.LeaseItem{
		{Bucket: keyhash.Key{1, 2, 3}, Limit: 4, Waiting: 5, Cost: 6, Keep: 700},
		{Bucket: keyhash.Key{0xff}, Limit: 0, Waiting: 0, Cost: 1, Keep: 1 << 40},
	},
}

// named is the same request of a node that knows of consumers with limits of their own.
func named() wire.LeaseRequest {
	m := request
	m.Items = append([]wire.LeaseItem{}, m.Items...)
	m.Items[0].ExceptionsRevision, m.Items[1].ExceptionsRevision = 300, 300
	m.Items[1].Consumer, m.Items[1].Position = keyhash.Key{8, 7, 6, 5, 4, 3, 2, 1, 9}, policy.MaxLimits
	return m
}

// rooted is the same request with limits of consumers' own that are known by their windows.
func rooted() wire.LeaseRequest {
	m := named()
	m.Items[1].Position, m.Items[1].Root = wire.TierGuessed, quota.MaxWindow
	return m
}

// inherited is a set whose limits have the buckets of limits before, with other windows.
func inherited(t testing.TB) wire.Snapshot {
	s := figured(t)
	p := &s.Set.Policies[0]
	for i := range len(p.Limits) + len(p.Candidate) {
		p.Roots = append(p.Roots, quota.Span(i)*quota.Hour+1)
	}
	return s
}

// Limits are read back with the roots that they were written with.
func TestRootsReadBack(t *testing.T) {
	var ix match.Index
	s := inherited(t)
	if err := ix.Load(wire.AppendSnapshot(nil, s)); err != nil {
		t.Fatal(err)
	}
	for i, want := range s.Set.Policies[0].Roots {
		if got := ix.Limit(uint32(i)).Root; got != want {
			t.Errorf("limit %d has the root %d, want %d", i, got, want)
		}
	}
	m, err := wire.DecodeLeaseRequest(wire.AppendLeaseRequest(nil, rooted()))
	if err != nil || !reflect.DeepEqual(m, rooted()) {
		t.Errorf("%+v, %v", m, err)
	}
}

// claimed is the same request with an item of a caller with figures of its own.
func claimed() wire.LeaseRequest {
	m := named()
	m.Items[0].Joined, m.Items[0].Quota, m.Items[0].Burst = true, 6000, 1
	m.Items[1].Quota, m.Items[1].Burst = 1, quota.MaxUnits
	return m
}

// held is the same request with a claim of permits beside an item that wants tokens.
func held() wire.LeaseRequest {
	m := claimed()
	m.Items = append(m.Items, wire.LeaseItem{
		Kind: wire.KindClaim, Bucket: keyhash.Key{6}, Limit: 9, Waiting: 2, Keep: 3, Seq: 1<<52 + 1, Hold: 12, Lent: 11,
	})
	return m
}

var reply = wire.LeaseReply{
	Seq: 42, Nodes: 3,
	Items: []wire.LeaseAnswer{
		{State: wire.ItemGranted, Waiting: 5, Keep: 700, NotBefore: 36 * quota.Second, Level: 12},
		{State: wire.ItemUnknown},
		{State: wire.ItemUnavailable, NotBefore: 3 * quota.Second},
	},
}

// golden holds a message against the bytes that filters and control planes of one wire.Protocol
// have agreed on.
func golden(t *testing.T, name string, message []byte) {
	t.Helper()
	file := "testdata/" + name + ".hex"
	if os.Getenv("WEIR_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, []byte(hex.EncodeToString(message)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if hex.EncodeToString(message) != strings.TrimSpace(string(want)) {
		t.Errorf("%s changed: raise wire.Protocol if a release has had it\ngot  %x\nwant %s", name, message,
			want)
	}
}

// whole is a request with an item of each kind.
func whole() wire.LeaseRequest {
	m := rooted()
	for _, other := range []wire.LeaseRequest{held(), returns()} {
		m.Items = append(m.Items, other.Items...)
	}
	return m
}

func TestGolden(t *testing.T) {
	for name, got := range map[string][]byte{
		"lease_request":      wire.AppendLeaseRequest(nil, whole()),
		"lease_reply":        wire.AppendLeaseReply(nil, terms()),
		"snapshot":           snapshot(t),
		"snapshot_parts":     wire.AppendSnapshot(nil, parts(t)),
		"snapshot_classes":   wire.AppendSnapshot(nil, classed(t)),
		"snapshot_own":       wire.AppendSnapshot(nil, figured(t)),
		"snapshot_in_flight": wire.AppendSnapshot(nil, flying(t)),
		"snapshot_commit":    wire.AppendSnapshot(nil, settling(t)),
		"snapshot_roots":     wire.AppendSnapshot(nil, inherited(t)),
		"snapshot_adaptive":  wire.AppendSnapshot(nil, finding(t)),
	} {
		golden(t, name, got)
	}
}

func snapshot(t testing.TB) []byte {
	t.Helper()
	return wire.AppendSnapshot(nil, everything(t))
}

// everything is a snapshot that has each thing that there is.
func everything(t testing.TB) wire.Snapshot {
	t.Helper()
	limit := func(units int64, window quota.Span) policy.Limit {
		l, err := policy.NewLimit(policy.Counting{}, units, window, 0)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	return wire.Snapshot{Version: 9, Secret: [16]byte{9, 9}, Set: &policy.Set{
		Identity: policy.Identity{
			TrustedHops: 1, IPv6Prefix: 64, Consumer: []policy.Source{{Kind: policy.SourceHeader, Name: "x-api-key"}},
			Tier:        []policy.Source{{Kind: policy.SourceJWT, Name: "plan"}, {Kind: policy.SourceAssignment}},
			DefaultTier: 1,
		},
		Tiers:   []string{"premium", "free"},
		Headers: policy.Headers{Standard: dialect.Draft11, Legacy: dialect.XRateLimit},
		Banned: []policy.Range{{First: ipaddr.Addr{1}, Last: ipaddr.Addr{2}},
			{First: ipaddr.Addr{3}, Last: ipaddr.Addr{3}}},
		Exempt: policy.Exempt{
			ClientIPs: []policy.Range{{First: ipaddr.Addr{9}, Last: ipaddr.Addr{9, 9}}}, Paths: []string{"/healthz"},
			Methods: []string{"OPTIONS"}, Consumers: []string{"us"},
		},
		Policies: []policy.Policy{{
			Name: "p",
			Match: policy.Match{
				Hosts: []string{"*.example.com"}, Methods: []string{"POST"}, Paths: []string{"/shorten"},
				Headers: []policy.HeaderMatch{{Name: "x-a", Op: policy.HeaderEquals, Value: "1"}},
			},
			Partition: []policy.Part{{Kind: policy.PartClientIP}, {Kind: policy.PartHeader, Name: "x-tenant"}},
			IfAbsent:  policy.AbsentDeny, Limits: []policy.Limit{limit(100, quota.Hour), limit(7, quota.Second)},
			Tiers:     []policy.TierLimits{{From: 0, To: 0}, {From: 0, To: 2}},
			Candidate: []policy.Limit{limit(80, quota.Hour)},
			Cost:      policy.Cost{Fixed: 1, Source: xCost, Max: 5, Invalid: 2, DenyInvalid: true},
			Mode:      policy.ModeStrict, OnFailure: policy.OnFailure{{For: quota.Minute, Do: policy.StepShare},
				{Do: policy.StepDeny}},
			Enforced: 25, Response: policy.Response{Status: 503, Body: "later"},
		}},
	}}
}

// steps is a failure ladder with the largest number of steps.
var steps = policy.OnFailure{
	{For: 10 * quota.Second, Do: policy.StepAllow}, {For: quota.Minute, Do: policy.StepShare, Empty: true},
	{Do: policy.StepDeny},
}

// figures are held by requests, in each place where they may be.
var figures = []policy.Figures{
	{Quota: policy.Figure{Source: policy.Source{Kind: policy.SourceJWT, Name: "plan.rps"}, Default: 3}},
	{
		Quota: policy.Figure{Source: policy.Source{Kind: policy.SourceMetadata, Name: "a/b"}, Default: 300},
		Burst: policy.Figure{Source: policy.Source{Kind: policy.SourceHeader, Name: "x-burst"}, Default: 1},
	},
}

// parts is a snapshot whose set and whose first policy have parts.
func parts(t testing.TB) wire.Snapshot {
	t.Helper()
	s := everything(t)
	set := *s.Set
	set.Identity.Consumer = append(set.Identity.Consumer, policy.Source{Kind: policy.SourceClientIP})
	set.Identity.Tier = append(set.Identity.Tier, policy.Source{Kind: policy.SourceFound, Name: "client_ip=free"})
	p := set.Policies[0]
	p.Match.Headers = append(p.Match.Headers, policy.HeaderMatch{Name: "x-b", Op: policy.HeaderAbsent})
	p.Match.ClientIPs = []policy.Range{{First: ipaddr.Addr{1}, Last: ipaddr.Addr{2}}}
	p.Match.Tiers = []int{1}
	p.Response.ContentType = "application/json"
	p.OnFailure = steps
	set.Policies = []policy.Policy{p, s.Set.Policies[0]}
	set.Show = []policy.Part{{Kind: policy.PartMethod}}
	s.Set = &set
	return s
}

// figured is parts with limits whose figures requests hold.
func figured(t testing.TB) wire.Snapshot {
	t.Helper()
	s := parts(t)
	p := &s.Set.Policies[0]
	p.Limits, p.Candidate, p.Figures = slices.Clone(p.Limits), slices.Clone(p.Candidate), figures
	p.Limits[1].Own, p.Candidate[0].Own = 1, 2
	return s
}

// settling is parts with costs that are known later.
func settling(t testing.TB) wire.Snapshot {
	t.Helper()
	s := parts(t)
	p := &s.Set.Policies[0]
	p.Commit = policy.Commit{By: policy.CommitStatus, Statuses: []policy.StatusCost{
		{First: 401, Last: 401, Cost: 1}, {First: 500, Last: 599, Cost: 7}, {Last: 999},
	}}
	return s
}

// settlements returns a request with an item that names reservations, an item that settles a
// reservation, and an item that does neither.
func settlements() wire.LeaseRequest {
	m := named()
	m.Items = slices.Clone(m.Items)[:1]
	one := m.Items[0]
	one.Joined, one.Position = false, 0
	plain, settles := one, one
	one.Reserved = 1<<63 + 5
	settles.Kind, settles.Waiting, settles.Keep = wire.KindSettle, 0, 0
	settles.Reserved, settles.Nth, settles.Actual = 1<<63+4, 3, 250
	m.Items = []wire.LeaseItem{one, settles, plain}
	return m
}

// returns is settlements with an item that gives tokens back, and a report.
func returns() wire.LeaseRequest {
	m := settlements()
	back := m.Items[2]
	back.Kind, back.Waiting, back.Cost, back.Keep, back.Used = wire.KindReturn, 0, 0, 0, 5
	back.Reserved, back.Returned, back.Term = 1<<63+7, 40, 1<<32-2
	used := m.Items[2]
	used.Kind, used.Waiting, used.Keep, used.Used = wire.KindReport, 0, 0, 9
	m.Items = append(m.Items, back, used)
	return m
}

// terms is permitted with a term.
func terms() wire.LeaseReply {
	m := permitted()
	m.Items[0].Term = 1<<32 - 2
	return m
}

// flying is parts with limits of requests in flight.
func flying(t testing.TB) wire.Snapshot {
	t.Helper()
	s := parts(t)
	p := &s.Set.Policies[0]
	p.Limits, p.Candidate = slices.Clone(p.Limits), slices.Clone(p.Candidate)
	for _, l := range []*policy.Limit{&p.Limits[1], &p.Candidate[0]} {
		var err error
		if *l, err = policy.NewInFlight(20, 2*quota.Minute, 0); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// finding is parts with a policy with an adaptive limit.
func finding(t testing.TB) wire.Snapshot {
	t.Helper()
	s := parts(t)
	limit, err := policy.NewInFlight(2000, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Set.Policies = append(slices.Clone(s.Set.Policies), policy.Policy{
		Name: "worker", Partition: []policy.Part{{Kind: policy.PartUpstream}}, Mode: policy.ModeLocal,
		Limits: []policy.Limit{limit}, Cost: policy.Cost{Fixed: 1}, Enforced: policy.EnforcedAll,
		Adaptive: policy.Adaptive{Min: 20, Max: 2000, Percentile: 90, By: policy.ByLatency | policy.ByWorker},
	})
	return s
}

// A snapshot whose adaptive limit could be none of a document is refused.
func TestAdaptiveIsChecked(t *testing.T) {
	for _, a := range []policy.Adaptive{
		{Min: 0, Max: 9, Percentile: 90, By: 1}, {Min: 9, Max: 8, Percentile: 90, By: 1},
		{Min: 1, Max: 1 << 40, Percentile: 90, By: 1}, {Min: 1, Max: 9, Percentile: 100, By: 1},
		{Min: 1, Max: 9, Percentile: 90, By: 2}, {Min: 1, Max: 9, Percentile: 90, By: 9},
	} {
		s := finding(t)
		s.Set.Policies[len(s.Set.Policies)-1].Adaptive = a
		if err := new(match.Index).Load(wire.AppendSnapshot(nil, s)); err == nil {
			t.Errorf("%+v is read", a)
		}
	}
}

// classed returns parts with classes of requests, and a limit with a reserve for a class.
func classed(t testing.TB) wire.Snapshot {
	t.Helper()
	s := parts(t)
	s.Set.Priorities = []policy.Class{
		{Name: "first", Match: policy.Match{
			Hosts: []string{"a.example"}, Methods: []string{"POST"}, Paths: []string{"/pay/**"},
			Headers:   []policy.HeaderMatch{{Name: "x-b", Op: policy.HeaderPresent}},
			ClientIPs: []policy.Range{{First: ipaddr.Addr{1}, Last: ipaddr.Addr{2}}}, Tiers: []int{1},
		}},
		{Name: "rest", Rest: true},
	}
	p := s.Set.Policies[1]
	part, _ := p.Limits[1].Part(80)
	p.Reserve = []policy.Reserve{{Class: 0, Percent: 20}}
	p.Limits, p.Tiers, p.Candidate = []policy.Limit{p.Limits[1], part}, nil, nil
	p.Partition = []policy.Part{{Kind: policy.PartUpstream}}
	s.Set.Policies[1] = p
	return s
}

// Classes have all of their conditions after reading, and reading ends for any damage.
func TestClassesReadBack(t *testing.T) {
	b := wire.AppendSnapshot(nil, classed(t))
	var ix match.Index
	if err := ix.Load(b); err != nil {
		t.Fatal(err)
	}
	after := ix.After(&match.Hit{Policy: 1, Limit: 4, Position: 1})
	if named := ix.After(&match.Hit{Policy: 1, Limit: 3}); string(after) != "first" || named != nil {
		t.Errorf("the second limit is for those after %q, the first for those after %q", after, named)
	}
	for i := range b {
		damaged := append([]byte(nil), b...)
		damaged[i] ^= 0x41
		_ = ix.Load(damaged)
		if ix.Load(wire.Reseal(damaged)) == nil {
			a := match.Attributes{Method: []byte("POST"), Host: []byte("a.example"), Path: []byte("/pay/1")}
			var m match.Matcher
			for _, h := range m.Match(&ix, &a).Hits {
				ix.After(&h)
			}
		}
	}
}

// A filter refuses unknown fields: otherwise it would decide by less than the policy says, or by
// something else. The changes are bytes in the plain snapshot of one policy.
func TestWhatAFilterDoesNotKnowIsRefused(t *testing.T) {
	limit, err := policy.NewLimit(policy.Counting{}, 1, quota.Second, 1)
	if err != nil {
		t.Fatal(err)
	}
	b := wire.AppendSnapshot(nil, wire.Snapshot{Set: &policy.Set{
		Identity: policy.Identity{IPv6Prefix: 64, Consumer: []policy.Source{{Kind: policy.SourceHeader, Name: "a"}}},
		Headers:  policy.Headers{Standard: dialect.Draft11},
		Policies: []policy.Policy{{Name: "p", Mode: policy.ModeStrict, IfAbsent: policy.AbsentDeny,
			Enforced: policy.EnforcedAll, Limits: []policy.Limit{limit}, OnFailure: policy.DefaultOnFailure,
			Match:     policy.Match{Headers: []policy.HeaderMatch{{Name: "b", Op: policy.HeaderPresent}}},
			Cost:      policy.Cost{Source: policy.Source{Kind: policy.SourceHeader, Name: "c"}},
			Partition: []policy.Part{{Kind: policy.PartHeader, Name: "d"}}}},
	}})
	before := func(text string) int { return bytes.LastIndex(b, []byte(text)) }
	name, source := before("\x01p"), before("\x01a")
	headers := source + 5 // Behind two lists without elements and the default tier.
	for what, change := range map[string]struct {
		at         int
		was, value byte
	}{
		"nothing":                  {len(b) - 1, 0, 0},
		"a part of the set":        {len(b) - 1, 0, 0x10},
		"a part of the policy":     {len(b) - 2, 0, 0x20},
		"a source of the consumer": {source - 1, byte(policy.SourceHeader), byte(policy.SourceCount)},
		"a header dialect":         {headers, byte(dialect.Draft11), 4},
		"a legacy dialect":         {headers + 1, byte(dialect.LegacyOff), byte(len(dialect.Legacies))},
		"if_absent":                {name + 2, byte(policy.AbsentDeny), byte(policy.AbsentShared) + 1},
		"a mode":                   {name + 3, byte(policy.ModeStrict), byte(policy.ModeOptimistic) + 1},
		"an enforcement":           {name + 4, byte(policy.EnforcedAll), byte(policy.EnforcedAll) + 1},
		"a step of the ladder":     {name + 5, byte(policy.StepShare), byte(policy.StepDeny) + 1},
		"a source of the cost":     {before("\x01c") - 1, byte(policy.SourceHeader), byte(policy.SourceCount)},
		"a source of a consumer":   {before("\x01c") - 1, byte(policy.SourceHeader), byte(policy.SourceCookie)},
		"a condition of a header":  {before("\x01b") - 1, byte(policy.HeaderPresent), byte(policy.HeaderAbsent) + 1},
		"a part of the partition":  {before("\x01d") - 1, byte(policy.PartHeader), byte(policy.PartEnd)},
	} {
		other := append([]byte(nil), b...)
		if other[change.at] != change.was {
			t.Fatalf("%s: the byte is %d", what, other[change.at])
		}
		other[change.at] = change.value
		if err := new(match.Index).Load(wire.Reseal(other)); (err == nil) != (what == "nothing") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for algorithm := range 256 {
		at := bytes.Index(b[name:], []byte{byte(policy.StepAllow), 0, 0}) + name + 3
		other := append([]byte(nil), b...)
		if other[at] = byte(algorithm); new(match.Index).Load(wire.Reseal(other)) == nil &&
			algorithm >= int(quota.AlgorithmCount) {
			t.Errorf("algorithm %d is read", algorithm)
		}
	}
}

func TestPartsReadBack(t *testing.T) {
	b := wire.AppendSnapshot(nil, parts(t))
	var ix match.Index
	if err := ix.Load(b); err != nil || ix.Len() != 2 {
		t.Fatalf("%d policies: %v", ix.Len(), err)
	}
	if got := string(ix.Text(ix.Policy(0).ContentType)); got != "application/json" ||
		ix.Policy(1).ContentType.Len != 0 {
		t.Errorf("the content type is %q", got)
	}
	if got := ix.Policy(0).OnFailure; got != steps {
		t.Errorf("the failure ladder: %v", got)
	}
	b = wire.AppendSnapshot(nil, figured(t))
	if err := ix.Load(b); err != nil {
		t.Fatal(err)
	}
	var own []uint8
	for i := range uint32(5) {
		own = append(own, ix.Limit(i).Own)
	}
	if want := []uint8{0, 1, 1, 0, 0}; !slices.Equal(own, want) {
		t.Errorf("limits have the figures %v, want %v", own, want)
	}
	for i := range b { // Whatever is damaged, reading ends.
		damaged := append([]byte(nil), b...)
		damaged[i] ^= 0x41
		_ = ix.Load(damaged)
		_ = ix.Load(wire.Reseal(damaged))
	}
}

func TestSnapshotReadsBack(t *testing.T) {
	b := snapshot(t)
	version, secret, set, err := wire.OpenSnapshot(b)
	if err != nil || version != 9 || secret != [16]byte{9, 9} || wire.PeekVersion(b) != 9 {
		t.Fatalf("version %d secret %v: %v", version, secret, err)
	}
	var got []string
	text := func(r wire.Ref) { got = append(got, string(r.Of(b))) }
	named := func(_ policy.SourceKind, name wire.Ref) { text(name) }
	head := set.Head(named, text, named)
	var banned, exempt []policy.Range
	set.Access(func(r policy.Range) { banned = append(banned, r) }, func(r policy.Range) { exempt = append(exempt, r) },
		text, text, text)
	if n := set.Policies(); head.TrustedHops != 1 || head.IPv6Prefix != 64 || head.DefaultTier != 1 || n != 1 ||
		len(banned) != 2 || len(exempt) != 1 || banned[1].First[0] != 3 {
		t.Errorf("head %+v, %d policies, banned %v, exempt %v", head, n, banned, exempt)
	}
	var limits [][]int64
	p := set.Policy(func() { limits = append(limits, nil) }, func(l policy.Limit) {
		limits[len(limits)-1] = append(limits[len(limits)-1], l.Quota)
	})
	text(p.Name)
	text(p.Cost.Source)
	text(p.Body)
	set.Lists(text, text, text, func(_ policy.HeaderOp, name, value wire.Ref) { text(name); text(value) },
		func(_ policy.PartKind, name wire.Ref) { text(name) })
	readParts(&set, func(penalty.Rule) {})
	readSetParts(&set)
	if err := set.End(); err != nil {
		t.Fatal(err)
	}
	want := []string{"x-api-key", "premium", "free", "plan", "", "/healthz", "OPTIONS", "us", "p", "x-cost", "later",
		"*.example.com", "POST", "/shorten", "x-a", "1", "", "x-tenant"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("texts %q, want %q", got, want)
	}
	if !reflect.DeepEqual(limits, [][]int64{nil, {100, 7}, {80}}) || !p.ByTier || p.Mode != policy.ModeStrict ||
		p.IfAbsent != policy.AbsentDeny || !p.Cost.DenyInvalid || p.Enforced != 25 || p.Status != 503 ||
		p.OnFailure != (policy.OnFailure{{For: quota.Minute, Do: policy.StepShare}, {Do: policy.StepDeny}}) {
		t.Errorf("policy %+v, limits %v", p, limits)
	}
}

func TestLeaseMessagesReadBack(t *testing.T) {
	for _, want := range []wire.LeaseRequest{request, whole(), claimed()} {
		got, err := wire.DecodeLeaseRequest(wire.AppendLeaseRequest(nil, want))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("request %+v: %v", got, err)
		}
	}
	person := named().Items[1].Consumer
	if want := (keyhash.Key{8, 7, 6, 5, 4, 3, 2, 1, 9}); person != want {
		t.Errorf("the consumer is %v, want %v", person, want)
	}
	for _, want := range []wire.LeaseReply{reply, terms()} {
		var back wire.LeaseReply
		if err := wire.DecodeLeaseReply(wire.AppendLeaseReply(nil, want), &back); err != nil ||
			!reflect.DeepEqual(back, want) {
			t.Errorf("reply %+v: %v", back, err)
		}
	}
}

// permitted is a reply that grants permits.
func permitted() wire.LeaseReply {
	m := full()
	m.Items = append(m.Items, wire.LeaseAnswer{State: wire.ItemGranted, Keep: 14, Level: 6, For: 10 * quota.Second})
	return m
}

// full is a reply that says when buckets are full.
func full() wire.LeaseReply {
	m := reply
	m.Items = append([]wire.LeaseAnswer(nil), reply.Items...)
	m.Items[0].FullAfter = 42 * quota.Second
	return m
}

// Whatever is cut off, added or claimed, decoding ends with an error and without a large
// allocation.
func TestDamagedMessagesAreRefused(t *testing.T) {
	var back wire.LeaseReply
	messages := map[string]struct {
		bytes  []byte
		decode func([]byte) error
	}{
		"request": {wire.AppendLeaseRequest(nil, request),
			func(b []byte) error { _, err := wire.DecodeLeaseRequest(b); return err }},
		"request of everything": {wire.AppendLeaseRequest(nil, whole()),
			func(b []byte) error { _, err := wire.DecodeLeaseRequest(b); return err }},
		"reply": {wire.AppendLeaseReply(nil, terms()),
			func(b []byte) error { return wire.DecodeLeaseReply(b, &back) }},
		"snapshot of parts": {wire.AppendSnapshot(nil, parts(t)),
			func(b []byte) error { _, _, _, err := wire.OpenSnapshot(b); return err }},
		"snapshot": {snapshot(t), func(b []byte) error { _, _, _, err := wire.OpenSnapshot(b); return err }},
	}
	for name, m := range messages {
		for i := range m.bytes {
			if m.decode(m.bytes[:i]) == nil {
				t.Errorf("%s cut at %d was accepted", name, i)
			}
		}
		if m.decode(append(append([]byte(nil), m.bytes...), 0)) == nil {
			t.Errorf("%s with a byte more was accepted", name)
		}
	}
	many := request
	many.Items = make([]wire.LeaseItem, wire.MaxItems+1)
	for i := range many.Items {
		many.Items[i].Cost = 1
	}
	if _, err := wire.DecodeLeaseRequest(wire.AppendLeaseRequest(nil, many)); err == nil {
		t.Error("more items than allowed")
	}
	free := request
	free.Items = []wire.LeaseItem{{Cost: 0, Waiting: 1}}
	if _, err := wire.DecodeLeaseRequest(wire.AppendLeaseRequest(nil, free)); err == nil {
		t.Error("a waiting request without cost")
	}
	if _, _, _, err := wire.OpenSnapshot(make([]byte, wire.MaxSnapshot+1)); err != wire.ErrTooLarge {
		t.Errorf("a huge snapshot: %v", err)
	}
}

func TestAnyRequestReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := wire.LeaseRequest{
			Node: rapid.StringN(0, -1, wire.MaxNodeID).Draw(t, "node"), Boot: rapid.Uint64().Draw(t, "boot"),
			Seq: rapid.Uint64().Draw(t, "seq"), Version: rapid.Uint64().Draw(t, "version"), Items: []wire.LeaseItem{},
		}
		for range rapid.IntRange(0, wire.MaxItems/2).Draw(t, "items") {
			if rapid.IntRange(0, 9).Draw(t, "claims") == 0 {
				m.Items = append(m.Items, wire.LeaseItem{
					Kind: wire.KindClaim, Seq: rapid.Uint64Range(1, 1<<53).Draw(t, "claim"),
					Hold: rapid.Int64Range(0, 1<<20).Draw(t, "hold"),
				})
			}
			m.Items = append(m.Items, wire.LeaseItem{
				Bucket:  keyhash.Key(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "bucket")),
				Limit:   rapid.Uint32Range(0, 1<<20).Draw(t, "limit"),
				Waiting: rapid.Int64Range(0, 1<<20).Draw(t, "waiting"),
				Cost:    rapid.Int64Range(1, quota.MaxUnits).Draw(t, "cost"),
				Keep:    rapid.Int64Range(0, quota.MaxUnits).Draw(t, "keep"),
				Soon:    rapid.Bool().Draw(t, "soon"),
			})
		}
		got, err := wire.DecodeLeaseRequest(wire.AppendLeaseRequest(nil, m))
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Fatalf("%+v became %+v: %v", m, got, err)
		}
	})
}

func FuzzLeaseRequest(f *testing.F) {
	f.Add(wire.AppendLeaseRequest(nil, request))
	f.Add(wire.AppendLeaseRequest(nil, whole()))
	f.Add(wire.AppendLeaseRequest(nil, claimed()))
	for _, next := range least {
		f.Add(wire.AppendLeaseRequest(nil, grouped(next)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := wire.DecodeLeaseRequest(b)
		if err == nil && len(m.Items) > wire.MaxItems {
			t.Errorf("%d items", len(m.Items))
		}
		for i, it := range m.Items {
			if it.Joined && (i+1 == len(m.Items) || m.Items[i+1].Kind != wire.KindAsk) {
				t.Errorf("item %d joins no ask: %+v", i, m.Items)
			}
		}
	})
}

func FuzzLeaseReply(f *testing.F) {
	f.Add(wire.AppendLeaseReply(nil, reply))
	f.Add(wire.AppendLeaseReply(nil, terms()))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m wire.LeaseReply
		if wire.DecodeLeaseReply(b, &m) != nil {
			return
		}
		for _, it := range m.Items {
			if it.Waiting < 0 || it.Keep < 0 || it.NotBefore < 0 || it.Level < 0 || it.FullAfter < 0 || it.For < 0 {
				t.Errorf("negative: %+v", it)
			}
		}
	})
}

// xCost is a header that says a cost.
var xCost = policy.Source{Kind: policy.SourceHeader, Name: "x-cost"}
