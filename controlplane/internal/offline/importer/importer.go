// Package importer turns the configurations of other rate limiters into policy sets. The packages
// below it read one source each. Each item of a source, a setting or a directive that concerns
// limits, gets a verdict with its line; no item is left out without a verdict. Input is untrusted:
// size, depth and the number of values are bounded.
package importer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
)

// File is a file of the source. Verdicts use its name.
type File struct {
	Name string
	Text []byte
}

// Verdict says how well an item was carried over.
type Verdict string

// Exact: Weir decides like the source. Approximate: it decides like the source, except for the
// difference in the reason. NotPossible: the item is left out; the reason says why, and how to
// continue.
const (
	Exact       Verdict = "exact"
	Approximate Verdict = "approximate"
	NotPossible Verdict = "not possible"
)

// Item is a setting or a directive of the source that concerns limits.
type Item struct {
	File string `json:"file"`
	// Line is counted from 1; 0 if the item has none.
	Line int `json:"line"`
	// What: the name of the item in the words of the source.
	What    string  `json:"item"`
	Verdict Verdict `json:"verdict"`
	// Reason is the difference, or advice; empty without either.
	Reason string `json:"reason,omitempty"`
	// Policies are the names of the policies that the item has become part of.
	Policies []string `json:"policies,omitempty"`
}

// String returns the item in one line, in the form in which compilers report problems.
func (i Item) String() string {
	text := fmt.Sprintf("%s:%d: %s: %s", i.File, i.Line, i.Verdict, i.What)
	if i.Line == 0 {
		text = fmt.Sprintf("%s: %s: %s", i.File, i.Verdict, i.What)
	}
	if i.Reason != "" {
		text += ": " + i.Reason
	}
	return text
}

// Result is the result of an import.
type Result struct {
	// Document is the policy set in YAML, with comments that name the lines it comes from. It is
	// valid, also if nothing of the source could be carried over.
	Document []byte
	// Consumers are limits of single consumers in the form that weir consumers import reads; empty
	// if there are none. It holds keys in plain text.
	Consumers []byte
	// Items are all items of the source, by file and line.
	Items []Item
	// Policies is the number of policies in the document.
	Policies int

	set Set
}

// Shadow puts all policies that would refuse something into shadow.
func (r *Result) Shadow() (err error) {
	for i := range r.set.Policies {
		if p := &r.set.Policies[i]; p.Enforcement != "off" {
			p.Enforcement = "shadow"
		}
	}
	r.Document, err = r.set.writeDocument()
	return err
}

// Count returns the number of items with the verdict.
func (r *Result) Count(v Verdict) (n int) {
	for _, item := range r.Items {
		if item.Verdict == v {
			n++
		}
	}
	return n
}

// SyntaxError says why a file of the source cannot be read.
type SyntaxError struct {
	File string
	// Line is counted from 1; 0 if it concerns the file as a whole.
	Line   int
	Reason string
}

func (e *SyntaxError) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Reason
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason)
}

// Builder collects the items of a source and the policies that they become.
type Builder struct {
	// Set is the policy set so far. Add adds policies, which may be changed in place.
	Set       Set
	overrides []Override
	items     []Item
	taken     map[string]bool
}

// Say notes an item and its verdict.
func (b *Builder) Say(item Item) { b.items = append(b.items, item) }

// Exactly notes a setting that is carried over exactly.
func (b *Builder) Exactly(t *Tree, what, reason string, policies ...string) {
	b.Say(Item{t.File(), t.Line(), what, Exact, reason, policies})
}

// Nearly notes a setting that is carried over approximately, with the difference.
func (b *Builder) Nearly(t *Tree, what, reason string, policies ...string) {
	b.Say(Item{t.File(), t.Line(), what, Approximate, reason, policies})
}

// Not notes a setting that is left out, and why.
func (b *Builder) Not(t *Tree, what, reason string) {
	b.Say(Item{t.File(), t.Line(), what, NotPossible, reason, nil})
}

// Refused returns the reason why the language refuses a policy; empty if the policy is valid.
func (b *Builder) Refused(p Policy) string {
	p.Name = Slug(p.Name)
	alone := Set{Tiers: b.Set.Tiers, Policies: []Policy{p}}
	alone.Identity.Consumer = []Source{ClientIP}
	if _, err := alone.validDocument(); err != nil {
		return "the policy language refuses it: " + firstProblem(err)
	}
	return ""
}

// validDocument returns the document of the set, and an error if the policy language refuses it.
func (s Set) validDocument() ([]byte, error) {
	doc, err := s.writeDocument()
	if err == nil {
		_, err = policydoc.Load(doc, policydoc.YAML)
	}
	return doc, err
}

func firstProblem(err error) string {
	var problems policy.Problems
	if errors.As(err, &problems) && len(problems) > 0 {
		return problems[0].String()
	}
	return err.Error()
}

// Add takes a policy under the name that its Name gives, made unique. A policy that the language
// refuses is not taken: the reason says why.
func (b *Builder) Add(p Policy) (name, refused string) {
	if refused = b.Refused(p); refused != "" {
		return "", refused
	}
	p.Name = b.uniqueName(Slug(p.Name))
	b.Set.Policies = append(b.Set.Policies, p)
	return p.Name, ""
}

// uniqueName returns a name that no policy has: the given name, if necessary with a number.
func (b *Builder) uniqueName(name string) string {
	if b.taken == nil {
		b.taken = map[string]bool{}
	}
	free := name
	for n := 2; b.taken[free]; n++ {
		suffix := fmt.Sprintf("-%d", n)
		free = name[:min(len(name), maxName-len(suffix))] + suffix
	}
	b.taken[free] = true
	return free
}

// Result ends the import.
func (b *Builder) Result() (*Result, error) {
	doc, err := b.Set.validDocument()
	if err != nil {
		return nil, fmt.Errorf("each policy is valid, but not all policies together: %s", firstProblem(err))
	}
	slices.SortStableFunc(b.items, func(a, b Item) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return &Result{
		Document: doc, Consumers: b.consumersCSV(), Items: b.items, Policies: len(b.Set.Policies), set: b.Set,
	}, nil
}
