package policydoc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/policy"
)

// ErrNoPolicy means that the document has no policy with the name. NoPolicy returns it with the
// name.
var ErrNoPolicy = errors.New("there is no policy of that name")

// NoPolicy returns ErrNoPolicy for a name that names does not contain.
func NoPolicy(name string, names []string) error {
	guess := ";"
	if best := policy.Guess(name, names); best != "" {
		guess = ": did you mean " + best + "?"
	}
	return &errs.Error{Code: errs.NotFound, Cause: ErrNoPolicy, Detail: fmt.Sprintf(
		"there is no policy %q%s weir get policies lists them, weir apply or PUT adds a policy", name, guess)}
}

// namesIn returns the names of the policies in a list.
func namesIn(list policy.Node) (names []string) {
	for _, p := range list.Items {
		if name, ok := valueAt(p, "name"); ok {
			names = append(names, name.Text)
		}
	}
	return names
}

// errEdit means that an edit would change more of the document than one policy.
var errEdit = &SyntaxError{
	Reason: "is written in a way that does not allow to edit one policy alone: put the whole policy set instead",
}

// Policy returns one policy in the wanted format. From YAML to YAML it keeps the comments. Errors:
// *SyntaxError, ErrNoPolicy.
func Policy(doc []byte, format Format, name string, want Format) ([]byte, error) {
	root, err := Parse(doc, format)
	if err != nil {
		return nil, err
	}
	list, at := findPolicy(root, name)
	if at < 0 {
		return nil, NoPolicy(name, namesIn(list))
	}
	switch {
	case want == JSON:
		return ToJSON(list.Items[at]), nil
	case format == JSON:
		return EncodeYAML(buildYAML(list.Items[at], true))
	}
	tree, err := yamlTree(doc)
	if err != nil {
		return nil, err
	}
	item := *yamlPolicies(tree).Content[at]
	item.HeadComment, item.FootComment = "", "" // These comments are beside the policy in the list.
	return EncodeYAML(&item)
}

// PutPolicy replaces the policy with the name, or adds it at the end. A body without a name gets
// the name. A body with another name is refused with policy.Problems, and invalid text with
// *SyntaxError. A YAML body keeps its comments in a YAML document.
func PutPolicy(doc []byte, format Format, name string, body []byte, bodyFormat Format) ([]byte, error) {
	next, err := Parse(body, bodyFormat)
	if err != nil {
		return nil, err
	}
	if err := plainMap(next); err != nil {
		return nil, err
	}
	if _, ok := valueAt(next, "name"); !ok {
		next.Keys = slices.Insert(next.Keys, 0, "name")
		next.Items = slices.Insert(next.Items, 0, policy.Node{Kind: policy.String, Text: name})
	}
	if err := checkName(next, name); err != nil {
		return nil, err
	}
	e := edit{next: &next}
	if bodyFormat != JSON {
		e.body = body
	}
	return e.applyTo(doc, format, name, true)
}

// PatchPolicy changes the policy with the name by a JSON merge patch (RFC 7396). It returns the
// errors of PutPolicy, and ErrNoPolicy.
func PatchPolicy(doc []byte, format Format, name string, patch []byte) ([]byte, error) {
	change, err := Parse(patch, JSON)
	if err != nil {
		return nil, err
	}
	if err := plainMap(change); err != nil {
		return nil, err
	}
	root, err := Parse(doc, format)
	if err != nil {
		return nil, err
	}
	list, at := findPolicy(root, name)
	if at < 0 {
		return nil, NoPolicy(name, namesIn(list))
	}
	next := mergePatch(list.Items[at], change)
	if err := checkName(next, name); err != nil {
		return nil, err
	}
	return edit{next: &next}.applyTo(doc, format, name, false)
}

// DeletePolicy removes the policy with the name. Errors: *SyntaxError, ErrNoPolicy.
func DeletePolicy(doc []byte, format Format, name string) ([]byte, error) {
	return edit{}.applyTo(doc, format, name, false)
}

// edit is a change of a policy: next replaces it; nil removes it. body is next as it was written,
// if it was YAML.
type edit struct {
	next *policy.Node
	body []byte
}

// applyTo makes the edit in a document, with as few other changes as possible.
func (e edit) applyTo(doc []byte, format Format, name string, add bool) ([]byte, error) {
	root, err := Parse(doc, format)
	if err != nil {
		return nil, err
	}
	list, at := findPolicy(root, name)
	if at < 0 && !add {
		return nil, NoPolicy(name, namesIn(list))
	}
	if root.Kind != policy.Map || list.Kind != policy.List && list.Kind != policy.Null {
		return nil, errEdit
	}
	// Each way of writing must result in exactly the expected document.
	want := e.expectedRoot(root, list, at)
	if format == JSON {
		return indentJSON(want)
	}
	for _, write := range []func([]byte, int) ([]byte, error){e.excerpt, e.splice, e.rewrite} {
		out, err := write(doc, at)
		if err != nil {
			continue
		}
		got, err := Parse(out, YAML)
		if err == nil && reflect.DeepEqual(got, want) {
			return out, nil
		}
		if len(out) > MaxBytes {
			return nil, err
		}
	}
	return nil, errEdit
}

// expectedRoot returns the root that the edited document must have.
func (e edit) expectedRoot(root, list policy.Node, at int) policy.Node {
	items := slices.Clone(list.Items)
	switch {
	case e.next == nil:
		items = slices.Delete(items, at, at+1)
	case at >= 0:
		items[at] = *e.next
	default:
		items = append(items, *e.next)
	}
	if len(items) == 0 {
		items = nil // An empty list is read as nil.
	}
	return withValue(root, "policies", policy.Node{Kind: policy.List, Items: items})
}

func indentJSON(node policy.Node) ([]byte, error) {
	var out bytes.Buffer
	if err := json.Indent(&out, ToJSON(node), "", "  "); err != nil {
		return nil, err
	}
	if out.Len() > MaxBytes {
		return nil, &SyntaxError{Reason: fmt.Sprintf("would be larger than %d bytes", MaxBytes)}
	}
	return out.Bytes(), nil
}

// findPolicy returns the list of policies, and the index of a policy in it, -1 if it is not there.
func findPolicy(root policy.Node, name string) (list policy.Node, at int) {
	list, _ = valueAt(root, "policies")
	return list, slices.IndexFunc(list.Items, func(item policy.Node) bool {
		own, _ := valueAt(item, "name")
		return own.Kind == policy.String && own.Text == name
	})
}

func valueAt(node policy.Node, key string) (policy.Node, bool) {
	if at := slices.Index(node.Keys, key); at >= 0 {
		return node.Items[at], true
	}
	return policy.Node{}, false
}

// withValue returns the mapping with a value changed, or added at the end. It does not change node.
func withValue(node policy.Node, key string, v policy.Node) policy.Node {
	out := policy.Node{Kind: policy.Map, Keys: slices.Clone(node.Keys), Items: slices.Clone(node.Items)}
	if at := slices.Index(out.Keys, key); at >= 0 {
		out.Items[at] = v
		return out
	}
	out.Keys, out.Items = append(out.Keys, key), append(out.Items, v)
	return out
}

// mergePatch applies a merge patch to a value. Keys of a mapping keep their order; new keys follow
// in the order of the patch.
func mergePatch(target, patch policy.Node) policy.Node {
	if patch.Kind != policy.Map {
		return patch
	}
	left := make(map[string]policy.Node, len(patch.Keys))
	for i, key := range patch.Keys {
		left[key] = patch.Items[i]
	}
	merged := policy.Node{Kind: policy.Map}
	take := func(key string, old, change policy.Node) {
		delete(left, key)
		if change.Kind != policy.Null {
			merged.Keys, merged.Items = append(merged.Keys, key), append(merged.Items, mergePatch(old, change))
		}
	}
	for i, key := range target.Keys { // A value that is not a mapping has no keys, and is replaced.
		if change, ok := left[key]; ok {
			take(key, target.Items[i], change)
			continue
		}
		merged.Keys, merged.Items = append(merged.Keys, key), append(merged.Items, target.Items[i])
	}
	for _, key := range patch.Keys {
		if change, ok := left[key]; ok {
			take(key, policy.Node{}, change)
		}
	}
	return merged
}

// plainMap refuses a body that is not a mapping, and keys that occur twice: readers differ in which
// of both they use.
func plainMap(node policy.Node) error {
	if node.Kind != policy.Map {
		return policy.Problems{{Reason: "must be a mapping with the fields of a policy, not " + node.Kind.String()}}
	}
	return checkUnique("", node)
}

func checkUnique(path string, node policy.Node) error {
	seen := make(map[string]bool, len(node.Keys))
	for i, item := range node.Items {
		at := path
		if node.Kind == policy.Map {
			key := node.Keys[i]
			at = strings.TrimPrefix(path+"."+key, ".")
			if seen[key] {
				return policy.Problems{{Path: at, Reason: "is given twice"}}
			}
			seen[key] = true
		}
		if err := checkUnique(at, item); err != nil {
			return err
		}
	}
	return nil
}

// checkName refuses another name: buckets depend on the name of their policy.
func checkName(node policy.Node, name string) error {
	own, _ := valueAt(node, "name")
	if own.Kind == policy.String && own.Text == name {
		return nil
	}
	return policy.Problems{{Path: "name", Reason: "must be " + name + ", as in the path: " +
		"a policy cannot be renamed, its buckets are known by its name; " +
		"put it under the new name and delete the policy with the old name"}}
}
