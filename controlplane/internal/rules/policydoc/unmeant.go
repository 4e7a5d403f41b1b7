package policydoc

import (
	"strconv"

	"github.com/weir-proxy/weir/shared/policy"
)

// LoadNew loads like Load a document that an operator sends now. It also refuses the problems that
// Unmeant finds; stored documents may have them.
func LoadNew(doc []byte, format Format) (*policy.Set, error) {
	set, err := Load(doc, format)
	if err != nil {
		return nil, err
	}
	if problems := Unmeant(doc, format); len(problems) > 0 {
		return nil, &Refused{problems}
	}
	return set, nil
}

// Unmeant returns the places of a valid document that mean the opposite of their look: an empty
// list in a match, which templates may produce, matches every request, not none.
func Unmeant(doc []byte, format Format) policy.Problems {
	node, err := Parse(doc, format)
	if err != nil {
		return nil
	}
	var problems policy.Problems
	for i, key := range node.Keys {
		if key != "policies" && key != "priorities" {
			continue
		}
		for at, item := range node.Items[i].Items {
			problems = append(problems, emptyLists(key+"["+strconv.Itoa(at)+"].match", valueOf(item, "match"))...)
		}
	}
	if len(problems) > 0 {
		locateProblems(doc, problems)
	}
	return problems
}

func emptyLists(path string, match policy.Node) (problems policy.Problems) {
	for i, key := range match.Keys {
		if list := match.Items[i]; list.Kind == policy.List && len(list.Items) == 0 {
			problems = append(problems, policy.Problem{Path: path + "." + key,
				Reason: "is an empty list, which lets every request match: name some, or leave the field out"})
		}
	}
	return problems
}

// valueOf returns the value of a field; the zero Node if there is none.
func valueOf(node policy.Node, key string) policy.Node {
	for i, k := range node.Keys {
		if k == key {
			return node.Items[i]
		}
	}
	return policy.Node{}
}

// NotIn removes the problems that another document has in the same policies and fields.
func NotIn(problems, others policy.Problems) (left policy.Problems) {
	type place struct{ policy, field string }
	placeOf := func(p policy.Problem) place {
		if _, field, ok := cutPolicy(p.Path); ok {
			return place{p.Policy, field}
		}
		return place{field: p.Path}
	}
	known := map[place]bool{}
	for _, p := range others {
		known[placeOf(p)] = true
	}
	for _, p := range problems {
		if !known[placeOf(p)] {
			left = append(left, p)
		}
	}
	return left
}
