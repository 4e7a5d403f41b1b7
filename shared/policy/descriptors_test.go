package policy_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
)

func ofCalls(fields string) string {
	return `{"version": "weir/v1", "policies": [{"name": "p", "limit": {"quota": 1, "window": "1s"}, "mode": "strict", ` + fields + `}]}`
}

func TestPoliciesForCalls(t *testing.T) {
	set, err := decode(t, ofCalls(`"partition": ["descriptor:user", "client_ip"], "match": {"domain": "edge", "descriptors": [
		{"name": "generic_key", "equals": "api"}, {"name": "user", "present": true, "except": [{"equals": "bob"}, {"prefix": "al"}]},
		{"name": "path", "prefix": "/v1"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	p := &set.Policies[0]
	want := policy.Match{Domain: "edge", Descriptors: []policy.EntryMatch{
		{Name: "generic_key", Op: policy.HeaderEquals, Value: "api"},
		{Name: "user", Op: policy.HeaderPresent,
			Except: []policy.Exception{{Value: "bob"}, {Value: "al", Prefix: true}}},
		{Name: "path", Op: policy.HeaderPrefix, Value: "/v1"},
	}}
	if !reflect.DeepEqual(p.Match, want) || !p.Match.IsOfCalls() {
		t.Errorf("match %+v", p.Match)
	}
	if key, is := p.Partition[0].Descriptor(); !is || key != "user" || p.Partition[0].String() != "descriptor:user" {
		t.Errorf("partition %v", p.Partition)
	}
	if _, is := p.Partition[1].Descriptor(); is {
		t.Errorf("%v is a descriptor", p.Partition[1])
	}
	if notes := strings.Join(p.Notes(1), "\n"); !strings.Contains(notes,
		"for calls to the gRPC rate limit service alone") {
		t.Errorf("notes: %s", notes)
	}
}

// The partition alone says which entries a descriptor has.
func TestDescriptorsOfThePartition(t *testing.T) {
	set, err := decode(t, ofCalls(`"partition": ["descriptor:user", "method", "descriptor:Path"]`))
	if err != nil {
		t.Fatal(err)
	}
	want := []policy.EntryMatch{{Name: "user", Op: policy.HeaderPresent}, {Name: "Path", Op: policy.HeaderPresent}}
	if got := set.Policies[0].Match.Descriptors; !reflect.DeepEqual(got, want) {
		t.Errorf("descriptors %+v", got)
	}
}

func TestPoliciesForCallsAreRefused(t *testing.T) {
	for _, c := range []struct{ fields, problem string }{
		{`"partition": [], "match": {"domain": "d", "hosts": ["a.example"]}`, "policies[0].match.hosts: cannot be beside a domain or descriptors"},
		{`"partition": ["descriptor:a"], "match": {"paths": ["/a"]}`, "policies[0].match.paths: cannot be beside a domain or descriptors"},
		{`"partition": [], "match": {"domain": ""}`, "policies[0].match.domain: must have 1 to 1024 bytes"},
		{`"partition": [], "match": {"descriptors": []}`, "policies[0].match.descriptors: is empty"},
		{`"partition": ["descriptor:"]`, "policies[0].partition[0]: must be the key of a descriptor's entry"},
		{`"partition": ["descriptor:b"], "match": {"descriptors": [{"name": "a", "present": true}]}`,
			"policies[0].partition[0]: names an entry that match.descriptors does not have"},
		{`"partition": [], "match": {"descriptors": [{"name": "a"}]}`, "match.descriptors[0]: must have exactly one of equals, prefix, present"},
		{`"partition": [], "match": {"descriptors": [{"present": true}]}`, "match.descriptors[0].name: is missing"},
		{`"partition": [], "match": {"descriptors": [{"name": "a", "equals": "b", "prefix": "b"}]}`, "must have exactly one of equals, prefix, present"},
		{`"partition": [], "match": {"descriptors": [{"name": "a", "absent": true}]}`, "match.descriptors[0].absent: "},
		{`"partition": [], "match": {"descriptors": [{"name": "a", "equals": "b", "except": [{"equals": "b"}]}]}`, "has exceptions beside equals"},
		{`"partition": [], "match": {"descriptors": [{"name": "a", "present": true, "except": [{}]}]}`, "except[0]: must have exactly one of equals, prefix"},
		{`"partition": ["descriptor:a"], "algorithm": "leaky_bucket"`, "policies[0].algorithm: cannot be leaky_bucket with a domain or descriptors"},
	} {
		_, err := decode(t, ofCalls(c.fields))
		if err == nil || !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: %v, want %s", c.fields, err, c.problem)
		}
	}
	flight := strings.Replace(ofCalls(`"partition": ["descriptor:a"]`), `"limit": {"quota": 1, "window": "1s"}, "mode": "strict"`,
		`"limit": {"in_flight": 1}, "mode": "leased"`, 1)
	if _, err := decode(t, flight); err == nil ||
		!strings.Contains(err.Error(), "policies[0].limit: cannot be in_flight with a domain") {
		t.Errorf("in flight: %v", err)
	}
	local := strings.Replace(ofCalls(`"partition": ["descriptor:a"]`), `"strict"`, `"local"`, 1)
	if _, err := decode(t, local); err == nil ||
		!strings.Contains(err.Error(), "policies[0].mode: cannot be local with a domain") {
		t.Errorf("local: %v", err)
	}
}

func TestValuesThatAPolicyIsFor(t *testing.T) {
	except := []policy.Exception{{Value: "bob"}, {Value: "al", Prefix: true}}
	for _, c := range []struct {
		entry policy.EntryMatch
		value string
		want  bool
	}{
		{policy.EntryMatch{Op: policy.HeaderEquals, Value: "bob"}, "bob", true},
		{policy.EntryMatch{Op: policy.HeaderEquals, Value: "bob"}, "bobby", false},
		{policy.EntryMatch{Op: policy.HeaderPrefix, Value: "bob"}, "bobby", true},
		{policy.EntryMatch{Op: policy.HeaderPrefix, Value: "bob"}, "bo", false},
		{policy.EntryMatch{Op: policy.HeaderPresent}, "", true},
		{policy.EntryMatch{Op: policy.HeaderPresent, Except: except}, "bobby", true},
		{policy.EntryMatch{Op: policy.HeaderPresent, Except: except}, "bob", false},
		{policy.EntryMatch{Op: policy.HeaderPrefix, Value: "a", Except: except}, "alice", false},
		{policy.EntryMatch{Op: policy.HeaderPrefix, Value: "a", Except: except}, "anna", true},
	} {
		if got := c.entry.Meets(c.value); got != c.want {
			t.Errorf("%+v and %q: %t", c.entry, c.value, got)
		}
	}
}
