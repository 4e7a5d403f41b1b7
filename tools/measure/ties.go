package main

import (
	"errors"
	"go/ast"
	"go/token"
	"go/types"
)

// countTies counts the pairs of files in which a file uses declarations of the other file, and how
// many of these pairs are part of a circle.
func (p *pkg) countTies() (ties, circular int) {
	uses := p.usesOf()
	n := len(p.files)
	reach := make([][]bool, n)
	for i := range reach {
		reach[i] = append([]bool(nil), uses[i]...)
	}
	for k := range n {
		for i := range n {
			for j := range n {
				reach[i][j] = reach[i][j] || reach[i][k] && reach[k][j]
			}
		}
	}
	for i := range n {
		for j := range i {
			if uses[i][j] || uses[j][i] {
				ties++
				if reach[i][j] && reach[j][i] {
					circular++
				}
			}
		}
	}
	return ties, circular
}

// usesOf returns, for each pair of files, whether the first uses a declaration of the second.
// Imports are not followed: the meaning of a name of this package does not need them.
func (p *pkg) usesOf() [][]bool {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	config := types.Config{Importer: none{}, Error: func(error) {}}
	_, _ = config.Check(p.dir, p.set, p.files, info)
	number := map[string]int{}
	uses := make([][]bool, len(p.files))
	for i, f := range p.files {
		number[p.set.Position(f.Package).Filename] = i
		uses[i] = make([]bool, len(p.files))
	}
	fileOf := func(at token.Pos) (int, bool) {
		i, ok := number[p.set.Position(at).Filename]
		return i, ok
	}
	for name, object := range info.Uses {
		from, known := fileOf(name.Pos())
		to, declared := fileOf(object.Pos())
		if known && declared && from != to {
			uses[from][to] = true
		}
	}
	return uses
}

// none is an importer without any package.
type none struct{}

// Import implements types.Importer.
func (none) Import(path string) (*types.Package, error) {
	return nil, errors.New("imports are not followed: " + path)
}
