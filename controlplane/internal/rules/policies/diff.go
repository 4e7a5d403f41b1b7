package policies

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/shared/policy"
)

// Diff is the difference between two policy sets. Its lists are in the order of the document and
// never nil.
type Diff struct {
	// Added, Removed and Changed are names of policies.
	Added   []string `json:"added"`
	Removed []string `json:"removed"`
	Changed []string `json:"changed"`
	// Settings are the changed parts beside the policies, like identity and headers.
	Settings []string `json:"settings"`
	// Changes are the changes of the policies in Changed and of Settings, field by field.
	Changes []FieldChange `json:"changes"`
	// Words describe all of it for people: a line for each policy and setting, which begins with +,
	// - or ~.
	Words []string `json:"words"`
}

// FieldChange is a changed field of a policy or a setting.
type FieldChange struct {
	// Of is the name of the policy, or of the setting, like headers.
	Of string `json:"of"`
	// Setting is true if Of is a setting.
	Setting bool `json:"setting,omitempty"`
	// Field is the field's name in the policy language, like limit, limits.free or match.paths;
	// empty for a change without words, like another order of a list.
	Field string `json:"field,omitempty"`
	// Before and After are the values in the policy language; empty if there is no value. For a
	// list whose order has no meaning, Added and Removed are set instead.
	Before  string   `json:"before,omitempty"`
	After   string   `json:"after,omitempty"`
	Added   []string `json:"added,omitempty"`
	Removed []string `json:"removed,omitempty"`
}

// Limits on the words, so that a line stays readable, in bytes or items. Changes is complete.
const (
	wordsOfValue   = 120
	wordsBefore    = 20
	wordsOfList    = 5
	wordsOfSummary = 160
)

// String returns the change in words, like limit 100 per 1m → 80 per 1m.
func (c FieldChange) String() string {
	if len(c.Added)+len(c.Removed) == 0 && c.Before == c.After {
		return c.Field + " changed"
	}
	if len(c.Added)+len(c.Removed) == 0 {
		before, after := shortenBoth(c.Before, c.After)
		return fmt.Sprintf("%s %s → %s", c.Field, before, after)
	}
	added, removed := shortenBoth(joinFirst(c.Added), joinFirst(c.Removed))
	text := c.Field
	for _, side := range []struct {
		word, text string
		items      []string
	}{{" with ", added, c.Added}, {" without ", removed, c.Removed}} {
		if len(side.items) == 0 {
			continue
		}
		text += side.word + side.text
		if more := len(side.items) - wordsOfList; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
	}
	return text
}

// joinFirst joins the first items of a list.
func joinFirst(items []string) string {
	return strings.Join(items[:min(len(items), wordsOfList)], ", ")
}

// shortenBoth shortens two values. If their beginnings are equal, it starts a little before the
// difference.
func shortenBoth(a, b string) (shortA, shortB string) {
	shortA, shortB = shorten(a), shorten(b)
	switch {
	case shortA != shortB || a == b:
		return shortA, shortB
	case a == "":
		return shortA, strconv.Quote(b)
	case b == "":
		return strconv.Quote(a), shortB
	}
	same := 0
	for same < min(len(a), len(b)) && a[same] == b[same] {
		same++
	}
	from := same - wordsBefore
	return "…" + shorten(strings.ToValidUTF8(a[from:], "")), "…" + shorten(strings.ToValidUTF8(b[from:], ""))
}

// shorten cuts a value at a whole character.
func shorten(text string) string {
	if text == "" {
		return "none"
	}
	if len(text) <= wordsOfValue {
		return text
	}
	return strings.ToValidUTF8(text[:wordsOfValue], "") + "…"
}

// Compare returns the difference between two sets. Two spellings of the same set do not differ.
func Compare(before, after *policy.Set) Diff {
	d := Diff{
		Added: []string{}, Removed: []string{}, Changed: []string{}, Settings: []string{},
		Changes: []FieldChange{}, Words: []string{},
	}
	// Compare the settings, then each policy of the new set with the old policy of that name.
	d.settings(before, after)
	old := make(map[string]*policy.Policy, len(before.Policies))
	for i := range before.Policies {
		old[before.Policies[i].Name] = &before.Policies[i]
	}
	for i := range after.Policies {
		p := &after.Policies[i]
		if was, ok := old[p.Name]; ok {
			d.policy(before, was, after, p)
		} else {
			d.Added = append(d.Added, p.Name)
			d.Words = append(d.Words, "+ "+p.Name+": "+sketch(after, p))
		}
		delete(old, p.Name)
	}
	// The other old policies were removed.
	for i := range before.Policies {
		if name := before.Policies[i].Name; old[name] != nil {
			d.Removed = append(d.Removed, name)
			d.Words = append(d.Words, "- "+name)
		}
	}
	return d
}

// Same reports whether both sets have a policy of this name with the same meaning.
func Same(before, after *policy.Set, name string) bool {
	named := func(p policy.Policy) bool { return p.Name == name }
	was, is := slices.IndexFunc(before.Policies, named), slices.IndexFunc(after.Policies, named)
	if was < 0 || is < 0 || policyIdentity(before) != policyIdentity(after) {
		return false
	}
	var d Diff
	d.policy(before, &before.Policies[was], after, &after.Policies[is])
	return len(d.Changed) == 0
}

func (d *Diff) policy(before *policy.Set, was *policy.Policy, after *policy.Set, is *policy.Policy) {
	if (len(is.Tiers) == 0 || slices.Equal(before.Tiers, after.Tiers)) && reflect.DeepEqual(was, is) {
		return // Most policies of a large set do not change: this comparison is faster than words.
	}
	changes := compareFacts(policyFacts(before, was), policyFacts(after, is))
	// Compare limits by tier through the tiers' names: the order of the tiers is not a part of the
	// policy.
	left, right := renewed(*was), renewed(*is)
	left.Limits = nil
	left.Tiers = nil
	right.Limits = nil
	right.Tiers = nil
	if len(changes) == 0 && reflect.DeepEqual(left, right) {
		return
	}
	d.Changed = append(d.Changed, is.Name)
	d.add(is.Name, false, changes)
}

func (d *Diff) settings(before, after *policy.Set) {
	was, is := reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem()
	old, new := settingFacts(before), settingFacts(after)
	for i := range was.NumField() {
		field := was.Type().Field(i).Name
		if field == "Policies" || reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
			continue
		}
		name := strings.ToLower(field) // The document uses the names of the fields, with one exception.
		if field == "Routing" {
			name = "match"
		}
		d.Settings = append(d.Settings, name)
		d.add(name, true, compareFacts(old[name], new[name]))
	}
}

// add adds changes. A change without words, like another order of a list, is added too.
func (d *Diff) add(of string, setting bool, changes []FieldChange) {
	if len(changes) == 0 {
		d.Changes = append(d.Changes, FieldChange{Of: of, Setting: setting})
		d.Words = append(d.Words, "~ "+of+": changed")
		return
	}
	var words []string
	for _, c := range changes {
		c.Of, c.Setting = of, setting
		d.Changes = append(d.Changes, c)
		words = append(words, c.String())
	}
	d.Words = append(d.Words, "~ "+of+": "+strings.Join(words, "; "))
}

// compareFacts compares facts by their fields. It returns the changes in the order of is, and then
// the removed facts.
func compareFacts(was, is []fact) (changes []FieldChange) {
	gone := make(map[string]fact, len(was))
	for _, f := range was {
		gone[f.field] = f
	}
	for _, f := range is {
		if c, differs := gone[f.field].changeTo(f); differs {
			changes = append(changes, c)
		}
		delete(gone, f.field)
	}
	for _, f := range was {
		if _, ok := gone[f.field]; !ok {
			continue
		}
		if c, differs := f.changeTo(fact{field: f.field}); differs {
			changes = append(changes, c)
		}
	}
	return changes
}

// changeTo returns the change from one value of a field to the next, and whether they differ.
func (f fact) changeTo(next fact) (FieldChange, bool) {
	c := FieldChange{
		Field: next.field, Before: f.text, After: next.text,
		Added: itemsWithout(next.list, f.list), Removed: itemsWithout(f.list, next.list),
	}
	return c, c.Before != c.After || len(c.Added)+len(c.Removed) > 0
}

// itemsWithout returns the items that the other list lacks.
func itemsWithout(items, others []string) (left []string) {
	have := make(map[string]bool, len(others))
	for _, o := range others {
		have[o] = true
	}
	return slices.DeleteFunc(slices.Clone(items), func(item string) bool { return have[item] })
}

// String summarises the difference: in words if it concerns one policy or setting, otherwise in
// numbers.
func (d Diff) String() string {
	if len(d.Words) == 1 {
		switch name, rest, _ := strings.Cut(d.Words[0][2:], ": "); {
		case len(d.Added) > 0:
			return name + " added: " + shorten(rest)
		case len(d.Removed) > 0:
			return name + " removed"
		case len(d.Words[0]) <= wordsOfSummary:
			return d.Words[0][2:]
		}
	}
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
