package simulate

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

func load(t testing.TB, text string) *policy.Set {
	t.Helper()
	set, err := policydoc.Load([]byte("version: weir/v1\n"+text), policydoc.YAML)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func replay(t testing.TB, o Options, log string) Report {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Read("log", strings.NewReader(log)); err != nil {
		t.Fatal(err)
	}
	return s.Report()
}

const perConsumer = `
identity: {consumer: [{header: x-api-key}, {jwt: sub}, {query: key}]}
policies:
  - {name: api, match: {paths: ["/v1/**"]}, partition: [consumer], limit: {quota: %d, window: 10s}}`

// The refusals of a random log equal the refusals of one bucket for each caller that is asked in
// the order of time.
func TestDecidesAsBucketsDo(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	p, err := quota.NewParams(5, 10*quota.Second, 5)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	states, refused := map[string]quota.State{}, map[string]int64{}
	log.WriteString("time,consumer,path\n")
	at := quota.Instant(1.7e15)
	for range 5000 {
		at += quota.Instant(r.Int64N(400_000))
		who := fmt.Sprint("c", r.IntN(5))
		fmt.Fprintf(&log, "%d,%s,/v1//x/../%s\n", at, who, who)
		var result quota.Result
		if states[who], result = p.Take(states[who], at, 1); !result.Allowed {
			refused[who]++
		}
	}
	report := replay(t, Options{Set: load(t, fmt.Sprintf(perConsumer, 5)), Top: 10}, log.String())
	if report.Requests != 5000 || len(report.Result.Callers) != len(refused) || !report.Result.Exact {
		t.Fatalf("%+v", report)
	}
	for _, c := range report.Result.Callers {
		if c.Refused != refused[c.Who] {
			t.Errorf("%s was refused %d times, want %d", c.Who, c.Refused, refused[c.Who])
		}
	}
}

// Lines that are late by less than the window count at their place: the order in which they stand
// does not matter.
func TestOrderWithinTheWindowDoesNotMatter(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var lines []string
	for i := range 400 {
		lines = append(lines, fmt.Sprintf(`{"time": %d, "x-api-key": "k%d", "path": "/v1/a"}`, 1_700_000_000_000_000+int64(i)*250_000, i%3))
	}
	o := Options{Set: load(t, fmt.Sprintf(perConsumer, 4)), Top: 5}
	sorted := replay(t, o, strings.Join(lines, "\n"))
	for first := 0; first < len(lines); first += 30 { // seven seconds and a half
		part := lines[first:min(first+30, len(lines))]
		r.Shuffle(len(part), func(i, k int) { part[i], part[k] = part[k], part[i] })
	}
	shuffled := replay(t, o, strings.Join(lines, "\n"))
	if fmt.Sprint(sorted) == "" ||
		fmt.Sprintf("%+v", sorted.Result.Callers) != fmt.Sprintf("%+v", shuffled.Result.Callers) || shuffled.Late != 0 {
		t.Errorf("in order %+v\nshuffled %+v, %d late", sorted.Result.Callers, shuffled.Result.Callers, shuffled.Late)
	}
}

// Callers are distinguished where policies look for them.
func TestIdentities(t *testing.T) {
	log := `{"time": 1700000000, "x-api-key": "a", "path": "/v1/a"}
{"time": 1700000000, "jwt:sub": "a", "path": "/v1/a"}
{"time": 1700000000, "path": "/v1/a?key=a"}
{"time": 1700000000, "x_api_key": "a", "path": "/v1/a"}
{"time": 1700000000, "user": "a", "path": "/v1/a"}
{"time": 1700000000, "jwt:sub": "a", "path": "/v1/a"}
{"time": 1700000000, "path": "/v1/a", "user": "-"}
{"time": 1700000000, "path": "/other", "x-api-key": "a"}
`
	report := replay(t, Options{Set: load(t, fmt.Sprintf(perConsumer, 1)), Top: 5}, log)
	if report.Result.Refused != 3 || report.Requests != 8 { // Two of the header and one of the claim.
		t.Errorf("%+v", report.Result)
	}
	tiers := load(t, `
identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}
tiers: [free, paid]
policies:
  - {name: api, partition: [consumer], limits: {free: {quota: 1, window: 1h}, paid: unlimited}}`)
	log = "time,key,path,tier\n1700000000,a,/,\n1700000001,a,/,\n1700000002,b,/,paid\n1700000003,b,/,paid\n"
	if got := replay(t, Options{Set: tiers, Top: 5}, log).Result; got.Refused != 1 || got.Callers[0].Who != "a" {
		t.Errorf("by tier: %+v", got)
	}
	anonymous := load(t, `
identity: {consumer: [{header: x-api-key}, client_ip], tier: [{consumer_source: {client_ip: free}}], default_tier: paid}
tiers: [free, paid]
policies:
  - {name: api, match: {client_ips: [10.0.0.0/8], headers: [{name: x-batch, absent: true}]}, partition: [consumer], limits: {free: {quota: 1, window: 1h}, paid: {quota: 2, window: 1h}}}`)
	log = "time,x-api-key,path,client_ip,x-batch\n1700000000,,/,10.0.0.1,\n1700000001,,/,10.0.0.1,\n" +
		"1700000002,k,/,10.0.0.1,\n1700000003,k,/,10.0.0.1,\n" +
		"1700000004,,/,11.0.0.1,\n1700000005,,/,11.0.0.1,\n1700000006,,/,10.0.0.1,1\n"
	if got := replay(t, Options{Set: anonymous, Top: 5}, log).Result; got.Refused != 1 ||
		got.Callers[0].Who != "10.0.0.1" {
		t.Errorf("by address: %+v", got)
	}
}

// The identity of a client's certificate is in fields of the source's name, where "-" is none.
func TestIdentitiesOfCertificates(t *testing.T) {
	set := load(t, `
identity: {consumer: [{header: x-api-key}, {spiffe: true}, {cert_subject: true}]}
policies:
  - {name: api, partition: [consumer], limit: {quota: 1, window: 1h}}`)
	log := "time,path,spiffe,cert_subject\n1700000000,/,spiffe://a,-\n1700000001,/,spiffe://a,CN=a\n" +
		"1700000002,/,-,CN=a\n1700000003,/,-,CN=b\n1700000004,/,-,CN=b\n1700000005,/,-,-\n1700000006,/,-,-\n"
	if got := replay(t, Options{Set: set, Top: 5}, log).Result; got.Refused != 2 {
		t.Errorf("%+v", got)
	}
}

func TestBansAndExemptions(t *testing.T) {
	set := load(t, `
exempt: {paths: [/healthz]}
banned: {client_ips: [203.0.113.0/24]}
policies:
  - {name: all, partition: [client_ip], limit: {quota: 1, window: 1h}}`)
	log := "time,path,client_ip\n1700000000,/healthz,10.0.0.1\n1700000000,/,203.0.113.7:99\n1700000000,/,10.0.0.1\n" +
		"1700000000,/,10.0.0.1:5\n"
	got := replay(t, Options{Set: set, Top: 5}, log).Result
	if got.Banned != 1 || got.Refused != 1 || got.Callers[0].Who != "10.0.0.1" && got.Callers[1].Who != "10.0.0.1" {
		t.Errorf("%+v", got)
	}
}

// Nothing in a log makes the simulation fail; each line is a request, malformed or empty.
func FuzzRead(f *testing.F) {
	f.Add([]byte("time,path\n1700000000,/\n"))
	f.Add([]byte(`{"time": 1700000000, "path": "/v1/a", "x-api-key": {"a": []}}` + "\n[]\n\n\"\""))
	f.Add([]byte("\x1f\x8b\x08"))
	f.Add([]byte(`{"time": -1e400, "path": "/%zz"}`))
	set := load(f, fmt.Sprintf(perConsumer, 1))
	f.Fuzz(func(t *testing.T, log []byte) {
		s, err := New(Options{Set: set, Top: 3})
		if err != nil {
			t.Fatal(err)
		}
		if s.Read("log", bytes.NewReader(log)) != nil {
			return
		}
		if r := s.Report(); r.Lines != r.Requests+r.Malformed || int64(len(r.Problems)) > r.Malformed {
			t.Errorf("%+v", r)
		}
	})
}

func TestReads(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	fmt.Fprint(w, `{"time": "2026-05-04T09:00:00.5+02:00", "path": "/v1/a", "x-api-key": "k"}`)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Set: load(t, fmt.Sprintf(perConsumer, 1))})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Read("packed", &packed); err != nil {
		t.Fatal(err)
	}
	long := `{"path": "` + strings.Repeat("x", maxLine) + "\"}\n" + `{"time": 1777878001, "path": "/v1/a", "x-api-key": "k"}`
	if err := s.Read("long", strings.NewReader(long)); err != nil {
		t.Fatal(err)
	}
	r := s.Report()
	if r.Requests != 2 || r.Malformed != 1 || r.Result.Refused != 1 ||
		r.Problems[0] != "long:1: it is longer than 1048576 bytes" ||
		r.From.String() != "2026-05-04 07:00:00.5 +0000 UTC" {
		t.Errorf("%+v", r)
	}
}

// A log may begin with a byte order mark and with empty lines, in JSON and in CSV.
func TestALogBeginsLate(t *testing.T) {
	const line = `{"time": 1777878001, "path": "/v1/a", "x-api-key": "k"}` + "\n"
	const rows = "time,consumer,path\n1777878001,k,/v1/a\n"
	set := load(t, fmt.Sprintf(perConsumer, 1))
	for _, begin := range []string{"", "\ufeff", "\n", "\ufeff\r\n \t\n"} {
		for _, log := range []string{line, rows} {
			r := replay(t, Options{Set: set, Nodes: 1}, begin+log+"?\n")
			want := fmt.Sprintf("log:%d:", strings.Count(begin+log, "\n")+1)
			if r.Requests != 1 || r.Malformed != 1 || !strings.HasPrefix(r.Problems[0], want) {
				t.Errorf("%q: %d requests, want 1; problems %q, want one of %s", begin+log, r.Requests,
					r.Problems, want)
			}
		}
	}
	if r := replay(t, Options{Set: set, Nodes: 1}, "\ufeff\n\n"); r.Requests != 0 || r.Lines != 0 {
		t.Errorf("nothing: %+v", r)
	}
}

// Memory is bounded: the callers with many refusals stay, and counts are wrong by at most their
// Error.
func TestCallersAreBounded(t *testing.T) {
	c := newCallers(50)
	truth := map[string]int64{}
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 20_000 {
		who := fmt.Sprint("rare-", r.IntN(5000))
		if i%4 == 0 {
			who = fmt.Sprint("often-", i%3)
		}
		truth[who]++
		c.addRefusal("p", who, quota.Instant(i))
	}
	all, exact := c.listCallers()
	for _, one := range all[:3] {
		if !strings.HasPrefix(one.Who, "often-") || one.Refused < truth[one.Who] ||
			one.Refused-one.Error > truth[one.Who] {
			t.Errorf("%+v, truly %d", one, truth[one.Who])
		}
	}
	if len(all) != 50 || exact {
		t.Errorf("%d callers are kept", len(all))
	}
}

func TestBucketsAreBounded(t *testing.T) {
	set := load(t, "policies:\n  - {name: a, partition: [client_ip], limit: {quota: 10, window: 1h}}\n")
	d, err := newDecider(set, 1, [16]byte{})
	if err != nil {
		t.Fatal(err)
	}
	d.most, d.sweepAt = 100, 100
	f := newFields(nil, set)
	take := func(n int, at string) {
		r, err := f.buildRecord(func(name string) string {
			return map[string]string{"time": at, "path": "/",
				"client_ip": fmt.Sprintf("10.0.%d.%d", n/250, n%250)}[name]
		})
		if err != nil {
			t.Fatal(err)
		}
		d.decideRequest(r)
	}
	for n := range 500 {
		take(n, "1700000000")
	}
	if len(d.buckets) > 100 || d.forgotten != 400 {
		t.Errorf("%d buckets are kept, %d were forgotten", len(d.buckets), d.forgotten)
	}
	for n := range 50 { // Hours later all are full, and forgotten without loss.
		take(1000+n, "1700009000")
	}
	if d.forgotten != 400 {
		t.Errorf("%d were forgotten", d.forgotten)
	}
}

// One operation is a log of twenty thousand requests against two policies, read, decided and summed
// up.
func BenchmarkSimulate(b *testing.B) {
	set := load(b, `
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: api, match: {paths: ["/v1/**"]}, partition: [consumer], limit: {quota: 100, window: 10s}}
  - {name: ip, partition: [client_ip], limit: {quota: 1000, window: 1m}, algorithm: sliding_window}`)
	const lines = 20_000
	var log strings.Builder
	for i := range lines {
		fmt.Fprintf(&log, `{"start_time":"%s","method":"GET","path":"/v1/items/%d","authority":"api.example.com","downstream_remote_address":"10.0.%d.%d:1234","response_code":200,"duration":3,"x-api-key":"key-%d"}`+"\n",
			timeOf(quota.Instant(1.7e15)+quota.Instant(i)*1000).Format("2006-01-02T15:04:05.000000Z"), i, i%7,
			i%250, i%1000)
	}
	text := log.String()
	b.ReportAllocs()
	for b.Loop() {
		s, err := New(Options{Set: set, Top: 10})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Read("log", strings.NewReader(text)); err != nil {
			b.Fatal(err)
		}
		if r := s.Report(); r.Requests != lines {
			b.Fatal(r)
		}
	}
	b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}

// Callers of a log are decided by the figures that it has of them.
func TestCallersOwnFigures(t *testing.T) {
	set := load(t, `
policies:
  - {name: api, partition: ["header:who"], mode: local, limit: {quota: {jwt: plan.rpm, max: 6, default: 2}, window: 1h}}`)
	var log strings.Builder
	for i := range 10 {
		fmt.Fprintf(&log, `{"time": %d, "who": "large", "jwt:plan.rpm": 4, "path": "/"}`+"\n", 1_700_000_000+i)
		fmt.Fprintf(&log, `{"time": %d, "who": "larger", "jwt:plan.rpm": "1000", "path": "/"}`+"\n", 1_700_000_000+i)
		fmt.Fprintf(&log, `{"time": %d, "who": "none", "path": "/"}`+"\n", 1_700_000_000+i)
	}
	for nodes, want := range map[int64]string{1: "none 8 large 6 larger 4", 2: "none 6 large 2"} {
		var got []string
		for _, c := range replay(t, Options{Set: set, Top: 10, Nodes: nodes}, log.String()).Result.Callers {
			got = append(got, fmt.Sprint(strings.TrimPrefix(c.Who, "header:who="), " ", c.Refused))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%d nodes: refused %v, want %s", nodes, got, want)
		}
	}
}
