package rls_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// node is a node of a configuration of envoyproxy/ratelimit.
type node struct {
	key, value string
	children   []*node
	limit      *rule
	share      bool
}

// rule is a limit of a node.
type rule struct {
	name            string
	quota           int
	unit            string
	unlimited       bool
	shadow, quotaOf bool
}

// tree is a configuration, and its rules by their names.
type tree struct {
	domain string
	roots  []*node
	rules  map[string]*rule
}

var (
	levelKeys = [][]string{{"user", "path"}, {"generic_key", "user"}, {"remote_address", "user"}}
	values    = []string{"", "a", "ab", "abc", "b", "ba", "c"}
	patterns  = []string{"*", "a*", "ab*", "b*"}
	unitNames = []string{"second", "minute", "hour", "day", "week", "month", "year"}
)

// newTree draws a configuration.
func newTree(r *rand.Rand) *tree {
	t := &tree{domain: "edge", rules: map[string]*rule{}}
	t.roots = t.level(r, 0)
	return t
}

func (t *tree) level(r *rand.Rand, depth int) (nodes []*node) {
	taken := map[string]bool{}
	for range 1 + r.IntN(5) {
		n := &node{key: levelKeys[depth][r.IntN(2)]}
		switch r.IntN(5) {
		case 0, 1:
			n.value = values[1+r.IntN(len(values)-1)]
		case 2:
			n.value = patterns[r.IntN(len(patterns))]
		}
		if taken[n.key+"_"+n.value] {
			continue
		}
		taken[n.key+"_"+n.value] = true
		// A pattern that is shared is left out of the partition, which names entries by their keys:
		// so no other entry may have the key.
		n.share = n.key == "path" && strings.HasSuffix(n.value, "*") && r.IntN(2) == 0
		if r.IntN(5) > 0 {
			n.limit = t.rule(r)
		}
		if depth+1 < len(levelKeys) && r.IntN(2) == 0 {
			n.children = t.level(r, depth+1)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

func (t *tree) rule(r *rand.Rand) *rule {
	l := &rule{name: fmt.Sprintf("r%d", len(t.rules)), quota: 1 + r.IntN(6), unit: unitNames[r.IntN(len(unitNames))]}
	switch r.IntN(12) {
	case 0:
		l.unlimited = true
	case 1:
		l.shadow = true
	case 2:
		l.quotaOf = true
	}
	t.rules[l.name] = l
	return l
}

// yaml is the configuration as envoyproxy/ratelimit reads it.
func (t *tree) yaml() string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", t.domain)
	write(&b, t.roots, "  ")
	return b.String()
}

func write(b *strings.Builder, nodes []*node, indent string) {
	for _, n := range nodes {
		fmt.Fprintf(b, "%s- key: %s\n", indent, n.key)
		if n.value != "" {
			fmt.Fprintf(b, "%s  value: %q\n", indent, n.value)
		}
		if n.share {
			fmt.Fprintf(b, "%s  share_threshold: true\n", indent)
		}
		if l := n.limit; l != nil {
			fmt.Fprintf(b, "%s  shadow_mode: %v\n%s  quota_mode: %v\n", indent, l.shadow, indent, l.quotaOf)
			if l.unlimited {
				fmt.Fprintf(b, "%s  rate_limit: {unlimited: true, name: %s}\n", indent, l.name)
			} else {
				fmt.Fprintf(b, "%s  rate_limit: {unit: %s, requests_per_unit: %d, name: %s}\n", indent, l.unit, l.quota,
					l.name)
			}
		}
		if len(n.children) > 0 {
			fmt.Fprintf(b, "%s  descriptors:\n", indent)
			write(b, n.children, indent+"    ")
		}
	}
}

// descriptor draws entries: mostly those on a way through the tree, with any values.
func (t *tree) descriptor(r *rand.Rand) string {
	var entries []string
	nodes := t.roots
	for depth := 0; len(nodes) > 0; depth++ {
		n := nodes[r.IntN(len(nodes))]
		key, value := n.key, n.value
		if value == "" || strings.HasSuffix(value, "*") || r.IntN(4) == 0 {
			value = values[r.IntN(len(values))]
		}
		if r.IntN(30) == 0 {
			key = "other"
		}
		entries = append(entries, key+"="+value)
		if r.IntN(3) == 0 {
			break
		}
		nodes = n.children
	}
	if r.IntN(20) == 0 {
		entries = append(entries, "user=a")
	}
	return strings.Join(entries, " ")
}
