package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
)

func TestThePageIsFresh(t *testing.T) {
	want, err := generate(descriptionPath)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(pagePath)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/reference/fields.md is not what api/openapi.yaml gives: run make generate")
	}
}

// A page without the texts that it is made of is an error, not a gap.
func TestAFieldNeedsADescriptionAndAnExample(t *testing.T) {
	const text = "components: {schemas: {Policy: {}, PolicySet: {description: x, properties: {a: {type: string, %}}}}}"
	for field, want := range map[string]string{
		"example: a":                 "PolicySet: a: has no description",
		"description: a":             "PolicySet: a: has no example",
		"description: a, example: b": "",
		"example: a, description: '" + strings.Repeat("a ", 26) + "'": "PolicySet: a: has a first sentence of more " +
			"than 25 words",
		"'$ref': '#/schemas/Missing'": "PolicySet: a: has no description",
	} {
		all, err := readSchemas([]byte(strings.ReplaceAll(text, "%", field)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := page(all); err == nil && want != "" || err != nil && err.Error() != want {
			t.Errorf("%s: %v, want %q", field, err, want)
		}
	}
	if _, err := readSchemas([]byte("components: {schemas: {}}")); err == nil {
		t.Error("a description without policies is read")
	}
}

// described are the schemas of the language, by name.
func described(t *testing.T) schemas {
	t.Helper()
	text, err := os.ReadFile(descriptionPath)
	if err != nil {
		t.Fatal(err)
	}
	all, err := readSchemas(text)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// decoded are the fields of each object, which take long to decode.
var decoded = map[string][]fieldOf{}

func fieldsOf(t *testing.T, all schemas, name string) []fieldOf {
	t.Helper()
	if _, is := decoded[name]; !is {
		fields, err := all[name].fields()
		if err != nil {
			t.Fatal(err)
		}
		decoded[name] = fields
	}
	return decoded[name]
}

// reached calls visit for each object of the language, from the policy set on.
func reached(t *testing.T, all schemas, visit func(name string, fields []fieldOf)) {
	t.Helper()
	queue := []string{root}
	var done []string
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		if slices.Contains(done, name) {
			continue
		}
		done = append(done, name)
		fields := fieldsOf(t, all, name)
		for _, f := range fields {
			if object, _ := f.refers(); object != "" {
				queue = append(queue, object)
			}
		}
		visit(name, fields)
	}
}

// fieldNames finds where the reader of policy sets knows a field; lookups finds where it reads a
// field ahead of all others.
var (
	fieldNames = regexp.MustCompile(`(?:field\{|^\t+\{|, \{)"([a-z0-9_]+)", (?:func\(|r\.|set\(|add\(|done)`)
	lookups    = regexp.MustCompile(`n\.Keys\[0\] == "([a-z0-9_]+)"`)
	// enumerated finds a field that has the name of a value of an enumeration.
	enumerated = regexp.MustCompile(`field\{(\w+)\.String\(\)`)
)

// enumeration is the values that name fields.
var enumeration = map[string]fmt.Stringer{
	"HeaderEquals": policy.HeaderEquals, "HeaderPrefix": policy.HeaderPrefix,
	"HeaderPresent": policy.HeaderPresent, "HeaderAbsent": policy.HeaderAbsent,
}

// The reader is checked as text, so that a field cannot be added to it alone: the number of schemas
// with a field must be the number of mappings that read it.
func TestEveryFieldThatIsReadIsDescribed(t *testing.T) {
	known, found := map[string]int{}, map[string]int{}
	reached(t, described(t), func(_ string, fields []fieldOf) {
		for _, f := range fields {
			known[f.name]++
		}
	})
	files, err := filepath.Glob("../../../../../shared/policy/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		// A plugin's configuration is another language.
		if name := filepath.Base(file); strings.HasSuffix(name, "_test.go") || name == "plugin.go" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(text), "\n") {
			for _, m := range append(fieldNames.FindAllStringSubmatch(line, -1),
				lookups.FindAllStringSubmatch(line, -1)...) {
				found[m[1]]++
			}
			for _, m := range enumerated.FindAllStringSubmatch(line, -1) {
				if m[1] == "kind" { // The table of sources is read in a loop.
					for k := range policy.SourceKind(policy.SourceCount) {
						if _, is := policy.ParseIdentity(k.String()); is {
							found[k.String()]++
						}
					}
					continue
				}
				value, ok := enumeration[m[1]]
				if !ok {
					t.Fatalf("%s: the test does not know the value %s", file, m[1])
				}
				found[value.String()]++
			}
		}
	}
	for _, name := range policy.Answers { // They are read in a loop.
		found[name]++
	}
	for name, count := range found {
		if known[name] < count {
			t.Errorf("shared/policy reads the field %s in %d mappings, and %d schemas of api/openapi.yaml have it",
				name, count, known[name])
		}
	}
	for name := range known {
		if found[name] == 0 {
			t.Errorf("the schemas have the field %s, which nothing in shared/policy reads", name)
		}
	}
}

// documents are the examples of all objects, each a whole policy set.
func documents(t *testing.T, all schemas) (docs []policy.Node) {
	t.Helper()
	reached(t, all, func(name string, _ []fieldOf) {
		if all[name].XDocument == "" {
			return
		}
		doc, err := policydoc.Parse([]byte(all[name].XDocument), policydoc.YAML)
		if err == nil {
			_, err = policy.Decode(doc)
		}
		if err != nil {
			t.Errorf("the example of %s: %v", name, err)
		}
		docs = append(docs, doc)
	})
	return docs
}

// walk calls visit for each mapping in a document that is an object of the name.
func walk(t *testing.T, all schemas, at *policy.Node, of, name string, visit func(*policy.Node)) {
	t.Helper()
	if at.Kind == policy.List {
		for i := range at.Items {
			walk(t, all, &at.Items[i], of, name, visit)
		}
	}
	if at.Kind != policy.Map {
		return
	}
	if of == name {
		visit(at)
	}
	for _, f := range fieldsOf(t, all, of) {
		if object, _ := f.refers(); object != "" {
			if i := slices.Index(at.Keys, f.name); i >= 0 {
				walk(t, all, &at.Items[i], object, name, visit)
			}
		}
	}
}

func clone(n policy.Node) policy.Node {
	n.Keys = slices.Clone(n.Keys)
	n.Items = slices.Clone(n.Items)
	for i := range n.Items {
		n.Items[i] = clone(n.Items[i])
	}
	return n
}

func with(n *policy.Node, key string, value policy.Node) {
	without(n, key)
	n.Keys, n.Items = append(n.Keys, key), append(n.Items, value)
}

func without(n *policy.Node, key string) {
	if i := slices.Index(n.Keys, key); i >= 0 {
		n.Keys, n.Items = slices.Delete(n.Keys, i, i+1), slices.Delete(n.Items, i, i+1)
	}
}

// variants are the documents in which an object of the name has the field with the value: in each
// example, at each place, beside all other fields, without one of them, and alone. The field is
// left out of each twin.
func variants(
	t *testing.T, all schemas, docs []policy.Node, name, field string, value policy.Node,
) (given, twins []policy.Node) {
	t.Helper()
	change := func(doc policy.Node, place int, edit func(*policy.Node)) policy.Node {
		doc = clone(doc)
		count := 0
		walk(t, all, &doc, root, name, func(n *policy.Node) {
			if count == place {
				edit(n)
			}
			count++
		})
		return doc
	}
	for _, doc := range docs {
		var places [][]string
		walk(t, all, &doc, root, name, func(n *policy.Node) { places = append(places, slices.Clone(n.Keys)) })
		for place, keys := range places {
			drops := [][]string{nil, keys}
			for _, key := range keys {
				drops = append(drops, []string{key})
			}
			for _, drop := range drops {
				base := change(doc, place, func(n *policy.Node) {
					for _, key := range drop {
						without(n, key)
					}
				})
				given = append(given, change(base, place, func(n *policy.Node) { with(n, field, value) }))
				twins = append(twins, change(base, place, func(n *policy.Node) { without(n, field) }))
			}
		}
	}
	return given, twins
}

// accepted is how many documents are policy sets.
func accepted(docs []policy.Node) (count int) {
	for _, doc := range docs {
		if _, err := policy.Decode(doc); err == nil {
			count++
		}
	}
	return count
}

func parsed(t *testing.T, value yaml.Node) policy.Node {
	t.Helper()
	doc, err := policydoc.Parse([]byte("value: "+flow(value)), policydoc.YAML)
	if err != nil {
		t.Fatal(err)
	}
	return doc.Items[0]
}

func TestExamplesAreAcceptedAndDefaultsAreWhatIsMeantWithoutAWord(t *testing.T) {
	all := described(t)
	docs := documents(t, all)
	examples, defaults := 0, 0
	reached(t, all, func(name string, fields []fieldOf) {
		for _, f := range fields {
			if f.Example.Kind != 0 {
				examples++
				given, _ := variants(t, all, docs, name, f.name, parsed(t, f.Example))
				if accepted(given) == 0 {
					t.Errorf("%s.%s: %s is refused everywhere", name, f.name, flow(f.Example))
				}
			}
			if f.Default.Kind == 0 {
				continue
			}
			defaults++
			compared := 0
			given, twins := variants(t, all, docs, name, f.name, parsed(t, f.Default))
			for i := range given {
				one, err := policy.Decode(given[i])
				other, without := policy.Decode(twins[i])
				if err != nil || without != nil {
					continue
				}
				if compared++; !reflect.DeepEqual(one, other) {
					t.Errorf("%s.%s: with the default %s a policy set means something else than without", name, f.name,
						flow(f.Default))
					break
				}
			}
			if compared == 0 {
				t.Errorf("%s.%s: the default %s is refused everywhere", name, f.name, flow(f.Default))
			}
		}
	})
	if examples < 50 || defaults < 14 {
		t.Errorf("only %d examples and %d defaults were tried", examples, defaults)
	}
}

func TestRangesAreThoseOfTheReader(t *testing.T) {
	all := described(t)
	docs := documents(t, all)
	tried := 0
	reached(t, all, func(name string, fields []fieldOf) {
		for _, f := range fields {
			try := func(kind policy.Kind, text string, want bool) {
				t.Helper()
				tried++
				given, _ := variants(t, all, docs, name, f.name, policy.Node{Kind: kind, Text: text})
				if got := accepted(given) > 0; got != want {
					t.Errorf("%s.%s: %s is accepted: %v, want %v", name, f.name, text, got, want)
				}
			}
			for _, form := range append([]schema{f.schema}, f.OneOf...) {
				for _, word := range form.Enum {
					if word != "false" && word != "true" { // YAML 1.1 reads off and on as these.
						try(policy.String, word, true)
					}
				}
				if len(form.Enum) > 0 {
					try(policy.String, "nonsense", false)
				}
				if form.Minimum != "" {
					low, _ := strconv.ParseInt(form.Minimum, 10, 64)
					high, err := strconv.ParseInt(form.Maximum, 10, 64)
					if err != nil {
						t.Fatal(err)
					}
					try(policy.Number, form.Minimum, true)
					try(policy.Number, strconv.FormatInt(low-1, 10), false)
					try(policy.Number, strconv.FormatInt(high+1, 10), false)
				}
				if low, high, is := strings.Cut(form.XRange, " to "); is && form.Format == "span" {
					try(policy.String, low, true)
					try(policy.String, high, true)
				}
			}
		}
	})
	if tried < 60 {
		t.Errorf("only %d values were tried", tried)
	}
}
