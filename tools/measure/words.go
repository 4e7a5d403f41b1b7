package main

import (
	"go/ast"
	"regexp"
	"strings"
)

// manners are ways of writing that slow a reader down, by the name that the report has for them.
var manners = []struct {
	name    string
	pattern *regexp.Regexp
}{
	{`sentences that begin with "Of"`, regexp.MustCompile(`^Of `)},
	{`"who" without a noun before it, "whoever"`,
		regexp.MustCompile(`(?i)(^|[,;:(] |\b(?:of|to|by|for|from|as|than|with|on) )who\b|\bwhoever\b`)},
	{`"tell", "told"`, regexp.MustCompile(`(?i)\b(tells?|told|telling)\b`)},
	{`"nobody", "everybody", "nothing"`, regexp.MustCompile(`(?i)\b(nobody|everybody|nothing)\b`)},
	{`"says whether"`, regexp.MustCompile(`(?i)\bsays? whether\b`)},
}

var sentenceEnd = regexp.MustCompile(`[.!?](\s+|$)|\n\n`)

// addComments counts the sentences of a file's comments, and how often each manner occurs.
func (t *tree) addComments(f *ast.File) {
	if t.manners == nil {
		t.manners = make([]int, len(manners))
	}
	for _, group := range f.Comments {
		for _, sentence := range sentenceEnd.Split(group.Text(), -1) {
			sentence = strings.Join(strings.Fields(sentence), " ")
			if sentence == "" {
				continue
			}
			t.sentences++
			for i, m := range manners {
				t.manners[i] += len(m.pattern.FindAllString(sentence, -1))
			}
		}
	}
}
