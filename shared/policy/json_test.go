package policy_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/weir-proxy/weir/shared/policy"
)

// tree reads a valid document with another reader.
func tree(v gjson.Result) policy.Node {
	switch v.Type {
	case gjson.String:
		return policy.Node{Kind: policy.String, Text: v.Str}
	case gjson.Number:
		return policy.Node{Kind: policy.Number, Text: v.Raw}
	case gjson.True, gjson.False:
		return policy.Node{Kind: policy.Bool, Text: v.Raw}
	case gjson.JSON:
		n := policy.Node{Kind: policy.List, Items: []policy.Node{}}
		if v.IsObject() {
			n.Kind, n.Keys = policy.Map, []string{}
		}
		v.ForEach(func(key, value gjson.Result) bool {
			if n.Kind == policy.Map {
				n.Keys = append(n.Keys, key.Str)
			}
			n.Items = append(n.Items, tree(value))
			return true
		})
		return n
	}
	return policy.Node{}
}

// Another reader accepts the same JSON, and reads the same values.
func FuzzParseJSON(f *testing.F) {
	for _, doc := range []string{
		``, ` `, `{}`, `[]`, ` [ 1 , 2 ] `, `[1,]`, `[,1]`, `{"a":1,}`, `{"a" : [true,false,null]}`, `{"a":{"b":[{"c":"d"}]}} x`, `{a:1}`, `{"a"1}`, `"a`, `"\`,
		`0`, `-0`, `01`, `-`, `1.`, `1.5e+7`, `1e`, `.5`, `+1`, `1E-2`, `tru`, `truex`, `nul`, `NaN`,
		`"\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ud83dx"`, `"\ude00\ud83d"`, `"\ud83d\u0041"`, `"\u12"`, `"\x"`, "\"\x01\"", "\"\xff\"", "\"é\"",
		`{"\u0061":1,"a":2}`, "\x00", "[1\x00]", "\ufeff{}",
	} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		node, err := policy.ParseJSON(doc)
		if err != nil && strings.Contains(err.Error(), "too deep") || strings.Count(string(doc), ",") > 30 {
			return // A long list is not in the Node; TestLongLists.
		}
		if valid := gjson.ValidBytes(doc); valid != (err == nil) {
			t.Fatalf("%q: %v, valid: %v", doc, err, valid)
		}
		if want := tree(gjson.ParseBytes(doc)); err == nil && !reflect.DeepEqual(node, want) {
			t.Errorf("%q: got\n%+v\nwant\n%+v", doc, node, want)
		}
	})
}

// A list that is read element by element has the same content as a short list.
func TestLongLists(t *testing.T) {
	for _, n := range []int{0, 1, 31, 32, 33, 34, 300} {
		consumers, paths, problems := make([]string, n), make([]string, n), ""
		for i := range n {
			consumers[i] = fmt.Sprint("c\n", i)
			paths[i] = fmt.Sprintf(`"c\n%d"`, i)
		}
		doc := `{"version": "weir/v1", "identity": {"consumer": [{"query": "c"}]}, "exempt": {"consumers": [` + strings.Join(paths, " ,\n") + ` ] } , "policies": []}`
		set, err := decode(t, doc)
		if err != nil || len(set.Exempt.Consumers) != n ||
			n > 0 && !reflect.DeepEqual(set.Exempt.Consumers, consumers) {
			t.Errorf("%d: %v, %+v", n, err, set)
		}
		for i := range min(n, 100) {
			problems += fmt.Sprintf("exempt.consumers[%d]: must be a string, not 1\n", i)
		}
		_, err = decode(t, `{"version": "weir/v1", "exempt": {"consumers": [`+strings.TrimSuffix(strings.Repeat("1,", n), ",")+`]}}`)
		if n > 0 && (err == nil || err.Error()+"\n" != problems) {
			t.Errorf("%d: %v", n, err)
		}
	}
}

// Names are unique also among many, and a policy that needs a consumer is refused even if the
// identity comes last.
func TestProblemsAmongManyPolicies(t *testing.T) {
	var all []string
	var want []string
	for i := range 150 {
		name := fmt.Sprint("p", i)
		if i == 140 {
			name = "p7"
		}
		all = append(all, fmt.Sprintf(`{"name": %q, "partition": ["host", "consumer"], "limit": {"quota": 1, "window": "1s"}}`, name))
		if i < 99 {
			want = append(want, fmt.Sprintf("policies[%d].partition[1]: needs identity.consumer, which says where to "+
				"find the consumer", i))
		}
	}
	doc := func(identity string) string {
		return `{"version": "weir/v1", "policies": [` + strings.Join(all, ",") + `], "identity": ` + identity + `}`
	}
	taken := "policies[140].name: is taken by policies[7]: names must be unique"
	if _, err := decode(t, doc(`{"consumer": [{"query": "c"}]}`)); err == nil || err.Error() != taken {
		t.Errorf("got %v", err)
	}
	if _, err := decode(t, doc(`{}`)); err == nil || err.Error() != taken+"\n"+strings.Join(want, "\n") {
		t.Errorf("got %v", err)
	}
}
