package policies

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/weir-proxy/weir/shared/policy"
)

// Diff is what changes between two policy sets, by the names of policies. Lists are in the order of the document.
type Diff struct {
	Added   []string `json:"added"`
	Removed []string `json:"removed"`
	Changed []string `json:"changed"`
	// Settings are the changed parts beside the policies, like identity and headers.
	Settings []string `json:"settings"`
}

// Compare says what changes from before to after. What a document merely spells differently is no change.
func Compare(before, after *policy.Set) Diff {
	d := Diff{Added: []string{}, Removed: []string{}, Changed: []string{}, Settings: []string{}}
	was, is := reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem()
	for i := range was.NumField() {
		name := was.Type().Field(i).Name
		if name != "Policies" && !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
			d.Settings = append(d.Settings, strings.ToLower(name)) // The document's keys are named like the fields.
		}
	}
	old := make(map[string]*policy.Policy, len(before.Policies))
	for i := range before.Policies {
		old[before.Policies[i].Name] = &before.Policies[i]
	}
	for i := range after.Policies {
		p := &after.Policies[i]
		switch was, ok := old[p.Name]; {
		case !ok:
			d.Added = append(d.Added, p.Name)
		case !reflect.DeepEqual(was, p):
			d.Changed = append(d.Changed, p.Name)
		}
		delete(old, p.Name)
	}
	for i := range before.Policies {
		if name := before.Policies[i].Name; old[name] != nil {
			d.Removed = append(d.Removed, name)
		}
	}
	return d
}

// String sums the diff up, for people.
func (d Diff) String() string {
	var parts []string
	for _, c := range []struct {
		names []string
		what  string
	}{{d.Added, "added"}, {d.Removed, "removed"}, {d.Changed, "changed"}} {
		if len(c.names) > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", len(c.names), c.what))
		}
	}
	if len(d.Settings) > 0 {
		parts = append(parts, strings.Join(d.Settings, ", ")+" changed")
	}
	if len(parts) == 0 {
		return "no change in meaning"
	}
	return strings.Join(parts, ", ")
}
