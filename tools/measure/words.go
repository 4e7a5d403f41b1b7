package main

import (
	"go/ast"
	"slices"

	"github.com/weir-proxy/weir/tools/habits"
)

// habitsCounted are the habits of writing that the report has a row for.
var habitsCounted = slices.Concat(habits.Counted, habits.Banned)

// addComments counts the sentences of a file's comments, and how often each habit occurs.
func (t *tree) addComments(f *ast.File) {
	if t.habits == nil {
		t.habits = make([]int, len(habitsCounted))
	}
	for _, group := range f.Comments {
		for _, sentence := range habits.Sentences(group.Text()) {
			t.sentences++
			for i, h := range habitsCounted {
				t.habits[i] += len(h.Find(sentence))
			}
		}
	}
}
