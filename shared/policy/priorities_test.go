package policy_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
)

// classes are three: critical, the rest, and bulk.
const classes = `"priorities":[{"name":"critical","match":{"methods":["POST"],"paths":["/pay/**"]}},{"name":"rest"},
	{"name":"bulk","match":{"headers":[{"name":"X-Batch","present":true}]}}],`

func inClasses(classes, fields string) string {
	return `{"version":"weir/v1",` + classes + `"policies":[{"name":"p","partition":["upstream"],` + fields + `}]}`
}

// A reserve makes further limits: the rest for the classes after each class with a reserve, from
// the most important class down.
func TestReserve(t *testing.T) {
	set, err := decode(t, inClasses(classes, `"limit":[{"quota":100,"window":"1s","burst":50},{"quota":1000,"window":"1m"}],
		"reserve":{"rest":"10%","critical":"20%"},"candidate":{"limit":{"quota":10,"window":"1s"}}`))
	if err != nil {
		t.Fatal(err)
	}
	p := set.Policies[0]
	if want := []policy.Reserve{{Class: 0, Percent: 20}, {Class: 1, Percent: 10}}; !reflect.DeepEqual(p.Reserve, want) {
		t.Errorf("reserve %v, want %v", p.Reserve, want)
	}
	var got [][2]int64
	for _, l := range append(p.Limits, p.Candidate...) {
		got = append(got, [2]int64{l.Quota, l.Params.Burst})
	}
	want := [][2]int64{{100, 50}, {1000, 1000}, {80, 40}, {800, 800}, {70, 35}, {700, 700}, {10, 10}, {8, 8}, {7, 7}}
	if !reflect.DeepEqual(got, want) || len(p.Named(p.Limits)) != 2 || len(p.Named(p.Candidate)) != 1 {
		t.Errorf("limits %v, want %v", got, want)
	}
	if p.Partition[0].Kind != policy.PartUpstream || set.Priorities[2].Match.Headers[0].Name != "x-batch" {
		t.Errorf("%+v", set)
	}
	notes := strings.Join(p.Notes(10), "|")
	if !strings.Contains(notes, "the classes after the first 1 together have 80 % of it") ||
		strings.Contains(p.Bound(nil), "80") {
		t.Errorf("bound %s, notes %s", p.Bound(nil), notes)
	}
}

// Any client can send a header. Where that makes its requests more important than the rest it is
// said, and for the first class it is refused.
func TestUntrustedHeadersInClasses(t *testing.T) {
	const limit = `"limit":{"quota":1,"window":"1s"}`
	second := `"priorities":[{"name":"a","match":{"paths":["/a"]}},{"name":"b","match":{"headers":[{"name":"x","present":true}]}},{"name":"c"}],`
	set, err := decode(t, inClasses(second, limit))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"class b depends on a header that any client can send, and is more important than c, the rest"}
	if got := set.Notes(); !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
	trusted := strings.ReplaceAll(second, `"present":true`, `"present":true,"trusted":true`)
	if set, err = decode(t, inClasses(trusted, limit)); err != nil || len(set.Notes()) > 0 {
		t.Errorf("%v: %q", err, set.Notes())
	}
	if set, err = decode(t, inClasses(classes, limit)); err != nil || len(set.Notes()) > 0 {
		t.Errorf("a header that makes a request less important: %v, %q", err, set.Notes())
	}
}

func TestClassesAreRefused(t *testing.T) {
	const limit = `"limit":{"quota":10,"window":"1s"}`
	reserve := func(what string) string { return inClasses(classes, limit+`,"reserve":`+what) }
	list := func(list string) string { return inClasses(`"priorities":[`+list+`],`, limit) }
	for doc, want := range map[string]string{
		list(``): "priorities: is empty: name at least one class\npriorities: must have exactly one class without match, " +
			"for the requests that no other class matches; 0 have none",
		list(`{"name":"a"},{"name":"b"}`): "priorities: must have exactly one class without match, for the requests that no other " +
			"class matches; 2 have none",
		list(`{"name":"a"},{"name":"a","match":{"methods":["GET"]}}`): "priorities[1].name: is taken by another class: names must be unique",
		list(`{"match":{"methods":["GET"]}},{"name":"b"}`):            "priorities[0].name: is missing",
		list(`{"name":"a","match":{"headers":[{"name":"x","present":true}]}},{"name":"b"}`): "priorities[0].match: lets any client that " +
			"sends the header be of the first class: write trusted: true beside the header's name if the proxy " +
			"before Envoy sets it and removes any that clients send",
		list(`{"name":"a","match":{"domain":"x"}},{"name":"b"}`): "priorities[0].match: is of calls to the gRPC rate limit service: " +
			"classes are of requests that Envoys see",
		inClasses(``, limit+`,"reserve":{"a":"1%"}`): "policies[0].reserve.a: needs priorities, which name the classes",
		reserve(`{}`):                              "policies[0].reserve: must be a mapping like {critical: 20%}, not a mapping",
		reserve(`{"gold":"20%"}`):                  "policies[0].reserve.gold: must be one of the classes critical, rest, bulk, not gold",
		reserve(`{"bulk":"20%"}`):                  "policies[0].reserve.bulk: is the least important class: there is none from which a part could be kept",
		reserve(`{"critical":20}`):                 "policies[0].reserve.critical: must be a percentage from 1% to 99%, not 20",
		reserve(`{"critical":"100%"}`):             "policies[0].reserve.critical: must be a percentage from 1% to 99%, not 100%",
		reserve(`{"critical":"95%"}`):              "policies[0].reserve: leaves nothing of a limit of 10 for the other classes",
		reserve(`{"critical":"60%","rest":"40%"}`): "policies[0].reserve: keeps all of the limit: leave something for the other classes",
		inClasses(classes, limit+`,"reserve":{"critical":"20%"},"algorithm":"leaky_bucket","mode":"local"`): "policies[0].reserve: cannot be " +
			"of a leaky_bucket: a queue gives out its turns in order, and a turn that is kept would hold up those " +
			"behind it; use algorithm: token_bucket",
		inClasses(classes, `"limit":{"quota":{"jwt":"a","max":9,"default":1},"window":"1s"},"reserve":{"critical":"20%"}`): "policies[0].reserve: " +
			"cannot be of figures that requests bring: a part of each caller's own would be no part of the whole; " +
			"use numbers",
	} {
		_, err := decode(t, doc)
		if err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", doc, err, want)
		}
	}
}
